"""Magnitude pruning on the server (Han et al. 2015; PRI Table 1): the smallest |w| go, until the rate is reached.

The rate grows linearly over ``ramp_rounds`` rounds, so that the first cut does not fall on untrained weights. A weight
that is out stays out. With ``granularity`` "filter" whole filters and neurons go, by the mean |w| of their weights (Li
et al., Pruning Filters for Efficient ConvNets, ICLR 2017, has the sum, within a layer): no more than the rate, and
``prunella export`` then writes a model that is really smaller.
"""

from dataclasses import dataclass

from prunella.core.config import Count
from prunella.core.trees import Mask, Tree, map_trees
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import Granularity, Scope, keep_by_score, keep_filters
from prunella.strategies.round.strategy import MaskedMean


@dataclass(frozen=True)
class MagnitudeSettings:
    """The server removes the smallest weights."""

    ramp_rounds: Count = 5  #: rounds until the full rate
    scope: Scope = "global"  #: rank weights over all layers together, or within each
    granularity: Granularity = "weight"  #: what is removed at once: a weight, or a whole filter or neuron


class Magnitude(MaskedMean):
    """``settings`` is a ``MagnitudeSettings``."""

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        rate = self.run.rate * min(1.0, server_round / self.settings.ramp_rounds)
        # Below every |w|, so that no pruned weight returns while a kept one that happens to be zero leaves.
        ranked = map_trees(lambda s, m: s.masked_fill(~m, -1.0), magnitude(params), mask)
        select = keep_by_score if self.settings.granularity == "weight" else keep_filters
        return select(ranked, self.model.prunable, rate, self.settings.scope)
