"""What a client's answers have let through of its examples: charges, each under the digest of the question it answers.

The digest covers everything an answer depends on, and the same digest keys the noise of the answer
(``client.session.ServerRequest``). So the same question gets the same answer and costs nothing more, and every other
question gets fresh noise and a charge of its own, in whichever run and round it is asked. A charge is saved before the
answer is computed, and never removed.

``epsilon`` composes clipping and noise (``accounting.py``): every local step, the sampling, the Laplace answers.
``nats`` adds the channels' bounds (CHN Theorem 2 and Eq. 16: n steps leak at most n kappa). After one answer without
such a bound there is none for good: None, never zero. Heuristics are listed as such.

The ledger covers what training and noisy counts let out. It does not cover audits to which the client's owner consents,
and the time a reply takes.

>>> ledger = add(Ledger(), Charge("a", nats=10.0))
>>> ledger = add(ledger, Charge("b", nats=2.0))
>>> ledger.nats, ledger.covered, add(ledger, Charge("a", nats=10.0)) == ledger
(12.0, False, True)
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from prunella.core.errors import DefenseError
from prunella.core.trees import Tree
from prunella.privacy.accounting import NATS, NOISE, STEPS, Charge, Privacy, epsilon
from prunella.privacy.chain import Chain
from prunella.privacy.channel import ChannelSettings

TOLD = 1e9  # a bound above this says nothing, and is not reported
UNBOUNDED = Charge("unbounded")  # stands for any number of answers that nothing bounds


@dataclass(frozen=True)
class Ledger:
    """The charges of all answers about some examples."""

    charges: tuple[Charge, ...] = ()

    @property
    def covered(self) -> bool:
        """Whether an ε covers every answer."""
        return all(charge.covered for charge in self.charges)

    @property
    def nats(self) -> float | None:
        """The bound in nats on all answers together; None: there is none."""
        each = [charge.nats for charge in self.charges]
        return None if None in each else math.fsum(n for n in each if n is not None)

    def epsilon(self, privacy: Privacy) -> float | None:
        """ε at the settings' δ; None where it is not finite or an answer is not covered."""
        if not self.covered:
            return None
        total = epsilon(self.charges, privacy.delta, privacy.accountant)
        return total if math.isfinite(total) else None


@dataclass(frozen=True)
class Tally:
    """Rounds and local steps that a client took part in during this run, and what its defenses claimed."""

    rounds: int = 0
    steps: int = 0
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.rounds, self.steps) < 0:
            raise DefenseError("a tally holds no negative numbers")


def nats_per_step(chain: Chain) -> float | None:
    """The tightest channel's bound, or None without a channel: channels in a row pass at most the least of them.

    None, too, where something else of the chain looks at the images: a guard says by what it does how an attack on them
    went, and a channel behind another change of the data is not fitted to what it is given.
    """
    data = [link for link in chain.links if link.entry.stage == "data"]
    if chain.guard is not None or not all(isinstance(link.settings, ChannelSettings) for link in data):
        return None
    settings = [link.settings for link in chain.links if isinstance(link.settings, ChannelSettings)]
    return min((channel.nats_per_step for channel in settings if channel.nats_per_step is not None), default=None)


def digest(trees: Iterable[Tree], text: str) -> str:
    """SHA-256 of names, shapes, types and bytes of the trees, in their order, and of a text."""
    found = hashlib.sha256(f"{len(text.encode())}|{text}".encode())
    for tree in trees:
        found.update(f"tree {len(tree)}".encode())
        for name, tensor in sorted(tree.items()):
            array = tensor.detach().cpu().contiguous()
            found.update(json.dumps([name, list(array.shape), str(array.dtype)]).encode())
            found.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def charge(chain: Chain, digest: str, steps: int, examples: int, batch_size: int) -> Charge:
    """What ``steps`` local steps under ``chain`` let through. Raises ``DefenseError`` for a negative number of them."""
    if steps < 0:
        raise DefenseError(f"a round has no negative number of steps, got {steps}")
    per_step = nats_per_step(chain)
    nats = None if per_step is None or steps * per_step > NATS else steps * per_step
    if chain.private is None:
        return UNBOUNDED if nats is None else Charge(digest, nats=nats)
    sampling, noise = min(1.0, batch_size / examples), chain.private.noise_multiplier
    if not NOISE[0] <= noise <= NOISE[1] or steps > STEPS:
        return UNBOUNDED  # outside the limits of a charge
    return Charge(digest, noise, sampling, steps, nats=nats)


