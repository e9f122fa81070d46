"""How far a dummy gradient is from the target: cosine (Geiping et al. 2020, Eq. 4), Euclidean (Zhu et al. 2019, Eq. 4).

Both work on flattened trees of one length, restricted to a support (1 where the server compares, 0 elsewhere; None for
everywhere), and return the distance with its gradient in the dummy, in closed form: the caller hands that gradient to
autograd as a cotangent, which spares one graph per iteration. The target must already be zero outside the support.

Departure: the Euclidean distance is relative, |d - t|^2 / |t|^2, so that a tolerance means the same on every model;
the minimiser is unchanged. The cosine of a zero dummy is taken as 0.

>>> t = torch.tensor([1.0, 0.0]); d = torch.tensor([0.0, 2.0])
>>> [round(float(distance(d, t, None)[0]), 6) for distance in (cosine, euclidean)]
[1.0, 5.0]
>>> float(cosine(d + t, t, torch.tensor([1.0, 0.0]))[0])
0.0
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from prunella.core.trees import Tree

Distance = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """One vector of all coordinates, in the order given."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def split(flat: Tensor, like: Tree) -> Tree:
    """A flat vector as the tree it came from."""
    parts = torch.split(flat, [tensor.numel() for tensor in like.values()])
    return {name: part.view_as(tensor) for part, (name, tensor) in zip(parts, like.items(), strict=True)}


def cosine(dummy: Tensor, target: Tensor, support: Tensor | None) -> tuple[Tensor, Tensor]:
    """1 - cos(dummy, target) on the support, in [0, 2], and its gradient in ``dummy``."""
    seen = dummy if support is None else dummy * support
    own, other = seen.norm().clamp_min(torch.finfo(seen.dtype).tiny), target.norm()
    similarity = torch.dot(seen, target) / (own * other)
    # 1 - cos = |d/|d| - t/|t||^2 / 2, without the cancellation that ends a line search in float32 at about 1e-5.
    gap = seen / own - target / other
    value = torch.where(own > torch.finfo(seen.dtype).tiny, torch.dot(gap, gap) / 2, 1 - similarity)
    return value, (seen * (similarity / own) - target / other) / own


def euclidean(dummy: Tensor, target: Tensor, support: Tensor | None) -> tuple[Tensor, Tensor]:
    """|dummy - target|^2 / |target|^2 on the support, and its gradient in ``dummy``."""
    difference = (dummy if support is None else dummy * support) - target
    square = torch.dot(target, target)
    return torch.dot(difference, difference) / square, difference * (2 / square)


OBJECTIVES: dict[str, Distance] = {"cosine": cosine, "euclidean": euclidean}


def cosine_of(square: Tensor, dot: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``cosine`` from |d|^2, <d, t> and |t|^2: its value, and alpha and beta of its gradient alpha d + beta t."""
    own, other = square.sqrt().clamp_min(torch.finfo(square.dtype).tiny), target.sqrt()
    similarity = dot / (own * other)
    return 1 - similarity, similarity / own / own, -1 / (own * other)


def euclidean_of(square: Tensor, dot: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of ``euclidean``."""
    share = (2 / target).expand_as(square)
    return ((square - 2 * dot + target) / target).clamp_min(0), share, -share


COEFFICIENTS = {"cosine": cosine_of, "euclidean": euclidean_of}
