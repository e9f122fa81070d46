"""Mask-aware averaging: the mathematics, without Flower. PRI Alg. 1 line 11.

Client i trained from w and *participates* in the mean at some coordinates, where it sends Δ_i. With weights n_i:

* ``holders`` (default): w + Σ n_i Δ_i / Σ_{i participates} n_i where at least one client participates, w elsewhere.
* ``as_printed``: Σ n_i (w + Δ_i)·[i participates] / Σ n_i. A withheld weight counts as zero, which shrinks the model.

A full mask makes both FedAvg. The sum runs in float64, one reply at a time: memory is three trees of doubles at most,
however many clients. Each coordinate's sum runs over the replies in the order of ``add``, whatever threads do.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prunella.core.parallel import each
from prunella.core.trees import Mask, Tree, require_same_names, same_trees
from prunella.wire.coding import Places
from prunella.wire.layout import Piece
from prunella.wire.sparse import SparseTree

Aggregation = Literal["holders", "as_printed"]
# Coordinates added at a time: temporaries stay in a core's second-level cache. Whole tensors of them would be fresh
# memory for every reply, whose first touch takes several times longer than the sum.
CHUNK = 2**15


class Chunk(NamedTuple):
    name: str
    at: slice


def _chunks(like: Tree) -> list[tuple[Chunk, ...]]:
    """Chunks in bundles of 16, one call of a thread each."""
    every = [Chunk(n, slice(i, i + CHUNK)) for n, t in like.items() for i in range(0, t.numel(), CHUNK)]
    return [tuple(every[i : i + 16]) for i in range(0, len(every), 16)]


def _doubles(tensor: Tensor) -> Tensor:
    """Flat zeros, from NumPy: it asks for large pages."""
    return torch.from_numpy(np.zeros(tensor.numel()))


def _flat(tree: Tree) -> Tree:
    return {name: tensor.detach().reshape(-1) for name, tensor in tree.items()}


class MaskedSum:
    """Running sums of one round. ``add`` and ``add_sparse`` in a fixed order give the same bits every time.

    Consecutive replies that share the same coordinates, which is every reply of a scheme without withholding, are added
    up over these alone, and only their sum moves into the dense one. Consecutive replies that participate at the same
    coordinates have their weights added up first. The masks of the last reply are kept, not copied.
    """

    def __init__(self, like: Tree) -> None:
        self.total = {name: _doubles(t) for name, t in like.items()}
        self._weight_at = {name: _doubles(t) for name, t in like.items()}
        self._chunks = _chunks(like)
        self._participation: Mask | None = None
        self._pending = 0.0
        self._sum: SparseTree | None = None
        self.weight = 0.0

    def add(self, update: Tree, participation: Mask, weight: float) -> None:
        """A dense update. What lies outside ``participation`` does not count."""
        require_same_names(self.total, update, participation)
        values, mask = _flat(update), _flat(participation)

        def add_bundle(bundle: tuple[Chunk, ...]) -> None:
            for name, at in bundle:
                self.total[name][at].add_(torch.where(mask[name][at], values[name][at], 0.0), alpha=weight)

        each(add_bundle, self._chunks)
        self._participate(participation, weight)

    def add_sparse(self, update: SparseTree, participation: Mask, weight: float) -> None:
        """An update as it came. The client participates at all its coordinates; the caller has checked that."""
        require_same_names(self.total, update.mask, update.values, participation)
        if self._sum is None or not same_trees(self._sum.mask, update.mask):
            self._flush_sum()
            self._sum = SparseTree(update.mask, {name: _doubles(t) for name, t in update.values.items()})
        sums = self._sum.values

        def add_bundle(bundle: tuple[Chunk, ...]) -> None:
            for name, at in bundle:
                sums[name][at].add_(update.values[name][at], alpha=weight)

        each(add_bundle, _chunks(update.values))
        self._participate(participation, weight)

    def _participate(self, participation: Mask, weight: float) -> None:
        if self._participation is None or not same_trees(self._participation, participation):
            self._flush_weights()
            self._participation = participation
        self._pending += weight
        self.weight += weight

    def _flush_sum(self) -> None:
        """Add the sum over the last replies' coordinates to the dense one."""
        last, self._sum = self._sum, None
        if last is None:
            return
        total = {name: tensor.numpy() for name, tensor in self.total.items()}
        sums = {name: tensor.numpy() for name, tensor in last.values.items()}

        def move(piece: Piece, places: Places | slice, at: slice) -> None:
            piece.of(total)[places] += sums[piece.name][at]

        last.visit(move)

    def _flush_weights(self) -> None:
        """Add the weight of the last replies where they participate."""
        if self._participation is None:
            return
        participation, weight = _flat(self._participation), self._pending

        def add_bundle(bundle: tuple[Chunk, ...]) -> None:
            for name, at in bundle:
                self._weight_at[name][at].add_(participation[name][at], alpha=weight)

        each(add_bundle, self._chunks)
        self._pending = 0.0

    def result(self, previous: Tree, aggregation: Aggregation) -> Tree:
        """The next global weights, in the dtype of ``previous``; ``previous`` itself if there was no reply."""
        if self.weight <= 0:
            return previous
        self._flush_sum()
        self._flush_weights()
        combine = self._holders if aggregation == "holders" else self._as_printed
        old = {name: tensor.detach().contiguous() for name, tensor in previous.items()}
        new = {name: torch.empty_like(tensor) for name, tensor in old.items()}
        flat, out = _flat(old), _flat(new)

        def combine_bundle(bundle: tuple[Chunk, ...]) -> None:
            for name, at in bundle:
                out[name][at] = combine(flat[name][at].double(), self.total[name][at], self._weight_at[name][at])

        each(combine_bundle, self._chunks)
        return new

    def _holders(self, w: Tensor, total: Tensor, weight_at: Tensor) -> Tensor:
        return torch.where(weight_at > 0, w + total / weight_at.clamp(min=torch.finfo(torch.float64).tiny), w)

    def _as_printed(self, w: Tensor, total: Tensor, weight_at: Tensor) -> Tensor:
        return (total + weight_at * w) / self.weight
