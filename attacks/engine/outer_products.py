"""What the gradient of a linear layer tells of its inputs: it is a sum of outer products, one for each image.

z = W a + b gives dW = sum_i d_i a_i^T and db = sum_i d_i, with d_i the loss gradient at z. Of one image every row of dW
over its entry of db is the input itself (Phong et al. 2018; Fowl et al. 2021, of PRECODE: Scheliga et al. 2022, arXiv
2208.04767). The random draw of a bottleneck behind the layer changes d, and d cancels.

Where some coordinates of one image were withheld, only those that arrived are used. Where they were filled with noise,
rows are compared: d_k a_j over d_l a_j is d_k / d_l in every column in which both are true and anything in the others,
so that the most frequent ratio is exact (``by_agreement``). Of several images only the span of their inputs is known.

Shapes: dW [K, F], db [K]. Errors: ``AttackError`` where there is no such layer.
"""

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from prunella.attacks.engine.matching import Target, show_zeros
from prunella.attacks.engine.objectives import split
from prunella.core.errors import AttackError
from prunella.core.trees import Mask
from prunella.tasks.models.layers import Shape

_SAME = 1e-4  # relative difference up to which two figures are one: an update is a difference of rounded weights
_RIDGE = 1e-6  # of the span of several inputs, which may be alike
# Share of a row's figures that must agree, and their number: by chance less than a hundredth does.
_FEW, _LEAST = 0.02, 4
# Weight of "this input is small", of columns that no two rows have: on MNIST it adds 16 dB, 0.3 adds as much.
_SMALL = 0.1
_FAITHFUL = 0.9  # share of a gradient that one outer product explains, where nothing was made up


@dataclass(frozen=True)
class Reading:
    """``rows`` [R, F], inputs of the layer or, where ``mixed``, a basis of them with a last column for the bias.

    ``known`` [F] weighs the columns, 1 where they are exact. ``scaled``: whether their size is known, too. ``slope``
    [K] is the loss gradient at the output of the layer, None where it is not known. ``filled``: values were made up.
    ``left`` is the share of dW that the outer product of db and the input does not explain; 1 where nobody asked.
    """

    rows: Tensor
    known: Tensor
    scaled: bool
    mixed: bool
    slope: Tensor | None = None
    filled: bool = False
    left: float = 1.0


class _ReachedError(Exception):
    """The layer was reached: what is behind it is not needed."""


def input_of(target: Target, layer: str, x: Tensor) -> Tensor:
    """What ``layer`` is given for the images x [N, C, H, W]: [N, F], differentiable in x."""
    caught: list[Tensor] = []

    def catch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(inputs[0])
        raise _ReachedError

    with target.module.get_submodule(layer).register_forward_pre_hook(catch), suppress(_ReachedError):
        target.logits(x)
    if not caught or caught[0].dim() != 2 or len(caught[0]) != len(x):
        raise AttackError(f"the linear layer {layer} does not take one row for each image")
    return caught[0]


