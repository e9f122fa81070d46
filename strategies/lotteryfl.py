"""LotteryFL: every client finds its own lottery ticket. Li et al., 2020 (arXiv 2008.03371), Alg. 1.

A client that receives the weights of its mask measures them on examples it holds out. When they label more than
``accuracy`` of them right and the target rate is not reached, it prunes ``step`` of what is left by magnitude and goes
back to the run's initial weights under the new mask; then it trains. It reports the mask with its update. The server
averages over those who hold a weight and sends each client only the weights of the mask it last reported.

The client's own disk has the last word on its mask, so a lost reply costs a round, not a weight. The mask, and that it
shrank (one bit about accuracy on held-out data), leave outside the defenses.

Departures: the target is the run's ``rate`` and the last step is shortened to meet it exactly; a layer keeps at least
its largest weight; ``rewind`` off goes on from the received weights; with ``granularity`` "filter" a client prunes
whole channels (``pruning.filters``), and then trains a small network of its own. The paper's models are personal, so
``evaluation=clients`` measures what it measures; the global model's accuracy is beside the point here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prunella.core.config import Rate, Share
from prunella.core.trees import Mask, Tree, apply_mask, count, intersect
from prunella.pruning.channels import Group
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import Granularity, Scope, below, density, keep_by_score
from prunella.strategies.round.client_part import ClientPart
from prunella.strategies.round.plan import LocalPlan, RoundContext
from prunella.strategies.round.replies import Contribution, Expected
from prunella.strategies.round.strategy import MaskedMean
from prunella.tasks.task import initial


@dataclass(frozen=True)
class LotteryFLSettings:
    """Every client finds a lottery ticket of its own."""

    accuracy: Rate = 0.5  #: a client prunes once it labels more than this share of its held-out examples right
    step: Share = 0.2  #: share of the remaining weights that a pruning removes
    rewind: bool = True  #: go back to the run's initial weights after a pruning
    scope: Scope = "global"  #: rank weights over all layers together, or within each
    granularity: Granularity = "weight"  #: what goes at once: a weight, or a filter with all added into its channel


def shrink(
    params: Tree,
    mask: Mask,
    prunable: frozenset[str],
    rate: float,
    settings: LotteryFLSettings,
    groups: Sequence[Group] = (),
) -> Mask:
    """The next mask on the way to ``rate``: inside ``mask``, or ``mask`` itself once the rate is reached. With
    ``groups`` whole channels go."""
    removed = 1 - density(mask, prunable)
    target = min(rate, 1 - (1 - removed) * (1 - settings.step))
    if groups:
        smaller = keep_channels(magnitude(params), groups, prunable, target, settings.scope, mask)
    else:
        ranked = below(magnitude(params), mask)
        smaller = intersect(keep_by_score(ranked, prunable, target, settings.scope), mask)
    return smaller if count(smaller) < count(mask) else mask


def plan(context: RoundContext) -> LocalPlan:
    """The client's half."""
    mine = intersect(context.kept["mask"], context.mask) if "mask" in context.kept else context.mask
    weights, after = apply_mask(context.params, mine), mine
    if context.accuracy(weights) > context.settings.accuracy:
        groups = context.groups() if context.settings.granularity == "filter" else ()
        after = shrink(weights, mine, context.prunable, context.run.rate, context.settings, groups)
    pruned = after is not mine
    start = context.fresh() if pruned and context.settings.rewind else context.params
    return LocalPlan(start=apply_mask(start, after), mask=after, keep={"mask": after})


CLIENT = ClientPart(plan=plan, validates=True)


class LotteryFL(MaskedMean):
    """``settings`` is a ``LotteryFLSettings``. The global mask stays full; every client has its own."""

    def allowed(self, server_round: int, mask: Mask) -> Mask | None:
        return mask

    def note(self, contribution: Contribution) -> None:
        member = self.downlink.asked.get(contribution.node)
        if member is not None:
            self.downlink.personal.put(member.client, contribution.base)

    def view_start(self, expected: Expected, contribution: Contribution) -> Tree:
        """A client whose mask shrank has gone back to the run's first weights, which the server knows."""
        shrank = count(contribution.base) < count(expected.mask)
        if shrank and self.settings.rewind and self.model.task is not None:
            return apply_mask(initial(self.model.task, self.run.seed)[0], contribution.base)
        return apply_mask(expected.params, contribution.base)
