"""From charges to epsilon, through dp-accounting: sampled Gaussian steps and Laplace answers, composed.

A charge is one answer of a client: perhaps ``steps`` Gaussian mechanisms with noise ``noise`` over Poisson samples with
probability ``sampling``, and perhaps a count released with Laplace noise of scale ``laplace`` (sensitivity 1; LTP 4.4).
Three accountants: ``rdp`` (the moments accountant, fast), ``pld`` (privacy loss distributions, tighter, slower) and
``zcdp``, which uses no amplification by sampling: every step is 1/(2 sigma^2)-zCDP, a Laplace answer 1/(2 scale^2).
All are upper bounds. Unit: one example; neighbours: it is present or replaced by nothing (the number of examples is
public), dp-accounting's REPLACE_SPECIAL.

LTP Eq. (20), for one order alpha after t+1 rounds, as printed:
    rho_s + (t + 1) alpha (alpha - 1) / (2 lambda^2) + (log(1/delta) - log(alpha)) / (alpha - 1) + log(1 - 1/alpha)
[erratum] the validation term has a factor (alpha - 1) too many: 1/(2 lambda^2)-zCDP costs alpha / (2 lambda^2) at order
alpha. ``ltp_printed`` keeps it, minimised over the orders, so that published numbers can be checked. Its rho_s counts
t + 1 Gaussian steps; the published 9.71 counts all tau local ones, so ``steps`` is an argument.

>>> one = [Charge("1", noise=1.0, steps=1)]
>>> round(epsilon(one, 1e-5, "pld"), 2), round(epsilon(one, 1e-5, "rdp"), 2), round(epsilon([], 1e-5, "rdp"), 2)
(4.38, 4.73, 0.0)
"""

import functools
import logging
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from prunella.core.config import Positive, Weight
from prunella.core.errors import ConfigError, DefenseError
from prunella.privacy.defense import Equal, Larger, Smaller

Accountant = Literal["rdp", "pld", "zcdp"]
# The limits of a charge, so that no request of a server can bring an account to numbers that cannot be added up.
NOISE, LAPLACE = (0.1, 1e6), (1e-3, 1e6)
STEPS, NATS = 10**9, 1e12
EVENTS = 32  # different steps that are accounted for one by one


LARGEST_DELTA = 1e-2


@dataclass(frozen=True)
class Privacy:
    """The ε of every defense that has one."""

    #: 0: none; a client refuses the round that would pass it, the server stops asking it, and the run ends when too few
    #: clients are left
    epsilon_budget: Equal[Weight] = 0.0
    #: of (ε, δ)-differential privacy, at most 0.01; an ε whose δ is not below one over a client's examples says so
    delta: Smaller[Positive] = 1e-5
    #: how ε adds up over steps: Renyi, privacy loss distributions, or zero-concentrated
    accountant: Equal[Accountant] = "rdp"
    #: with evaluation=clients under an ε: scale, in examples, of the Laplace noise on the number of right answers; 0:
    #: it is not told
    validation_noise: Larger[Weight] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon_budget < math.inf:
            raise ConfigError("privacy.epsilon-budget must not be negative")
        if not 0 < self.delta <= LARGEST_DELTA:
            why = "the chance that the ε does not hold: take less than one over the number of examples"
            raise ConfigError(f"privacy.delta must lie in (0, {LARGEST_DELTA:g}], as {why}")
        if not 0 <= self.validation_noise < math.inf:
            raise ConfigError("privacy.validation-noise must be a finite number that is not negative; 0: no answers")

    def doubt(self, examples: int) -> str:
        """What weakens an ε over so many ``examples``: that handing one of them out whole would keep it; or ""."""
        if not examples or self.delta < 1 / examples:
            return ""
        return (
            f"privacy.delta = {self.delta:g} is not below one over this client's {examples} examples: such an ε holds "
            "where one of them is handed out whole"
        )


@dataclass(frozen=True)
class Charge:
    """What one answer let through. ``digest`` is of everything the answer depends on, and so its name.

    ``noise`` 0: no Gaussian mechanism; ``laplace`` 0: no noisy count; with neither, no ε covers the answer. ``nats``
    bounds what a channel let through; None: no channel bounds it.
    """

    digest: str
    noise: float = 0.0
    sampling: float = 1.0
    steps: int = 0
    laplace: float = 0.0
    nats: float | None = None

    def __post_init__(self) -> None:
        for value, (least, most) in ((self.noise, NOISE), (self.laplace, LAPLACE)):
            if value and not least <= value <= most:
                raise DefenseError(f"noise of {value:g} is outside what an accountant can add up")
        if self.steps > STEPS or (self.nats or 0.0) > NATS:
            raise DefenseError("a charge has more steps or nats than are allowed")
        numbers = (self.noise, self.sampling, float(self.steps), self.laplace, self.nats or 0.0)
        if not all(math.isfinite(number) and number >= 0 for number in numbers) or not 0 < self.sampling <= 1:
            raise DefenseError("a charge has noise, steps, nats and a Laplace scale >= 0 and a sampling rate in (0, 1]")
        if not isinstance(self.digest, str):
            raise DefenseError("a charge is named by a digest")

    @property
    def covered(self) -> bool:
        """Whether an ε covers the answer."""
        return self.noise > 0 or self.laplace > 0


