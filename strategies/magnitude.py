"""Magnitude pruning on the server (Han et al. 2015; PRI Table 1): the smallest |w| go, until the rate is reached.

The rate grows linearly over ``ramp_rounds`` rounds, so that the first cut does not fall on untrained weights. A weight
that is out stays out. With ``granularity`` "filter" whole channels go, by the mean |w| of their weights
(``pruning.filters``).
"""

from dataclasses import dataclass

from prunella.core.config import Count
from prunella.core.trees import Mask, Tree
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import Granularity, Scope
from prunella.strategies.round.strategy import MaskedMean


@dataclass(frozen=True)
class MagnitudeSettings:
    """The server removes the smallest weights."""

    ramp_rounds: Count = 5  #: rounds until the full rate
    scope: Scope = "global"  #: rank weights over all layers together, or within each
    granularity: Granularity = "weight"  #: what goes at once: a weight, or a filter with all added into its channel


class Magnitude(MaskedMean):
    """``settings`` is a ``MagnitudeSettings``."""

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        rate = self.run.rate * min(1.0, server_round / self.settings.ramp_rounds)
        return self.model.keep(magnitude(params), rate, (self.settings.scope, self.settings.granularity), mask)
