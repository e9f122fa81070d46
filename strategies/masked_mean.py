"""Mask-aware averaging: the mathematics, without Flower. PRI Alg. 1 line 11.

Client i trained from w and sends Δ_i on the coordinates it *speaks* for. With weights n_i:

* ``holders`` (default): w + Σ n_i Δ_i / Σ_{i speaks} n_i where somebody speaks, w elsewhere.
* ``as_printed``: Σ n_i (w + Δ_i)·[i speaks] / Σ n_i. A withheld weight counts as zero, which shrinks the model.

A full mask makes both FedAvg. The sum runs in float64, one reply at a time: memory is two trees, however many clients.
"""

from collections.abc import Sequence
from typing import Literal

import torch

from core.trees import Mask, Tree, map_trees, require_same_names

Aggregation = Literal["holders", "as_printed"]


class MaskedSum:
    """Running sums of one round. ``add`` in a fixed order gives the same bits every time."""

    def __init__(self, like: Tree) -> None:
        self.total = map_trees(lambda t: torch.zeros(t.shape, dtype=torch.float64), like)
        self.speaking = map_trees(lambda t: torch.zeros(t.shape, dtype=torch.float64), like)
        self.weight = 0.0
        self.replies = 0

    def add(self, update: Tree, spoken: Mask, weight: float) -> None:
        require_same_names(self.total, update, spoken)
        for name, total in self.total.items():
            total.add_(torch.where(spoken[name], update[name], 0.0), alpha=weight)
            self.speaking[name].add_(spoken[name], alpha=weight)
        self.weight += weight
        self.replies += 1

    def result(self, previous: Tree, aggregation: Aggregation) -> Tree:
        """The next global weights, in the dtype of ``previous``; ``previous`` itself when nobody replied."""
        if self.weight <= 0:
            return previous
        combine = self._holders if aggregation == "holders" else self._as_printed
        return map_trees(lambda w, t, s: combine(w.double(), t, s).to(w.dtype), previous, self.total, self.speaking)

    def _holders(self, w: torch.Tensor, total: torch.Tensor, speaking: torch.Tensor) -> torch.Tensor:
        return torch.where(speaking > 0, w + total / speaking.clamp(min=torch.finfo(torch.float64).tiny), w)

    def _as_printed(self, w: torch.Tensor, total: torch.Tensor, speaking: torch.Tensor) -> torch.Tensor:
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