def first_linear(module: nn.Module, shape: Shape) -> tuple[str, Shape]:
    """The linear layer that an image meets first, however the layers were declared, and its input's shape [C, H, W];
    H = W = 1 where that never had places."""
    names: dict[nn.Module, str] = {
        layer: name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)
    }
    shapes, called = list[Shape](), list[tuple[str, Shape]]()

    def before(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features = inputs[0].shape[-1]
        fits = [grid for grid in shapes if grid[0] * grid[1] * grid[2] == features]
        called.append((names[layer], fits[-1] if fits else (features, 1, 1)))

    def after(_layer: nn.Module, _inputs: object, output: Tensor) -> None:
        if isinstance(output, Tensor) and output.dim() == 4:
            shapes.append((output.shape[1], output.shape[2], output.shape[3]))

    with ExitStack() as hooks:
        for layer in names:
            hooks.enter_context(layer.register_forward_pre_hook(before))
        for part in module.modules():
            hooks.enter_context(part.register_forward_hook(after))
        show_zeros(module, shape)
    if not called:
        raise AttackError("the model calls no linear layer whose input could be read")
    name = called[0][0]
    if f"{name}.weight".lstrip(".") not in {each for each, _ in module.named_parameters()}:
        raise AttackError(f"the weight of {name or 'the linear layer'} is made of other parameters: no input is read")
    return called[0]


def read(target: Target, layer: str, shared: Mask | None) -> Reading:
    """The inputs of ``layer`` in the update that ``target`` holds, of which ``shared`` arrived. Where that is not
    known, a column of zeros is an input of zero (a ReLU's, a black pixel's) or one so small that it was withheld."""
    prefix = f"{layer}." if layer else ""
    gradient = split(target.flat, target.params)
    weight, bias = gradient[f"{prefix}weight"].double(), gradient.get(f"{prefix}bias")
    bias = None if bias is None or not bool(bias.any()) else bias.double()
    if not bool(weight.any()):
        raise AttackError(f"nothing of the linear layer {layer} arrived")
    if target.plan.images > 1:
        return _basis(weight, bias, target.plan.images)
    arrived = (weight != 0) | (weight == 0).all(dim=0) if shared is None else shared[f"{prefix}weight"]
    if bias is not None and not bool(weight[bias == 0].any()):  # a row of zeros is a unit that is silent
        found = by_bias(weight, bias, arrived)
        share = explained(weight, bias, arrived, found.rows[0])
        if share >= _FAITHFUL:
            return replace(found, left=1 - share)
    agreed = by_agreement(weight, bias, arrived)
    if agreed is not None:
        return agreed
    return by_bias(weight, bias, arrived) if bias is not None else _basis(weight, None, 1)


def explained(weight: Tensor, bias: Tensor, arrived: Tensor, row: Tensor) -> float:
    """The share of dW, where it arrived, that is the outer product of db and ``row``."""
    seen = weight.square() * (bias != 0)[:, None]
    rest = (weight - torch.outer(bias, row)).square() * (arrived & (bias != 0)[:, None])
    return float(1 - rest.sum() / seen.sum().clamp_min(torch.finfo(seen.dtype).tiny))


def by_bias(weight: Tensor, bias: Tensor, arrived: Tensor) -> Reading:
    """Least squares over the rows: a_j = sum_k db_k dW_kj / sum_k db_k^2, over what arrived."""
    square = arrived.to(bias.dtype).T @ bias.square()
    row = weight.T @ bias / square.clamp_min(torch.finfo(bias.dtype).tiny)
    return Reading(row[None], (square > 0).to(bias.dtype), True, False, bias if bool(bias.all()) else None)


def by_agreement(weight: Tensor, bias: Tensor | None, arrived: Tensor) -> Reading | None:
    """The input in every column in which two rows agree, or, where hardly any disagree, that one has; None where rows
    have no ratio in common."""
    ratios = ratios_of(weight)
    rows = ratios != 0
    if int(rows.sum()) < 2:
        return None
    each = torch.where(weight[rows] != 0, weight[rows] / ratios[rows][:, None], torch.nan).sort(dim=0).values
    apart = each.diff(dim=0).abs() / each[1:].abs()
    best = torch.nan_to_num(apart, nan=torch.inf).min(dim=0)
    known = best.values < _SAME
    row = torch.where(known, each[1:].gather(0, best.indices[None])[0], 0.0)
    told = each.isfinite().sum(dim=0)
    if float(known[told > 1].double().mean()) >= _FAITHFUL:  # of nothing at all it is nan
        row, known = torch.where(told == 1, each[0], row), known | (told == 1)
    scale = 0.0
    if bias is not None and int((rows & (bias != 0)).sum()) > 1:
        scale, count = most_frequent(bias[rows & (bias != 0)] / ratios[rows & (bias != 0)])
        scale = scale if count > 1 else 0.0
    slope = ratios * scale if scale and bool(rows.all()) else None
    weights = torch.where(known, 1.0, _SMALL)
    return Reading((row / scale if scale else row)[None], weights, bool(scale), False, slope, bool(arrived.all()))


def ratios_of(weight: Tensor) -> Tensor:
    """Each row [K] over the fullest one, 0 where the two have no ratio in common. Where few values arrived they may
    have few columns in common, so a row is compared with all that the rows before it tell of the input.

    >>> ratios_of(torch.tensor([[1.0, 2, 3, 4, 5, 0], [2.0, 4, 6, 8, 0, 9], [0, 6, 9, 12, 0, 13.5]]))
    tensor([1., 2., 3.])
    """
    pivot = int((weight != 0).sum(dim=1).argmax())
    ratios, row = torch.zeros_like(weight[:, 0]), weight[pivot].clone()
    ratios[pivot], before = 1.0, 0
    while before < (before := int((ratios != 0).sum())):
        for k in (ratios == 0).nonzero().flatten().tolist():
            both = (weight[k] != 0) & (row != 0)
            ratio, count = most_frequent(weight[k][both] / row[both])
            if count >= max(_LEAST, _FEW * int(both.sum())):
                ratios[k] = ratio
                row = torch.where(row == 0, weight[k] / ratio, row)
    return ratios


def most_frequent(values: Tensor) -> tuple[float, int]:
    """The figure about which most of ``values`` [M] lie, and how many do.

    >>> most_frequent(torch.tensor([1.0, -2.0, 5.0, -2.0, 3.0]))
    (-2.0, 2)
    """
    best = (0.0, 0)
    for sign in (1.0, -1.0):
        logs = (values[values * sign > 0] * sign).log().sort().values
        if not len(logs):
            continue
        counts = torch.searchsorted(logs, logs + _SAME, right=True) - torch.arange(len(logs), device=logs.device)
        at, count = int(counts.argmax()), int(counts.max())
        if count > best[1]:
            best = (sign * float(logs[at : at + count].median().exp()), count)
    return best


def _basis(weight: Tensor, bias: Tensor | None, images: int) -> Reading:
    """The span of ``images`` inputs: the leading right singular vectors of [dW | db], by their size."""
    whole = weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)
    _, sizes, right = torch.linalg.svd(whole, full_matrices=False)
    rows = (sizes[:, None] * right)[:images]
    return Reading(rows / rows.norm(), torch.ones_like(rows[0]), bias is not None, True)


def span_of(rows: Tensor, reading: Reading) -> Tensor:
    """What of the basis inputs ``rows`` [N, F] span, [N, F] or [N, F + 1]: the basis itself where they explain it."""
    if reading.scaled:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    gram = rows @ rows.T
    gram = gram + torch.eye(len(rows), device=rows.device) * (_RIDGE * gram.detach().diagonal().mean())
    shares: Tensor = torch.linalg.solve(gram, rows @ reading.rows.to(rows.dtype).T)
    return shares.T @ rows


def front_gradient(target: Target, layer: str, rows: Tensor, slope: Tensor) -> dict[str, Tensor]:
    """The gradient of the parameters before ``layer``, by name, from its inputs ``rows`` [N, F] and the loss gradients
    [K] or [N, K] at its output: no draw behind the layer is in it."""
    if not rows.requires_grad:  # nothing that is trained lies before the layer, and no image is asked for
        return {}
    weight = target.params[f"{layer}.weight" if layer else "weight"].detach()
    found = torch.autograd.grad(
        rows,
        list(target.params.values()),
        (slope.to(weight.dtype) @ weight).view_as(rows),
        create_graph=True,
        allow_unused=True,
    )
    return {name: g for name, g in zip(target.params, found, strict=True) if g is not None}
