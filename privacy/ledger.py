"""What one client has let through so far, over all its rounds: one ledger per client, kept on its disk, never reset.

``channel_nats`` adds the channel's bound for every local step (CHN Theorem 2 and Eq. 16: n steps leak at most n kappa).
One round without a channel and there is no bound any more: ``None``, for good. ``epsilon`` stays ``None`` while no
defense of the chain has one; heuristics are listed as what they are. A ledger only ever grows.

>>> from privacy.chain import build_chain
>>> chain = build_chain(["channel-natural", "dgp"], {"channel-natural.kappa": 2.0})
>>> line(record(Ledger(), chain, steps=5))
{'rounds': 1.0, 'steps': 5.0, 'claims': 'channel-natural: at most kappa * batch nats per step; dgp: heuristic, no ε', \
'channel_nats': 10.0}
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import DefenseError
from privacy.chain import Chain
from privacy.channel import ChannelSettings


@dataclass(frozen=True)
class Ledger:
    """Rounds and local steps taken part in, what was claimed, and the two bounds (None: no bound)."""

    rounds: int = 0
    steps: int = 0
    channel_nats: float | None = 0.0
    epsilon: float | None = None
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.channel_nats, self.epsilon) if bound is not None]
        if min(self.rounds, self.steps, *bounds) < 0 or not all(math.isfinite(bound) for bound in bounds):
            raise DefenseError("a ledger holds no negative and no infinite numbers")


def nats_per_step(chain: Chain) -> float | None:
    """The tightest channel's bound, or None without a channel: channels in a row pass at most the least of them."""
    settings = [link.settings for link in chain.links if isinstance(link.settings, ChannelSettings)]
    return min((channel.nats_per_step for channel in settings if channel.nats_per_step is not None), default=None)


def record(ledger: Ledger, chain: Chain, steps: int) -> Ledger:
    """The ledger after one more round of ``steps`` local steps under ``chain``."""
    if steps < 0:
        raise DefenseError(f"a round has no negative number of steps, got {steps}")
    per_step, before = nats_per_step(chain), ledger.channel_nats
    total = None if per_step is None or before is None else before + steps * per_step
    claims = tuple(f"{name}: {claim}" for name, claim in zip(chain.names, chain.claims, strict=True))
    return dataclasses.replace(
        ledger,
        rounds=ledger.rounds + 1,
        steps=ledger.steps + steps,
        channel_nats=total,
        claims=tuple(dict.fromkeys(ledger.claims + claims)),
    )


def line(ledger: Ledger) -> dict[str, float | str]:
    """What goes with each reply; a bound that does not exist is absent, never zero."""
    values: dict[str, float | str] = {"rounds": float(ledger.rounds), "steps": float(ledger.steps)}
    values["claims"] = "; ".join(ledger.claims)
    for name in ("channel_nats", "epsilon"):
        bound = getattr(ledger, name)
        if bound is not None:
            values[name] = float(bound)
    return values


def to_json(ledger: Ledger) -> dict[str, Any]:
    """A dict that ``json`` takes."""
    return {**dataclasses.asdict(ledger), "claims": list(ledger.claims)}


def from_json(value: Mapping[str, Any]) -> Ledger:
    """The inverse of ``to_json``. A ledger that cannot be read is an error, never a fresh one."""
    names = {field.name for field in dataclasses.fields(Ledger)}
    if value.keys() != names:
        raise DefenseError(f"the ledger on disk lacks or has too many of: {', '.join(sorted(names ^ value.keys()))}")
    try:
        return Ledger(**{**value, "claims": tuple(value["claims"])})
    except TypeError:
        raise DefenseError("the ledger on disk holds values of the wrong type") from None
