"""Random pruning (PRI Table 1): uniform scores drawn once from the run's seed, before any training.

The mask tells nothing about anybody's data, which makes it the baseline for what a mask itself leaks. With
``ramp_rounds`` the rate grows linearly to its full value over as many rounds; the masks are nested, being cuts through
the same scores.
"""

from dataclasses import dataclass
from typing import Annotated

from flwr.serverapp import Grid
from pydantic import Field

from prunella.core.randomness import stream
from prunella.core.trees import Mask, Tree
from prunella.pruning.scores import random
from prunella.pruning.selection import Granularity, Scope
from prunella.strategies.round.roster import Member
from prunella.strategies.round.strategy import MaskedMean


@dataclass(frozen=True)
class RandomSettings:
    """A random mask, drawn before training."""

    ramp_rounds: Annotated[int, Field(ge=0)] = 0  #: rounds until the full rate; 0: all before the first
    scope: Scope = "layer"  #: the rate holds over all layers together, or within each
    granularity: Granularity = "weight"  #: what goes at once: a weight, or a filter with all added into its channel


class Random(MaskedMean):
    """``settings`` is a ``RandomSettings``."""

    def _cut(self, params: Tree, rounds_done: int) -> Mask:
        ramp = self.settings.ramp_rounds
        rate = self.run.rate * (min(1.0, rounds_done / ramp) if ramp else 1.0)
        scores = random(params, stream(self.run.seed, purpose="random-mask"))
        return self.model.keep(scores, rate, (self.settings.scope, self.settings.granularity))

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        return self._cut(params, 0)

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        return self._cut(params, server_round) if self.settings.ramp_rounds else mask
