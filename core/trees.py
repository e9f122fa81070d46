"""Named trees of tensors, the one currency for weights, updates, gradients, scores and masks.

A ``Tree`` maps parameter names to tensors; a ``Mask`` is a bool tree with the same names, True where a coordinate is
kept. Every function returns a new tree and leaves its inputs alone; unequal names raise ``KeyMismatch``.

>>> w = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor(3.0)}
>>> m = {"a": torch.tensor([True, False]), "b": torch.tensor(True)}
>>> apply_mask(w, m)["a"].tolist(), density(m)
([1.0, 0.0], 0.6666666666666666)
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from prunella.core.errors import KeyMismatch

Tree = dict[str, Tensor]
Mask = dict[str, Tensor]
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def require_same_names(*trees: Mapping[str, object]) -> None:
    """Raise ``KeyMismatch`` naming the first few names that are not in all trees (names only, never values)."""
    first = trees[0].keys()
    for other in trees[1:]:
        if other.keys() != first:
            difference = sorted(first ^ other.keys())
            raise KeyMismatch(f"trees differ in {len(difference)} names, first: {', '.join(difference[:3])}")


def map_trees(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """``function`` applied name by name, in the order of the first tree."""
    require_same_names(*trees)
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def apply_mask(tree: Tree, mask: Mask) -> Tree:
    """The tree with every coordinate outside the mask set to zero, also where it was NaN."""
    return map_trees(_inside, tree, mask)


def _inside(tensor: Tensor, kept: Tensor) -> Tensor:
    """``torch.where(kept, tensor, 0)``; on the CPU in a fifth of its time, bits times 0 or 1, but for gradients."""
    bits = _BITS.get(tensor.dtype)
    plain = bits is not None and tensor.device.type == "cpu" and not tensor.requires_grad
    if bits is None or not plain or kept.dtype != torch.bool or kept.shape != tensor.shape:
        return torch.where(kept, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))
    return kept.to(bits).mul_(tensor.view(bits)).view(tensor.dtype)


def add(a: Tree, b: Tree) -> Tree:
    return map_trees(torch.add, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    return map_trees(torch.sub, a, b)


def scale(tree: Tree, factor: float) -> Tree:
    return map_trees(lambda t: t * factor, tree)


def where(mask: Mask, a: Tree, b: Tree) -> Tree:
    """``a`` inside the mask, ``b`` outside."""
    return map_trees(torch.where, mask, a, b)


def zeros_like(tree: Tree) -> Tree:
    return map_trees(torch.zeros_like, tree)


def full_mask(tree: Tree) -> Mask:
    return map_trees(lambda t: torch.ones_like(t, dtype=torch.bool), tree)


def invert(mask: Mask) -> Mask:
    return map_trees(torch.logical_not, mask)


def intersect(a: Mask, b: Mask) -> Mask:
    return map_trees(torch.logical_and, a, b)


def same_trees(a: Tree, b: Tree) -> bool:
    """Whether two trees with the same names, or masks, hold the same."""
    return a is b or all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)


def size(tree: Tree) -> int:
    """Number of coordinates."""
    return sum(t.numel() for t in tree.values())


def _nonzero(tensor: Tensor) -> int:
    # NumPy on a processor: it uses one thread. PyTorch's wait for each other at the end of every call, which on a busy
    # machine takes many times longer than looking at a million flags.
    on_cpu = tensor.device.type == "cpu" and tensor.dtype == torch.bool
    return int(np.count_nonzero(tensor.detach().numpy()) if on_cpu else torch.count_nonzero(tensor))


def _extremes(tensor: Tensor) -> tuple[float, float]:
    if tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16:  # NumPy as above; it has no bfloat16
        values = tensor.detach().numpy()
        return float(values.min()), float(values.max())
    low, high = tensor.aminmax()
    return float(low), float(high)


def count(mask: Mask) -> int:
    """Number of kept coordinates."""
    return sum(_nonzero(m) for m in mask.values())


def density(mask: Mask) -> float:
    """Share of kept coordinates in [0, 1]; 1 for an empty tree."""
    total = size(mask)
    return count(mask) / total if total else 1.0


def l2(tree: Tree) -> Tensor:
    """Euclidean norm over all coordinates, 0-d float64."""
    squares = [t.detach().double().square().sum() for t in tree.values()]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def all_finite(tree: Tree) -> bool:
    """No NaN and no infinity: both show in the extremes, which need no temporary tensor."""
    return all(all(map(math.isfinite, _extremes(t))) for t in tree.values() if t.numel())


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    return map_trees(lambda t: t.to(device), tree)


def take(tree: Tree, at: Tree) -> Tree:
    """What lies at the places ``at``: positions in the flattened tensors, int64, by name, in the shape of what is
    taken. Tensors without a place are taken whole.

    >>> take({"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, {"w": torch.tensor([[0], [2]])})["w"].tolist()
    [[1.0], [3.0]]
    """
    return {name: tensor.reshape(-1)[at[name]] if name in at else tensor for name, tensor in tree.items()}


def put(whole: Tree, part: Tree, at: Tree) -> Tree:
    """``whole`` with ``part`` at the places: ``put(tree, take(tree, at), at)`` is ``tree``."""
    return {name: _put(tensor, part[name], at[name]) if name in at else part[name] for name, tensor in whole.items()}


def _put(tensor: Tensor, part: Tensor, at: Tensor) -> Tensor:
    return tensor.reshape(-1).scatter(0, at.reshape(-1), part.reshape(-1)).reshape(tensor.shape)
