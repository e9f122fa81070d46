"""Flower server strategies, one per federated pruning scheme, and the client's half of each.

``STRATEGIES`` maps a name to the strategy class, the frozen settings that its section of the configuration parses into,
and what clients do for it. A new scheme is a module, its test and a line here.
"""

from functools import partial
from typing import Any, NamedTuple

from prunella.core.config import Raw, Run, parse_section
from prunella.core.errors import ConfigError, PrunellaError, unknown
from prunella.privacy import DEFENSES
from prunella.privacy.adgp import NAME as ADGP
from prunella.privacy.adgp import AlignedPruning
from prunella.pruning.widths import require_no_statistics
from prunella.strategies import (
    fed_ltp_iterative,
    fed_ltp_one_shot,
    feddst,
    fedtiny,
    grasp,
    lotteryfl,
    magnitude,
    prunefl,
    random,
    snip,
    sparsyfed,
    synflow,
    tickets,
)
from prunella.strategies.round.client_part import ClientPart
from prunella.strategies.round.locations import LocationSets
from prunella.strategies.round.robust import SECTIONS as ROBUST_SECTIONS
from prunella.strategies.round.robust import build_aggregator
from prunella.strategies.round.roster import Member
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.strategies.secure_sum.exchange import Exchange
from prunella.strategies.secure_sum.party import MOST as MOST_SUMMED
from prunella.strategies.secure_sum.vector import NAME as SECURE_SUM
from prunella.strategies.secure_sum.vector import SecureSum, form_of


class Scheme(NamedTuple):
    """A line of ``STRATEGIES``: the strategy, its settings or None, their section where it is not the name.

    ``public``: the server must set public examples apart; ``client``: what clients do; ``personal``: the server gives
    clients masks of their own.
    """

    strategy: type[MaskedMean]
    settings: type | None = None
    section: str = ""
    public: bool = False
    client: ClientPart = ClientPart()
    personal: bool = False


STRATEGIES: dict[str, Scheme] = {
    "fedavg": Scheme(MaskedMean),
    "random": Scheme(random.Random, random.RandomSettings, "random-mask"),
    "magnitude": Scheme(magnitude.Magnitude, magnitude.MagnitudeSettings),
    "snip": Scheme(snip.Snip, snip.SnipSettings, public=True),
    "synflow": Scheme(synflow.SynFlow, synflow.SynFlowSettings),
    "grasp": Scheme(grasp.GraSP, grasp.GraSPSettings, public=True),
    "prunefl": Scheme(prunefl.PruneFL, prunefl.PruneFLSettings, client=prunefl.CLIENT),
    "feddst": Scheme(feddst.FedDST, feddst.FedDSTSettings, client=feddst.CLIENT),
    "fedtiny": Scheme(fedtiny.FedTiny, fedtiny.FedTinySettings, client=fedtiny.CLIENT),
    "sparsyfed": Scheme(sparsyfed.SparsyFed, sparsyfed.SparsyFedSettings, client=sparsyfed.CLIENT),
    "fed-ltp-one-shot": Scheme(fed_ltp_one_shot.FedLTPOneShot, tickets.TicketSettings, public=True),
    "fed-ltp-iterative": Scheme(
        fed_ltp_iterative.FedLTPIterative, fed_ltp_iterative.IterativeSettings, public=True, personal=True
    ),
    "lotteryfl": Scheme(lotteryfl.LotteryFL, lotteryfl.LotteryFLSettings, client=lotteryfl.CLIENT),
}

SECTIONS: dict[str, type] = {
    **{s.section or name: s.settings for name, s in STRATEGIES.items() if s.settings is not None},
    **ROBUST_SECTIONS,
    SECURE_SUM: SecureSum,
}
LEAST_SUMMED = 3  # in a sum of two, each client's update is the other's to read


def uses_public(name: str) -> bool:
    """Whether the strategy prunes on public examples before training."""
    return name in STRATEGIES and STRATEGIES[name].public


def validates(name: str) -> bool:
    """Whether clients hold examples out for the strategy."""
    return name in STRATEGIES and STRATEGIES[name].client.validates


def find(name: str) -> Scheme:
    """The scheme of this name. Raises ``ConfigError`` listing the valid names."""
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]


def scheme_settings(name: str, raw: Raw) -> Any:
    """The scheme's section of a run's settings, or None where it has none."""
    scheme = find(name)
    return None if scheme.settings is None else parse_section(raw, scheme.section or name, scheme.settings)


