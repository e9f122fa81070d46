"""SparsyFed: sparse training through powers of the weights, and every client prunes what it sends.

Guastella et al., ICLR 2025 (arXiv 2504.05153). In a round a client starts from the global weights w, writes them as
w = θ |θ|^(β−1) (``pruning.powerprop``), trains θ by SGD, and then keeps the largest |w| only, as many as the rate
leaves, over all layers together. Weights that are zero do not move, so it trains inside the mask it was sent. The
server takes the mean over all clients of the round, where what a client pruned counts as zero, and the next round's
mask is what any of them kept. Under a robust rule such a zero is a value like the others, which outvote it. β is the
only new setting.

What this costs in privacy: clients' masks leave outside the defenses, as FedDST's do, and under the same rule: a run
with it is refused by a site that requires an update defense. The update is one of w, which a known power has scaled:
audits take that out again before they attack (``Power.undone``), exactly for one local step without momentum.

What is left out: **activation pruning** (the paper's backward pass keeps of each layer's input as large a share as
that layer keeps weights). It saves memory and multiplications with sparse kernels, which PyTorch's layers do not have,
and every defense of single examples and every attack here would need the same approximate gradient.

Departures: server and wire have w and not θ, so the mean is taken of w; clients return to θ. Where a defense withheld
a value, the mean is over those who sent one. The method was read from the abstract, pages about the paper and a public
copy of its program, whose choices the ranking over all layers and the mean with zeros are; its algorithm was not at
hand in print.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from prunella.core.config import Run
from prunella.core.trees import Mask, Tree, apply_mask, intersect, map_trees, where
from prunella.pruning.powerprop import Power
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import Scope, below, keep_by_score
from prunella.strategies.round.client_part import ClientPart
from prunella.strategies.round.plan import LocalPlan, RoundContext
from prunella.strategies.round.replies import Contribution, Expected
from prunella.strategies.round.robust import NONE
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.wire.sparse import SparseTree


@dataclass(frozen=True)
class SparsyFedSettings:
    """Clients train through a power of the weights, and each prunes its own before it sends them."""

    #: of the power: 1 is plain training, more moves large weights more than small ones
    beta: Annotated[float, Field(ge=1, le=8)] = 1.25
    scope: Scope = "global"  #: rank weights over all layers together, or within each


def smaller(params: Tree, mask: Mask, prunable: frozenset[str], rate: float, scope: Scope) -> Mask:
    """The largest weights inside the mask, as many as the rate leaves."""
    return intersect(keep_by_score(below(magnitude(params), mask), prunable, rate, scope), mask)


def power(settings: SparsyFedSettings, prunable: frozenset[str]) -> Power | None:
    """None where it is plain training."""
    return Power(settings.beta, prunable) if settings.beta != 1 else None


def plan(context: RoundContext) -> LocalPlan:
    """The client's half: the mask moves after the last step."""

    def prune(params: Tree, squares: Tree, mask: Mask) -> tuple[Tree, Mask]:
        kept = smaller(params, mask, context.prunable, context.run.rate, context.settings.scope)
        return apply_mask(params, kept), kept

    return LocalPlan(readjust=prune, before=context.run.local_steps, power=power(context.settings, context.prunable))


def undone(settings: SparsyFedSettings, start: Tree, update: Tree, prunable: frozenset[str]) -> Tree:
    """An update as an attack on plain SGD takes it."""
    scaled = power(settings, prunable)
    return update if scaled is None else scaled.undone(start, update)


CLIENT = ClientPart(plan=plan, undone=undone)


class SparsyFed(MaskedMean):
    """``settings`` is a ``SparsyFedSettings``."""

    def __init__(self, run: Run, model: ServerModel, settings: SparsyFedSettings) -> None:
        super().__init__(run, model, settings)
        self._kept: Tree | None = None  # the weight of the clients that kept a coordinate
        self._weight = 0.0

    def allowed(self, server_round: int, mask: Mask) -> Mask | None:
        return mask

    def values(self, contribution: Contribution, expected: Expected) -> tuple[SparseTree, Mask]:
        """Under a robust rule what a client pruned is a value like any other: it sets its weight to zero, and others
        outvote it."""
        if self.run.robust == NONE:
            return super().values(contribution, expected)
        pruned = map_trees(lambda sent, kept: sent & ~kept, expected.mask, contribution.base)
        zeroed = where(pruned, map_trees(torch.neg, expected.params), contribution.update)
        given, there = (
            map_trees(torch.logical_or, m, pruned) for m in (contribution.shared, contribution.participation)
        )
        return SparseTree(given, map_trees(lambda t, m: t[m], zeroed, given)), there

    def note(self, contribution: Contribution) -> None:
        self._weight += contribution.weight
        mine = map_trees(lambda m: m.double() * contribution.weight, contribution.base)
        self._kept = mine if self._kept is None else map_trees(torch.add, self._kept, mine)

    def revise_params(self, server_round: int, params: Tree) -> Tree:
        """What a client pruned is a zero of its own. ``as_printed`` and the robust rules have counted it already."""
        kept, total = self._kept, self._weight
        if kept is None or self.run.aggregation == "as_printed" or self.run.robust != NONE:
            return params
        return map_trees(lambda p, k: torch.where(k < total, (p.double() * k / total).to(p.dtype), p), params, kept)

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        kept, self._kept, self._weight = self._kept, None, 0.0
        return mask if kept is None else map_trees(lambda k: k > 0, kept)
