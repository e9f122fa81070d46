"""What a run did not do that its settings say, for its note: a rate that was not reached, weights that never moved.

``magnitude`` and ``random`` grow their rate over ``ramp-rounds``, and of filters every group keeps a tenth, beside all
that cannot go. SparsyFed's mask is what any client kept, above the rate by design: that is told only where clients
hardly agree. LotteryFL's clients prune when they are accurate enough.
"""

from prunella.pruning.filters import fewest_weights
from prunella.strategies import find
from prunella.strategies.round.strategy import MaskedMean
from prunella.strategies.sparsyfed import SparsyFed

NEAR, ABOUT = 0.01, 0.1  # of the prunable weights: whole filters end within one of the rate, and a union above it
STILL = 0.1  # of the weights that clients sent


def shortfall(strategy: MaskedMean, rounds: int) -> str | None:
    """What to tell after so many rounds; None where the rate was reached, or nothing prunes."""
    run, mask, names = strategy.run, strategy.mask, strategy.model.prunable
    scheme = find(run.strategy)
    if mask is None or scheme.strategy is MaskedMean:
        return None
    filters = getattr(strategy.settings, "granularity", "weight") == "filter"
    left, asked = strategy.downlink.density(mask), 1 - run.rate
    union = isinstance(strategy, SparsyFed)
    if left - asked <= (ABOUT if filters or union else NEAR):
        return None
    told = f"rate={run.rate:g} leaves {asked:.3f} of the prunable weights, and {left:.3f} are left"
    ramp = getattr(strategy.settings, "ramp_rounds", 0)
    if ramp > rounds:
        section = scheme.section or run.strategy
        return f"{told}: its ramp is longer than the run, so take {section}.ramp-rounds={rounds} or more rounds"
    if filters:
        least = fewest_weights(mask, strategy.model.groups, names) / sum(mask[name].numel() for name in names)
        if least > asked:
            return f"{told}: the filters of this model that can go hold no more, so take granularity=weight"
    return f"{told}: see docs/schemes.md for when {run.strategy} prunes"


def standing(strategy: MaskedMean) -> str | None:
    """What to tell of a robust rule that left many weights as they were in the last round; None where it did not."""
    run, still = strategy.run, strategy.stats.still
    if still <= STILL:
        return None
    return (
        f"robust={run.robust} left {still:.0%} of the weights that clients trained in the last round as they were: it "
        f"moves a weight that {strategy.aggregator.quorum} clients hold. Let more clients take part, all of them with "
        f"width=1 and defenses that withhold less, or tolerate fewer with {run.robust}.liars"
    )
