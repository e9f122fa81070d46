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

from prunella.core.parallel import each
from prunella.core.trees import Mask, Tree, require_same_names
from prunella.wire import layout as wire_layout
from prunella.wire.coding import Places
from prunella.wire.kept import Kept

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
    """Running sums of one round. ``add`` and ``add_kept`` in a fixed order give the same bits every time.

    Replies in a row that share the same coordinates, which is every reply of a scheme without withholding, are added up
    over these alone, and only their sum moves into the dense one. Replies in a row that speak for the same coordinates
    have their weights added up first. The masks of the last reply are kept, not copied.
    """

    def __init__(self, like: Tree) -> None:
        self.total = {name: _doubles(t) for name, t in like.items()}
        self._speaking = {name: _doubles(t) for name, t in like.items()}
        self._pieces = _pieces(like)
        self._spoken: Mask | None = None
        self._pending = 0.0
        self._sum: Kept | None = None
        self.weight = 0.0
        self.replies = 0

    def add(self, update: Tree, spoken: Mask, weight: float) -> None:
        """A dense update. What lies outside ``spoken`` does not count."""
        require_same_names(self.total, update, spoken)
        values, mask = _flat(update), _flat(spoken)

        def add_bundle(bundle: tuple[Piece, ...]) -> None:
            for name, at in bundle:
                self.total[name][at].add_(torch.where(mask[name][at], values[name][at], 0.0), alpha=weight)

        each(add_bundle, self._pieces)
        self._speak(spoken, weight)

    def add_kept(self, kept: Kept, spoken: Mask, weight: float) -> None:
        """An update as it came. Its coordinates are all ``spoken``; the caller has checked that."""
        require_same_names(self.total, kept.mask, kept.values, spoken)
        if self._sum is None or not _same(self._sum.mask, kept.mask):
            self._flush_sum()
            self._sum = Kept(kept.mask, {name: _doubles(t) for name, t in kept.values.items()})
        sums = self._sum.values

        def add_bundle(bundle: tuple[Piece, ...]) -> None:
            for name, at in bundle:
                sums[name][at].add_(kept.values[name][at], alpha=weight)

        each(add_bundle, _pieces(kept.values))
        self._speak(spoken, weight)

    def _speak(self, spoken: Mask, weight: float) -> None:
        if self._spoken is None or not _same(self._spoken, spoken):
            self._flush_weights()
            self._spoken = spoken
        self._pending += weight
        self.weight += weight
        self.replies += 1

    def _flush_sum(self) -> None:
        """The sum over the last replies' coordinates, to where these are."""
        last, self._sum = self._sum, None
        if last is None:
            return
        total = {name: tensor.numpy() for name, tensor in self.total.items()}
        sums = {name: tensor.numpy() for name, tensor in last.values.items()}

        def move(piece: wire_layout.Piece, places: Places | slice, at: slice) -> None:
            piece.of(total)[places] += sums[piece.name][at]

        last.visit(move)

    def _flush_weights(self) -> None:
        """The weight of the last replies, where they spoke."""
        if self._spoken is None:
            return
        spoken, weight = _flat(self._spoken), self._pending

        def add_bundle(bundle: tuple[Piece, ...]) -> None:
            for name, at in bundle:
                self._speaking[name][at].add_(spoken[name][at], alpha=weight)

        each(add_bundle, self._pieces)
        self._pending = 0.0

    def result(self, previous: Tree, aggregation: Aggregation) -> Tree:
        """The next global weights, in the dtype of ``previous``; ``previous`` itself when nobody replied."""
        if self.weight <= 0:
            return previous
        self._flush_sum()
        self._flush_weights()
        combine = self._holders if aggregation == "holders" else self._as_printed
        old = {name: tensor.detach().contiguous() for name, tensor in previous.items()}
        new = {name: torch.empty_like(tensor) for name, tensor in old.items()}
        flat, out = _flat(old), _flat(new)

        def combine_bundle(bundle: tuple[Piece, ...]) -> None:
            for name, at in bundle:
                out[name][at] = combine(flat[name][at].double(), self.total[name][at], self._speaking[name][at])

        each(combine_bundle, self._pieces)
        return new

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
