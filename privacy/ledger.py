"""What one client has let through so far, over all its rounds: one ledger per client, kept on its disk, never reset.

``channel_nats`` adds the channel's bound for every local step (CHN Theorem 2 and Eq. 16: n steps leak at most n kappa).
One round without a channel and there is no bound any more: ``None``, for good.

``epsilon`` composes the ``charges`` of a chain with clipping and noise (``accounting.py``): every local step, the
sampling, the Laplace answers. One round without such a defense and there is none any more (``covered``). The charge is
made BEFORE the round: an epsilon that would pass the budget refuses it, and nothing was computed yet. The noise of a
request must be drawn once: the same request again (a server that resumes) is the same answer and costs nothing; the
same round asked for another model, which would let a server subtract the noise, is refused. Heuristics are listed as
what they are. A ledger only ever grows.

What epsilon covers is what training lets out: in this run, and (``elsewhere``, from ``client.accounts``) in every other
run of this client that used any of these examples. Not covered: audits the client's owner consents to, and the time a
reply takes.

>>> from privacy.chain import build_chain
>>> chain = build_chain(["channel-natural", "dgp"], {"channel-natural.kappa": 2.0})
>>> line(record(Ledger(), chain, steps=5))
{'rounds': 1.0, 'steps': 5.0, 'claims': 'channel-natural: at most kappa * batch nats per step; dgp: heuristic, no ε', \
'channel_nats': 10.0}
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import DefenseError
from core.trees import Tree
from privacy.accounting import Charge, Privacy, epsilon
from privacy.chain import Chain
from privacy.channel import ChannelSettings


@dataclass(frozen=True)
class Ledger:
    """Rounds and local steps taken part in, what was claimed, and the two bounds (None: no bound).

    ``covered``: everything so far is in ``charges``.
    """

    rounds: int = 0
    steps: int = 0
    channel_nats: float | None = 0.0
    epsilon: float | None = None
    delta: float = 0.0
    claims: tuple[str, ...] = ()
    covered: bool = True
    charges: tuple[Charge, ...] = ()

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.channel_nats, self.epsilon, self.delta) if bound is not None]
        if min(self.rounds, self.steps, *bounds) < 0 or not all(math.isfinite(bound) for bound in bounds):
            raise DefenseError("a ledger holds no negative and no infinite numbers")
        if not isinstance(self.covered, bool):
            raise DefenseError("a ledger knows whether all of it is covered")


def nats_per_step(chain: Chain) -> float | None:
    """The tightest channel's bound, or None without a channel: channels in a row pass at most the least of them."""
    settings = [link.settings for link in chain.links if isinstance(link.settings, ChannelSettings)]
    return min((channel.nats_per_step for channel in settings if channel.nats_per_step is not None), default=None)


def digest(trees: Iterable[Tree], text: str) -> str:
    """SHA-256 of what an answer depends on: names, shapes, types and bytes of the trees, and a text."""
    found = hashlib.sha256(text.encode())
    for tree in trees:
        for name, tensor in sorted(tree.items()):
            array = tensor.detach().cpu().contiguous()
            found.update(f"|{name}|{tuple(array.shape)}|{array.dtype}|".encode())
            found.update(array.numpy().tobytes())
        found.update(b"||")
    return found.hexdigest()


def charge(chain: Chain, request: tuple[str, str], steps: int, examples: int, batch_size: int) -> Charge | None:
    """What ``steps`` steps will cost; ``request`` is its name and digest. None: the chain has no epsilon."""
    if chain.private is None:
        return None
    return Charge(*request, noise=chain.private.noise_multiplier, sampling=min(1.0, batch_size / examples), steps=steps)


def spend(charges: tuple[Charge, ...], new: Charge) -> tuple[Charge, ...]:
    """The charges with a new one; a request that was answered is not paid twice, and not answered differently."""
    for old in charges:
        if old.request == new.request:
            if old != new:
                raise DefenseError(
                    f"round {old.request} was answered for another model or state: noise that carries an ε is drawn "
                    "once, so begin a new run"
                )
            return charges
    return (*charges, new)


def _epsilon(charges: tuple[Charge, ...], covered: bool, privacy: Privacy) -> float | None:
    if not covered:
        if privacy.epsilon_budget:
            raise DefenseError(
                "privacy.epsilon-budget is set, but not every round on these examples, in any run, had an ε: "
                "use dp-sgd, on examples that no other defense has touched"
            )
        return None
    total = epsilon(charges, privacy.delta, privacy.accountant)
    if privacy.epsilon_budget and not total <= privacy.epsilon_budget:
        raise DefenseError(
            f"this round would bring ε to {total:.3f}, past privacy.epsilon-budget = {privacy.epsilon_budget:g} "
            f"at δ = {privacy.delta:g}: this client takes no further part"
        )
    return total if math.isfinite(total) else None


