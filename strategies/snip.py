"""SNIP on the server (Lee et al., ICLR 2019; PRI Table 1): one shot, before training, by |g ⊙ w| on one batch.

Departure: the paper's batch is training data. Here it is public examples the server has (``tasks.public``), since a
client's would make the mask tell of it. Scores are in ``pruning.snip``.
"""

from dataclasses import dataclass

from flwr.serverapp import Grid

from prunella.core.config import Count
from prunella.core.trees import Mask, Tree
from prunella.pruning.selection import Granularity, Scope
from prunella.pruning.snip import snip
from prunella.strategies.round.public_loss import loss_on, public_batch
from prunella.strategies.round.roster import Member
from prunella.strategies.round.strategy import MaskedMean


@dataclass(frozen=True)
class SnipSettings:
    """Prunes once, before training, by the sensitivity of the loss to each weight.

    The paper has a batch of 128 on CIFAR and ranks globally.
    """

    batch: Count = 128  #: public examples in the one batch
    scope: Scope = "global"  #: rank weights over all layers together, or within each
    granularity: Granularity = "weight"  #: what goes at once: a weight, or a filter with all added into its channel


class Snip(MaskedMean):
    """``settings`` is a ``SnipSettings``."""

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        batch = public_batch(self.model, self.settings.batch, self.run.seed)
        scores = snip(params, loss_on(self.model, batch))
        return self.model.keep(scores, self.run.rate, (self.settings.scope, self.settings.granularity))
