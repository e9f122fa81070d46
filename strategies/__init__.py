"""Flower server strategies, one per federated pruning scheme, and the client's half of each.

``STRATEGIES`` maps a name to the strategy class and the frozen settings its section of the configuration parses into.
"""

from typing import NamedTuple

from prunella.core.config import Raw, Run, parse_section
from prunella.core.errors import ConfigError, unknown
from prunella.privacy.adgp import NAME as ADGP
from prunella.privacy.adgp import AlignedPruning
from prunella.strategies import (
    fed_ltp_iterative,
    fed_ltp_one_shot,
    feddst,
    grasp,
    lotteryfl,
    magnitude,
    prunefl,
    random,
    snip,
    synflow,
    tickets,
)
from prunella.strategies.round.locations import LocationSets
from prunella.strategies.round.masked import MaskedMean, Model
from prunella.strategies.round.plan import Planner
from prunella.strategies.round.replies import Listener
from prunella.strategies.round.robust import SECTIONS as ROBUST_SECTIONS
from prunella.strategies.round.robust import build_aggregator


class Scheme(NamedTuple):
    """A line of ``STRATEGIES``: the strategy, its settings or None, their section where it is not the name.

    ``public``: the server must set public examples apart; ``plan``: the client's half; ``validates``: clients hold
    examples out for it.
    """

    strategy: type[MaskedMean]
    settings: type | None = None
    section: str = ""
    public: bool = False
    plan: Planner | None = None
    validates: bool = False


STRATEGIES: dict[str, Scheme] = {
    "fedavg": Scheme(MaskedMean),
    "random": Scheme(random.Random, random.Draw, "random-mask"),
    "magnitude": Scheme(magnitude.Magnitude, magnitude.Schedule),
    "snip": Scheme(snip.Snip, snip.Sensitivity, public=True),
    "synflow": Scheme(synflow.SynFlow, synflow.Flow),
    "grasp": Scheme(grasp.GraSP, grasp.Preservation, public=True),
    "prunefl": Scheme(prunefl.PruneFL, prunefl.Schedule),
    "feddst": Scheme(feddst.FedDST, feddst.Readjustment, plan=feddst.plan),
    "fed-ltp-one-shot": Scheme(fed_ltp_one_shot.FedLTPOneShot, tickets.Tickets, public=True),
    "fed-ltp-iterative": Scheme(fed_ltp_iterative.FedLTPIterative, fed_ltp_iterative.Iterative, public=True),
    "lotteryfl": Scheme(lotteryfl.LotteryFL, lotteryfl.Lottery, plan=lotteryfl.plan, validates=True),
}

SECTIONS: dict[str, type] = {
    **{s.section or name: s.settings for name, s in STRATEGIES.items() if s.settings is not None},
    **ROBUST_SECTIONS,
}


def uses_public(name: str) -> bool:
    """Whether the strategy prunes on public examples before training."""
    return name in STRATEGIES and STRATEGIES[name].public


def validates(name: str) -> bool:
    """Whether clients hold examples out for the strategy."""
    return name in STRATEGIES and STRATEGIES[name].validates


def build_strategy(run: Run, raw: Raw, model: Model, listener: Listener | None = None) -> MaskedMean:
    """The strategy named in the run, with its settings. Raises ``ConfigError`` listing the valid names."""
    if run.strategy not in STRATEGIES:
        raise unknown("strategy", run.strategy, STRATEGIES)
    scheme = STRATEGIES[run.strategy]
    settings = parse_section(raw, scheme.section or run.strategy, scheme.settings) if scheme.settings else None
    made = scheme.strategy(run, model, settings, listener)
    made.aggregator = build_aggregator(run, raw)
    if ADGP in run.defense_names:
        if scheme.plan is not None or run.strategy == "fed-ltp-iterative":
            raise ConfigError(f"{ADGP} needs one mask for all clients: choose another strategy than {run.strategy}")
        made.locations = LocationSets(parse_section(raw, ADGP, AlignedPruning), run.seed)
    return made