def _few(steps: "Counter[tuple[float, float]]") -> "Counter[tuple[float, float]]":
    """At most ``EVENTS`` different steps that cost no less: every further one takes a tenth of a second in a message.
    Noise is rounded down and sampling up, to powers of two; if that is not enough, all are counted as the worst."""
    if len(steps) <= EVENTS:
        return steps
    few: Counter[tuple[float, float]] = Counter()
    for (noise, sampling), count in steps.items():
        few[2.0 ** math.floor(math.log2(noise)), min(1.0, 2.0 ** math.ceil(math.log2(sampling)))] += count
    if len(few) <= EVENTS:
        return few
    return Counter({(min(noise for noise, _ in few), max(sampling for _, sampling in few)): few.total()})


def _events(charges: Iterable[Charge], sampled: bool) -> list[Any]:
    """dp-accounting's events, equal ones counted together."""
    import dp_accounting as dp  # a second of importing that chains without an epsilon need not wait for

    steps: Counter[tuple[float, float]] = Counter()
    answers: Counter[float] = Counter()
    for charge in charges:
        if charge.noise:
            steps[charge.noise, charge.sampling if sampled else 1.0] += charge.steps
        answers[charge.laplace] += 1
    events: list[Any] = []
    for (noise, sampling), count in _few(steps).items():
        gaussian = dp.GaussianDpEvent(noise)
        step = dp.PoissonSampledDpEvent(sampling, gaussian) if sampling < 1 else gaussian
        events += [dp.SelfComposedDpEvent(step, count)] if count else []
    if sampled:
        return events + [dp.SelfComposedDpEvent(dp.LaplaceDpEvent(s), n) for s, n in answers.items() if s]
    return events + [dp.SelfComposedDpEvent(dp.ZCDpEvent(rho=1 / (2 * s * s)), n) for s, n in answers.items() if s]


# A message asks for one ε three times, and the next message for most of it again.
@functools.lru_cache(maxsize=4 * EVENTS)
def _renyi(event: Any) -> Any:
    """Renyi divergences of one event, at dp-accounting's orders: a tenth of a second of computing."""
    import dp_accounting as dp

    return dp.rdp.RdpAccountant(None, dp.NeighboringRelation.REPLACE_SPECIAL).compose(event)._rdp


@functools.lru_cache(maxsize=EVENTS)
def _by_losses(events: tuple[Any, ...], delta: float) -> float:
    """ε by privacy loss distributions: a second of computing."""
    import dp_accounting as dp

    made = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
    return float(made.compose(dp.ComposedDpEvent(list(events))).get_epsilon(delta))


def epsilon(charges: Iterable[Charge], delta: float, accountant: Accountant) -> float:
    """The epsilon at ``delta`` of all charges together; infinite where an accountant has no finite one."""
    import dp_accounting as dp

    # It warns of every order that it leaves out, which makes the bound no smaller than with it.
    logging.getLogger("absl").setLevel(logging.ERROR)

    events = _events(charges, sampled=accountant != "zcdp")
    if not events:
        return 0.0
    if accountant == "pld":
        return _by_losses(tuple(events), delta)
    made: Any = dp.rdp.RdpAccountant(None, dp.NeighboringRelation.REPLACE_SPECIAL)
    for repeated in events:
        made._rdp += repeated.count * _renyi(repeated.event)
    return float(made.get_epsilon(delta))


def ltp_printed(charge: Charge, rounds: int, delta: float) -> float:
    """LTP Eq. (20) as printed for ``rounds`` = t + 1 rounds that cost ``charge`` each, least over orders."""
    import dp_accounting as dp
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    accountant = rdp.RdpAccountant()
    sampled = dp.PoissonSampledDpEvent(charge.sampling, dp.GaussianDpEvent(charge.noise))
    accountant.compose(dp.SelfComposedDpEvent(sampled, rounds * charge.steps))
    found = []
    for order, gaussian in zip(accountant._orders, accountant._rdp, strict=True):
        extra = rounds * order * (order - 1) / (2 * charge.laplace**2) if charge.laplace else 0.0
        tail = (math.log(1 / delta) - math.log(order)) / (order - 1) + math.log1p(-1 / order)
        found.append(float(gaussian + extra + tail))
    return max(0.0, min(found))
