"""Mask-aware averaging: the mathematics, without Flower. PRI Alg. 1 line 11.

Client i trained from w and sends Δ_i on the coordinates it *speaks* for. With weights n_i:

* ``holders`` (default): w + Σ n_i Δ_i / Σ_{i speaks} n_i where somebody speaks, w elsewhere.
* ``as_printed``: Σ n_i (w + Δ_i)·[i speaks] / Σ n_i. A withheld weight counts as zero, which shrinks the model.

A full mask makes both FedAvg. The sum runs in float64, one reply at a time: memory is two trees of doubles and one
mask, however many clients. Each coordinate's sum runs over the replies in the order of ``add``, whatever threads do.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.parallel import each
from core.trees import Mask, Tree, map_trees, require_same_names

Aggregation = Literal["holders", "as_printed"]
# Coordinates added at a time: temporaries stay in a core's second-level cache. Whole tensors of them would be fresh
# memory for every reply, whose first touch takes several times longer than the sum.
PIECE = 2**15


class Piece(NamedTuple):
    name: str
    at: slice


def _pieces(like: Tree) -> list[tuple[Piece, ...]]:
    """Pieces in bundles of 16, one call of a thread each."""
    all_pieces = [Piece(n, slice(i, i + PIECE)) for n, t in like.items() for i in range(0, t.numel(), PIECE)]
    return [tuple(all_pieces[i : i + 16]) for i in range(0, len(all_pieces), 16)]


def _doubles(tensor: Tensor) -> Tensor:
    """Flat zeros, from NumPy: it asks for large pages."""
    return torch.from_numpy(np.zeros(tensor.numel()))


def _flat(tree: Tree) -> Tree:
    return {name: tensor.detach().reshape(-1) for name, tensor in tree.items()}


def _same(a: Mask, b: Mask) -> bool:
    return all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)


class MaskedSum:
    """Running sums of one round. ``add`` in a fixed order gives the same bits every time.

    Replies in a row that speak for the same coordinates, which is every reply of a scheme without withholding, have
    their weights added up first. The mask of the last reply is kept, not copied.
    """

    def __init__(self, like: Tree) -> None:
        self.total = {name: _doubles(t) for name, t in like.items()}
        self._speaking = {name: _doubles(t) for name, t in like.items()}
        self._pieces = _pieces(like)
        self._spoken: Mask | None = None
        self._pending = 0.0
        self.weight = 0.0
        self.replies = 0

    def add(self, update: Tree, spoken: Mask, weight: float) -> None:
        require_same_names(self.total, update, spoken)
        values, mask = _flat(update), _flat(spoken)

        def add_bundle(bundle: tuple[Piece, ...]) -> None:
            for name, at in bundle:
                self.total[name][at].add_(torch.where(mask[name][at], values[name][at], 0.0).double(), alpha=weight)

        each(add_bundle, self._pieces)
        if self._spoken is None or not _same(self._spoken, mask):
            self._flush()
            self._spoken = mask
        self._pending += weight
        self.weight += weight
        self.replies += 1

    def _flush(self) -> None:
        """The weight of the last mask's replies, where they spoke."""
        spoken, weight = self._spoken, self._pending

        def add_bundle(bundle: tuple[Piece, ...]) -> None:
            for name, at in bundle:
                if spoken is not None:
                    self._speaking[name][at].add_(spoken[name][at].double(), alpha=weight)

        each(add_bundle, self._pieces if spoken is not None else [])
        self._pending = 0.0

    def result(self, previous: Tree, aggregation: Aggregation) -> Tree:
        """The next global weights, in the dtype of ``previous``; ``previous`` itself when nobody replied."""
        if self.weight <= 0:
            return previous
        self._flush()
        combine = self._holders if aggregation == "holders" else self._as_printed

        def next_weights(w: Tensor, total: Tensor, speaking: Tensor) -> Tensor:
            return combine(w.double(), total.reshape(w.shape), speaking.reshape(w.shape)).to(w.dtype)

        return map_trees(next_weights, previous, self.total, self._speaking)

    def _holders(self, w: Tensor, total: Tensor, speaking: Tensor) -> Tensor:
        return torch.where(speaking > 0, w + total / speaking.clamp(min=torch.finfo(torch.float64).tiny), w)

    def _as_printed(self, w: Tensor, total: Tensor, speaking: Tensor) -> Tensor:
        return (total + speaking * w) / self.weight


def masked_mean(
    updates: Sequence[Tree], spoken: Sequence[Mask], weights: Sequence[float], previous: Tree, aggregation: Aggregation
) -> Tree:
    """The mean of several updates at once.

    >>> one = {"w": torch.tensor([1.0, 1.0])}
    >>> masked_mean([one], [{"w": torch.tensor([True, False])}], [5], {"w": torch.tensor([2.0, 2.0])}, "holders")
    {'w': tensor([3., 2.])}
    """
    total = MaskedSum(previous)
    for update, mask, weight in zip(updates, spoken, weights, strict=True):
        total.add(update, mask, weight)
    return total.result(previous, aggregation)
