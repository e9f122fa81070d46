"""Random pruning (PRI Table 1): a uniform mask drawn once from the run's seed, before any training.

It tells nothing about anybody's data, which makes it the baseline for what a mask itself leaks.
"""

from dataclasses import dataclass

from flwr.serverapp import Grid

from core.randomness import stream
from core.trees import Mask, Tree
from pruning.scores import random
from pruning.selection import Scope, keep_by_score
from strategies.masked import MaskedMean
from strategies.roster import Member


@dataclass(frozen=True)
class Draw:
    """``scope``: the rate holds over all layers together, or within each."""

    scope: Scope = "layer"


class Random(MaskedMean):
    """``settings`` is a ``Draw``."""

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        scores = random(params, stream(self.run.seed, purpose="random-mask"))
        return keep_by_score(scores, self.model.prunable, self.run.rate, self.settings.scope)
