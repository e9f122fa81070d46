"""Exact top-k selection, shared by pruning and by the defenses that rank coordinates.

Exactly ``count`` coordinates are chosen, equal scores go to the lowest index in row-major order (``torch.topk`` leaves
that open), NaN raises. One selection of the k-th value and one pass: O(n), no sort.

>>> keep_largest(torch.tensor([1.0, 3.0, 3.0, 2.0]), 1).tolist()
[False, True, False, False]
>>> keep_smallest(torch.tensor([1.0, 3.0, 1.0, 2.0]), 2).tolist()
[True, False, True, False]
>>> part_of(0.07, 100, up=True), part_of(0.75, 10), part_of(0.05, 10, up=True)
(7, 7, 1)
"""

import math

import torch
from torch import Tensor


def part_of(share: float, total: int, *, up: bool = False) -> int:
    """``share`` of ``total`` coordinates, rounded down, or up with ``up``; a float's rounding error is ignored."""
    exact = round(share * total, 9)
    return min(total, math.ceil(exact) if up else math.floor(exact))


def _check(scores: Tensor, count: int) -> None:
    if torch.isnan(scores).any():
        raise ValueError(f"scores of shape {tuple(scores.shape)} contain NaN")
    if not 0 <= count <= scores.numel():
        raise ValueError(f"cannot choose {count} of {scores.numel()} coordinates")


def _keep(scores: Tensor, count: int, rank: int, larger: bool) -> Tensor:
    """``count`` coordinates on one side of the ``rank``-th smallest value, ties to the lowest index."""
    flat = scores.reshape(-1)
    threshold = flat.kthvalue(rank).values
    clear = flat > threshold if larger else flat < threshold
    tied = flat == threshold
    room = count - int(torch.count_nonzero(clear))
    return (clear | (tied & (tied.cumsum(0) <= room))).reshape(scores.shape)


def keep_largest(scores: Tensor, count: int) -> Tensor:
    """A bool tensor of the shape of ``scores`` with exactly ``count`` True, at the largest scores."""
    _check(scores, count)
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    return _keep(scores, count, scores.numel() - count + 1, larger=True)


def keep_smallest(scores: Tensor, count: int) -> Tensor:
    """A bool tensor of the shape of ``scores`` with exactly ``count`` True, at the smallest scores."""
    _check(scores, count)
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    return _keep(scores, count, count, larger=False)
