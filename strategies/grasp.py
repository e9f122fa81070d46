"""GraSP on the server (Wang et al., ICLR 2020; PRI Table 1): one shot, before training, by −w ⊙ (H g) on one batch.

Departure: the batch is public examples (``tasks.public``), not training data. Logits are divided by ``temperature`` as
in the authors' program, 200 there; 1 is the loss as it is trained. Scores are in ``pruning.grasp``.
"""

from dataclasses import dataclass

from flwr.serverapp import Grid

from prunella.core.config import Count, Positive
from prunella.core.trees import Mask, Tree, scale
from prunella.pruning.grasp import grasp
from prunella.pruning.selection import Granularity, Scope
from prunella.strategies.round.public_loss import loss_on, public_batch
from prunella.strategies.round.roster import Member
from prunella.strategies.round.strategy import MaskedMean


@dataclass(frozen=True)
class GraSPSettings:
    """Prunes once, before training, and keeps the weights that preserve the gradient's norm.

    The paper has ten examples of each class and ranks globally.
    """

    batch: Count = 100  #: public examples in the one batch
    temperature: Positive = 200.0  #: that logits are divided by; 1 is the loss as it is trained
    scope: Scope = "global"  #: rank weights over all layers together, or within each
    granularity: Granularity = "weight"  #: what goes at once: a weight, or a filter with all added into its channel


class GraSP(MaskedMean):
    """``settings`` is a ``GraSPSettings``."""

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        batch = public_batch(self.model, self.settings.batch, self.run.seed)
        scores = grasp(params, loss_on(self.model, batch, self.settings.temperature))
        how = (self.settings.scope, self.settings.granularity)
        return self.model.keep(scale(scores, -1.0), self.run.rate, how)
