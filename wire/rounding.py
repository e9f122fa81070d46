"""Fewer bits for a value, on request: float16 or int8 with one scale for every tensor.

``value = scale · code``. With the largest kept magnitude a of a tensor: float16 takes for its scale the power of two
that brings a into [2^14, 2^15), so that nothing overflows and what is 2^-28 of a keeps full precision (relative error
at most 2^-11); int8 takes a / 127 (error at most a / 254). Rounding is to the nearest, ties to even: the same update
gives the same bytes again and the error is bounded, at the price of a bias that stochastic rounding would not have.
Integers and tensors already as small stay exact. A value that is not finite raises ``WireError``.

>>> codes, scales = round_tree({"w": torch.tensor([0.5, -1.27])}, {"w": torch.tensor([True, True])}, "int8")
>>> codes["w"].tolist(), [round(v, 3) for v in restore(codes["w"], scales["w"], torch.float32).tolist()]
([50, -127], [0.5, -1.27])
"""

import math
from typing import Literal

import torch
from torch import Tensor

from prunella.core.errors import WireError
from prunella.core.trees import Mask, Tree, apply_mask

Values = Literal["float32", "float16", "int8"]
CODES: dict[Values, torch.dtype] = {"float16": torch.float16, "int8": torch.int8}
WIDE = (torch.float32, torch.float64)


def _scale(largest: float, values: Values) -> float:
    if largest == 0:
        return 1.0
    # A float32 as small as 1e-45 must not make the scale zero: then everything rounds to zero instead.
    smallest = 2.0**-149
    return max(smallest, 2.0 ** (math.frexp(largest)[1] - 15) if values == "float16" else largest / 127)


def _round(tensor: Tensor, values: Values, name: str) -> tuple[Tensor, float]:
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not math.isfinite(largest):
        raise WireError("value", f"{name}: a value is not finite and has no {values} code")
    scale = _scale(largest, values)
    # In float64, where the quotient loses nothing that matters.
    codes = tensor.double() / scale
    return (codes.round() if values == "int8" else codes).to(CODES[values]), scale


def round_tree(tree: Tree, mask: Mask, values: Values) -> tuple[Tree, dict[str, float]]:
    """The codes, zero outside the mask, and the scales of the tensors that were rounded: none for float32."""
    if values not in CODES:
        return tree, {}
    codes, scales = dict(apply_mask(tree, mask)), {}
    for name, tensor in codes.items():
        if tensor.dtype in WIDE:
            codes[name], scales[name] = _round(tensor, values, name)
    return codes, scales


def restore(codes: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    return (codes.double() * scale).to(dtype)