def one_public_mask(name: str) -> bool:
    """Whether all clients of the strategy train under one mask that no client's data chose, and send updates alone."""
    scheme = find(name)
    return not scheme.personal and scheme.client == ClientPart()


def require_summable(run: Run, raw: Raw) -> None:
    """Refuse masked sums of a run in which something of one client's own would leave beside the sum, or has to be
    looked at alone, and one whose sums do not fit their words. Raises one ``ConfigError`` with all that must change."""
    if run.aggregation != SECURE_SUM:
        return
    wanted = {
        f"strategy={'|'.join(name for name in STRATEGIES if one_public_mask(name))}": one_public_mask(run.strategy),
        f"defenses without {ADGP}": ADGP not in run.defense_names,
        "robust=none": run.robust == "none",
        "values=float32": run.values == "float32",
        "evaluation=server": run.evaluation == "server",
        "speed-tiers=1": run.speed_tiers == 1,
        f"min-clients={LEAST_SUMMED} to {MOST_SUMMED}": LEAST_SUMMED <= run.min_clients <= MOST_SUMMED,
    }
    if missing := [what for what, there in wanted.items() if not there]:
        raise ConfigError(f"aggregation={SECURE_SUM} shows the server one sum and nothing of a client: set "
                          f"{', '.join(missing)}")  # fmt: skip
    form_of(parse_section(raw, SECURE_SUM, SecureSum), run.min_clients)  # which raises where it does not fit


def require_place(run: Run, width: float) -> None:
    """Refuse a run in which a client of this width has no place: where clients have masks of their own, location sets,
    or one sum of vectors that are equally long. Raises ``ConfigError``."""
    scheme = find(run.strategy)
    own = scheme.personal or scheme.client.plan is not None
    if width < 1 and (own or ADGP in run.defense_names or run.aggregation == SECURE_SUM):
        raise ConfigError(
            f"a client with a width takes part where all share one mask and each reply is read alone: choose another "
            f"strategy than {run.strategy}, no {ADGP}, no {SECURE_SUM}, or width=1"
        )


def _require_width(strategy: MaskedMean, member: Member) -> None:
    """What ``require_place`` asks of a client, asked by the server, which only has the client's word for its width; and
    that the model has a sub-model of it. Raises ``PrunellaError``."""
    if member.width >= 1:
        return
    require_place(strategy.run, member.width)
    buffers = strategy.model.module.named_buffers()
    require_no_statistics({name: buffer for name, buffer in buffers if buffer.is_floating_point()})
    try:
        strategy.downlink.require_narrow(member.width)
    except PrunellaError as error:
        raise ConfigError(f"no sub-model of a width: {error}: choose another model, or width=1") from None


def build_strategy(run: Run, raw: Raw, model: ServerModel) -> MaskedMean:
    """The strategy named in the run, with its settings. Raises ``ConfigError`` listing the valid names, or for a model
    that has nothing to prune, unless the run goes on with one."""
    scheme = find(run.strategy)
    if scheme.strategy is not MaskedMean and not model.prunable and not run.resume:
        raise ConfigError(
            f"strategy={run.strategy} prunes the weights of linear layers and convolutions, and this model has none of "
            "its own: set strategy=fedavg"
        )
    made = scheme.strategy(run, model, scheme_settings(run.strategy, raw))
    require_summable(run, raw)
    made.aggregator = build_aggregator(run, raw)
    made.roster.require = partial(_require_width, made)
    if scheme.client.undone is not None and (
        guards := [n for n in run.defense_names if n in DEFENSES and DEFENSES[n].guards]
    ):
        raise ConfigError(f"{guards[0]} attacks plain SGD only: choose another strategy than {run.strategy}")
    if getattr(made.settings, "granularity", "weight") == "filter":
        _ = model.groups  # which raises before the run, where it would in its first round
    if run.aggregation == SECURE_SUM:
        made.exchange = Exchange(run, raw)
    if ADGP in run.defense_names:
        if scheme.client.plan is not None or scheme.personal:
            raise ConfigError(f"{ADGP} needs one mask for all clients: choose another strategy than {run.strategy}")
        made.downlink.locations = LocationSets(parse_section(raw, ADGP, AlignedPruning), run.seed)
    return made
