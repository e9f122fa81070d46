"""Exact top-k selection, shared by pruning and by the defenses that rank coordinates.

Exactly ``count`` coordinates are chosen, equal scores go to the lowest index in row-major order (``torch.topk`` leaves
that open), NaN raises. O(n), no sort: the k-th value of float32 on the CPU comes from a histogram of the upper 16 bits
and a partition of the one bucket it lies in (IEEE floats of one sign are ordered like their bits), elsewhere from
``kthvalue``. Two ranks share one histogram.

>>> keep_largest(torch.tensor([1.0, 3.0, 3.0, 2.0]), 1).tolist()
[False, True, False, False]
>>> keep_smallest(torch.tensor([1.0, 3.0, 1.0, 2.0]), 2).tolist()
[True, False, True, False]
>>> keep_between(torch.tensor([1.0, 3.0, 1.0, 2.0, 3.0]), 1, 1).tolist()
[False, False, True, True, True]
>>> part_of(0.07, 100, up=True), part_of(0.75, 10), part_of(0.05, 10, up=True)
(7, 7, 1)
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALL = 4096  # below, one partition costs less than a histogram of 65,536 buckets


def part_of(share: float, total: int, *, up: bool = False) -> int:
    """``share`` of ``total`` coordinates, rounded down, or up with ``up``; a float's rounding error is ignored."""
    exact = round(share * total, 9)
    return min(total, math.ceil(exact) if up else math.floor(exact))


def _check(scores: Tensor, *counts: int) -> None:
    # A sum of any NaN is NaN, and costs a quarter of isnan; a sum of infinities may be NaN too, so look again then.
    if bool(torch.isnan(scores.sum())) and bool(torch.isnan(scores).any()):
        raise ValueError(f"scores of shape {tuple(scores.shape)} contain NaN")
    if min(counts) < 0 or sum(counts) > scores.numel():
        raise ValueError(f"cannot choose {sum(counts)} of {scores.numel()} coordinates")


def _ordered_bits(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """uint32 in the order of the float32 ``values``; -0.0 becomes 0.0 first, since the two are equal."""
    least = float(values.min()) if values.size else 0.0
    bits: np.ndarray[Any, Any] = (values if least > 0 else values + np.float32(0)).view(np.uint32)
    if least >= 0:
        return bits
    return bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))


def _kth_by_bits(values: "np.ndarray[Any, Any]", ranks: Sequence[int]) -> list[float]:
    bits = _ordered_bits(values)
    high = bits.view(np.uint16)[1::2] if np.little_endian else bits.view(np.uint16)[::2]
    below = np.cumsum(np.bincount(high, minlength=1 << 16))
    found = []
    for rank in ranks:
        bucket = int(np.searchsorted(below, rank))
        inside = rank - 1 - (int(below[bucket - 1]) if bucket else 0)
        members = values[high == bucket]
        found.append(float(np.partition(members, inside)[inside]))
    return found


def kth_values(flat: Tensor, ranks: Sequence[int]) -> list[float]:
    """The ``rank``-th smallest values (from 1) of a 1-d tensor without NaN."""
    if flat.device.type == "cpu" and flat.dtype == torch.float32 and flat.numel() > SMALL:
        return _kth_by_bits(flat.detach().contiguous().numpy(), ranks)
    if flat.device.type == "cpu" and flat.dtype == torch.float64:  # half the time of kthvalue on six million
        values = flat.detach().contiguous().numpy()
        return [float(np.partition(values, rank - 1)[rank - 1]) for rank in ranks]
    return [float(flat.kthvalue(rank).values) for rank in ranks]


def _first(tied: Tensor, count: int, after: int = 0) -> Tensor:
    """Indices of ``count`` True of a 1-d mask in order, leaving out the ``after`` first of them."""
    return torch.nonzero(tied).reshape(-1)[after : after + count]


def _keep(scores: Tensor, count: int, rank: int, larger: bool) -> Tensor:
    """``count`` coordinates on one side of the ``rank``-th smallest value, ties to the lowest index."""
    flat = scores.reshape(-1)
    (threshold,) = kth_values(flat, [rank])
    kept = flat > threshold if larger else flat < threshold
    kept[_first(flat == threshold, count - int(torch.count_nonzero(kept)))] = True
    return kept.reshape(scores.shape)


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


def keep_between(scores: Tensor, top: int, bottom: int) -> Tensor:
    """True everywhere but at the ``top`` largest, and of the rest at the ``bottom`` smallest scores."""
    _check(scores, top, bottom)
    total = scores.numel()
    if top + bottom == total or not (top and bottom):
        largest = keep_largest(scores, top)
        return ~largest if not bottom else (~keep_smallest(scores, bottom) if not top else torch.zeros_like(largest))
    flat = scores.reshape(-1)
    low, high = kth_values(flat, [bottom, total - top + 1])
    kept = (flat >= low) & (flat <= high)  # what is tied with a threshold is settled below
    at_top, over = flat == high, flat > high
    first = top - int(torch.count_nonzero(over))
    kept[_first(at_top, first)] = False
    under = bottom - int(torch.count_nonzero(flat < low))
    kept[_first(flat == low, under, first if low == high else 0)] = False
    return kept.reshape(scores.shape)


def keep_among(scores: Tensor, among: Tensor, top: int, count: int) -> Tensor:
    """True at the ``count`` largest scores of ``among``, or all it has, once the ``top`` largest of all are left out.

    Scores must be finite and not negative: those out of question are multiplied by zero and ranked with the others,
    which is faster than to gather the others.

    >>> keep_among(torch.tensor([9.0, 5.0, 5.0, 1.0]), torch.tensor([True, False, True, True]), 1, 1).tolist()
    [False, False, True, False]
    """
    _check(scores, top)
    least, most = (float(end) for end in torch.aminmax(scores)) if scores.numel() else (0.0, 0.0)
    if least < 0 or most == math.inf:
        raise ValueError(f"scores of shape {tuple(scores.shape)} must be finite and not negative")
    flat, allowed = scores.reshape(-1), among.reshape(-1)
    if top:
        (threshold,) = kth_values(flat, [flat.numel() - top + 1])
        over = flat > threshold
        allowed = allowed & ~over
        allowed[_first(flat == threshold, top - int(torch.count_nonzero(over)))] = False
    wanted = min(count, int(torch.count_nonzero(allowed)))
    if not wanted:
        return torch.zeros_like(among)
    asked = flat * allowed
    (threshold,) = kth_values(asked, [flat.numel() - wanted + 1])
    kept = asked > threshold
    kept[_first((asked == threshold) & allowed, wanted - int(torch.count_nonzero(kept)))] = True
    return kept.reshape(scores.shape)