def tallied(tally: Tally, chain: Chain, steps: int, caveats: tuple[str, ...] = ()) -> Tally:
    """The tally after one more round; ``caveats`` stand beside the claims.

    >>> from prunella.privacy.chain import build_chain
    >>> tallied(Tally(), build_chain(["dgp"], {}), 5)
    Tally(rounds=1, steps=5, claims=('dgp: heuristic, no ε',))
    """
    claims = tuple(f"{name}: {claim}" for name, claim in zip(chain.names, chain.claims, strict=True))
    return Tally(tally.rounds + 1, tally.steps + steps, tuple(dict.fromkeys(tally.claims + claims + caveats)))


def add(ledger: Ledger, *charges: Charge) -> Ledger:
    """The ledger with these charges. A charge that it holds already is the same answer, and is not added again."""
    known = {charge.digest: charge for charge in ledger.charges}
    for new in charges:
        if known.setdefault(new.digest, new) != new:
            raise DefenseError("one question was charged in two ways: the account of this client is damaged")
    return Ledger(tuple(known.values()))


def spend(ledger: Ledger, new: Charge, privacy: Privacy) -> Ledger:
    """The ledger with a new charge, or ``DefenseError`` where the answer would pass the budget."""
    after = add(ledger, new)
    if not privacy.epsilon_budget:
        return after
    if not after.covered:
        raise DefenseError(
            "privacy.epsilon-budget is set, but not every answer about these examples, in any run or app, had an ε: "
            "use dp-sgd, on examples that no other defense has touched"
        )
    total = epsilon(after.charges, privacy.delta, privacy.accountant)
    if not total <= privacy.epsilon_budget:
        raise DefenseError(
            f"this round would bring ε to {total:.3f}, past privacy.epsilon-budget = {privacy.epsilon_budget:g} "
            f"at δ = {privacy.delta:g}: this client takes no further part"
        )
    return after


def line(tally: Tally, ledger: Ledger, privacy: Privacy) -> dict[str, float | str]:
    """What goes with each reply; a bound that does not exist is absent, never zero.

    >>> line(Tally(1, 5, ("x: y",)), Ledger((Charge("a", nats=10.0),)), Privacy())
    {'rounds': 1.0, 'steps': 5.0, 'claims': 'x: y', 'channel_nats': 10.0}
    """
    values: dict[str, float | str] = {"rounds": float(tally.rounds), "steps": float(tally.steps)}
    values["claims"] = "; ".join(tally.claims)
    nats, total = ledger.nats, ledger.epsilon(privacy)
    values |= {} if nats is None or nats > TOLD else {"channel_nats": nats}
    return values | ({} if total is None or total > TOLD else {"epsilon": total, "delta": privacy.delta})


def to_json(charges: Iterable[Charge]) -> list[dict[str, Any]]:
    """Plain rows that ``json`` takes."""
    return [dataclasses.asdict(charge) for charge in charges]


def from_json(rows: Iterable[Mapping[str, Any]]) -> tuple[Charge, ...]:
    """The inverse of ``to_json``. Charges that cannot be read are an error, never forgotten."""
    try:
        return tuple(Charge(**row) for row in rows)
    except (TypeError, ValueError):
        raise DefenseError("the charges on disk are not those of this release") from None