def record(
    ledger: Ledger,
    chain: Chain,
    steps: int,
    new: Charge | None = None,
    privacy: Privacy | None = None,
    elsewhere: Ledger | None = None,
) -> Ledger:
    """The ledger after one more round of ``steps`` local steps under ``chain``; raises where it must not take place.

    Without a charge for all its steps a round is not covered. ``epsilon`` is that of this run and ``elsewhere``.
    """
    if steps < 0:
        raise DefenseError(f"a round has no negative number of steps, got {steps}")
    privacy = privacy or Privacy()
    per_step, before = nats_per_step(chain), ledger.channel_nats
    total = None if per_step is None or before is None else before + steps * per_step
    claims = tuple(f"{name}: {claim}" for name, claim in zip(chain.names, chain.claims, strict=True))
    covered = ledger.covered and new is not None and chain.private is not None and new.steps >= steps
    charges = spend(ledger.charges, new) if new is not None else ledger.charges
    others = elsewhere or Ledger()
    all_covered = covered and others.covered
    return dataclasses.replace(
        ledger,
        rounds=ledger.rounds + 1,
        steps=ledger.steps + steps,
        channel_nats=total,
        epsilon=_epsilon((*charges, *others.charges), all_covered, privacy),
        delta=privacy.delta if all_covered else 0.0,
        claims=tuple(dict.fromkeys(ledger.claims + claims)),
        covered=covered,
        charges=charges,
    )


def answer(ledger: Ledger, new: Charge, privacy: Privacy, elsewhere: Ledger) -> Ledger:
    """The ledger after one noisy answer that is no round; raises where it must not be given.

    An answer about examples of which a round without an epsilon took is refused: noise would promise nothing.
    """
    if not (ledger.covered and elsewhere.covered):
        raise DefenseError("not every round on these examples, in any run, had an ε: their scores stay here")
    charges = spend(ledger.charges, new)
    total = _epsilon((*charges, *elsewhere.charges), True, privacy)
    return dataclasses.replace(ledger, charges=charges, epsilon=total, delta=privacy.delta)


def projected(ledger: Ledger, again: Iterable[Charge], privacy: Privacy, elsewhere: Ledger) -> float | None:
    """The epsilon if these were charged once more, as they will be next round; None where there is none."""
    if not (ledger.covered and elsewhere.covered):
        return None
    total = epsilon((*ledger.charges, *elsewhere.charges, *again), privacy.delta, privacy.accountant)
    return total if math.isfinite(total) else None


def merge(ledger: Ledger, spent: Ledger) -> Ledger:
    """``ledger``, perhaps of an earlier round, with all that was ever spent."""
    known = {charge.request for charge in ledger.charges}
    charges = ledger.charges + tuple(charge for charge in spent.charges if charge.request not in known)
    return dataclasses.replace(ledger, charges=charges, covered=ledger.covered and spent.covered)


def add(ledger: Ledger, other: Ledger) -> Ledger:
    """Two ledgers of different runs on the same examples: everything counts, nothing is the same request."""
    nats = (
        None if ledger.channel_nats is None or other.channel_nats is None else ledger.channel_nats + other.channel_nats
    )
    charges, covered = ledger.charges + other.charges, ledger.covered and other.covered
    return dataclasses.replace(ledger, channel_nats=nats, charges=charges, covered=covered)


def line(ledger: Ledger, elsewhere: Ledger | None = None) -> dict[str, float | str]:
    """What goes with each reply; a bound that does not exist is absent, never zero. ``epsilon`` counts ``elsewhere``
    already (``record``); the nats of other runs are added here."""
    if elsewhere is not None:
        ledger = dataclasses.replace(ledger, channel_nats=add(ledger, elsewhere).channel_nats)
    values: dict[str, float | str] = {"rounds": float(ledger.rounds), "steps": float(ledger.steps)}
    values["claims"] = "; ".join(ledger.claims)
    for name in ("channel_nats", "epsilon"):
        bound = getattr(ledger, name)
        if bound is not None:
            values[name] = float(bound)
    return values | ({"delta": ledger.delta} if ledger.epsilon is not None else {})


def to_json(ledger: Ledger) -> dict[str, Any]:
    """A dict that ``json`` takes."""
    return {**dataclasses.asdict(ledger), "claims": list(ledger.claims), "charges": _rows(ledger)}


def _rows(ledger: Ledger) -> list[dict[str, Any]]:
    return [dataclasses.asdict(charge) for charge in ledger.charges]


def from_json(value: Mapping[str, Any]) -> Ledger:
    """The inverse of ``to_json``. A ledger that cannot be read is an error, never a fresh one."""
    names = {field.name for field in dataclasses.fields(Ledger)}
    if value.keys() != names:
        raise DefenseError(f"the ledger on disk lacks or has too many of: {', '.join(sorted(names ^ value.keys()))}")
    try:
        charges = tuple(Charge(**row) for row in value["charges"])
        return Ledger(**{**value, "claims": tuple(value["claims"]), "charges": charges})
    except TypeError:
        raise DefenseError("the ledger on disk holds values of the wrong type") from None
