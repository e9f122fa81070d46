"""From charges to epsilon, through dp-accounting: sampled Gaussian steps and Laplace answers, composed.

A charge is one answer of a client: perhaps ``steps`` Gaussian mechanisms with noise ``noise`` over Poisson samples with
probability ``sampling``, and perhaps a count released with Laplace noise of scale ``laplace`` (sensitivity 1; LTP 4.4).
Three accountants: ``rdp`` (the moments accountant, fast), ``pld`` (privacy loss distributions, tighter, slower) and
``zcdp``, which uses no amplification by sampling: every step is 1/(2 sigma^2)-zCDP, a Laplace answer 1/(2 scale^2).
All are upper bounds, also where there are too many kinds of steps to be told apart: then the most alike count as the
worse of them. ``pld`` answers with the bound of ``rdp`` where that is the smaller one, or above ``LOSSES``, or for more
than ``REPEATS`` equal steps: distributions that wide take minutes and memory without end. Unit: one example;
neighbours: it is present or replaced by nothing (the number of examples is public), dp-accounting's REPLACE_SPECIAL.

LTP Eq. (20), for one order alpha after t+1 rounds, as printed:
    rho_s + (t + 1) alpha (alpha - 1) / (2 lambda^2) + (log(1/delta) - log(alpha)) / (alpha - 1) + log(1 - 1/alpha)
[erratum] the validation term has a factor (alpha - 1) too many: 1/(2 lambda^2)-zCDP costs alpha / (2 lambda^2) at order
alpha. Its rho_s counts t + 1 Gaussian steps; the published 9.71 counts all tau local ones.

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

import numpy as np

from prunella.core.config import Positive, Weight
from prunella.core.errors import ConfigError, DefenseError
from prunella.privacy.defense import Equal, Larger, Smaller

Accountant = Literal["rdp", "pld", "zcdp"]
Kinds = Counter[tuple[float, float]]  # how many steps of which noise and sampling rate
# The limits of a charge, so that no request of a server can bring an account to numbers that cannot be added up.
NOISE, LAPLACE = (0.1, 1e6), (1e-3, 1e6)
STEPS, NATS = 10**9, 1e12
EVENTS = 32  # kinds of steps that are accounted for one by one: each takes a tenth of a second in a message
# Of privacy loss distributions, where a kind takes up to a second: kinds, the largest ε, and equal steps.
KINDS, LOSSES, REPEATS = 8, 100.0, 10**6
INTERVAL = 1e-4  # the grid of losses, in ε: dp-accounting's own

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


def _coarser(kinds: Kinds, octaves: float) -> Kinds:
    """The kinds of steps within so many octaves of noise and of sampling as one, which is the worst of them."""
    cells: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for noise, sampling in kinds:
        cell = math.floor(math.log2(noise) / octaves), math.floor(math.log2(sampling) / octaves)
        cells.setdefault(cell, []).append((noise, sampling))
    return Counter(
        {
            (min(n for n, _ in cell), max(q for _, q in cell)): sum(kinds[kind] for kind in cell)
            for cell in cells.values()
        }
    )


def _few(kinds: Kinds, most: int = EVENTS) -> Kinds:
    """At most so many kinds of steps (noise, sampling rate), with their counts, that cost no less: a server can ask
    with ever other noise. The two are joined, again and again, that cost least more as twice the worse of them."""
    octaves = 1 / 256
    while len(kinds) > 4 * most:
        kinds, octaves = _coarser(kinds, octaves), 2 * octaves
    while len(kinds) > most:
        known = list(kinds)
        noise, sampling, count = (np.array(a, float) for a in (*zip(*known, strict=True), list(kinds.values())))
        own = _cost(noise, sampling, count)
        worse = np.minimum.outer(noise, noise), np.maximum.outer(sampling, sampling)
        extra = _cost(*worse, np.add.outer(count, count)) - np.add.outer(own, own)
        np.fill_diagonal(extra, math.inf)
        one, other = (known[at] for at in np.unravel_index(np.argmin(extra), extra.shape))
        both = kinds[one] + kinds[other]
        kinds = Counter({kind: number for kind, number in kinds.items() if kind not in (one, other)})
        kinds[min(one[0], other[0]), max(one[1], other[1])] += both
    return kinds


def _cost(noise: np.ndarray, sampling: np.ndarray, count: np.ndarray) -> np.ndarray:
    """About what steps cost: their Renyi divergence of order two, as long as that is finite."""
    found: np.ndarray = count * sampling**2 * np.expm1(np.minimum(noise**-2.0, 50.0))
    return found


def _events(charges: Iterable[Charge], sampled: bool, most: int = EVENTS) -> list[Any]:
    """dp-accounting's events, equal ones counted together; at most so many of steps, and as many of answers."""
    import dp_accounting as dp  # a second of importing that chains without an epsilon need not wait for

    steps: Kinds = Counter()
    answers: Kinds = Counter()
    for charge in charges:
        if charge.noise and charge.steps:
            steps[charge.noise, charge.sampling if sampled else 1.0] += charge.steps
        if charge.laplace:
            answers[charge.laplace, 1.0] += 1
    events: list[Any] = []
    for (noise, sampling), count in _few(steps, most).items():
        gaussian = dp.GaussianDpEvent(noise)
        step = dp.PoissonSampledDpEvent(sampling, gaussian) if sampling < 1 else gaussian
        events.append(dp.SelfComposedDpEvent(step, count))
    for (scale, _), count in _few(answers, most).items():
        answer = dp.LaplaceDpEvent(scale) if sampled else dp.ZCDpEvent(rho=1 / (2 * scale * scale))
        events.append(dp.SelfComposedDpEvent(answer, count))
    return events


# A message asks for one ε three times, and the next message for most of it again.
@functools.lru_cache(maxsize=4 * EVENTS)
def _renyi(event: Any) -> Any:
    """Renyi divergences of one event, at dp-accounting's orders: a tenth of a second of computing."""
    import dp_accounting as dp

    return dp.rdp.RdpAccountant(None, dp.NeighboringRelation.REPLACE_SPECIAL).compose(event)._rdp


@functools.lru_cache(maxsize=EVENTS)
def _by_losses(events: tuple[Any, ...], delta: float, interval: float) -> float:
    """ε by privacy loss distributions on a grid of ``interval``: seconds of computing."""
    import dp_accounting as dp

    made = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=interval)
    return float(made.compose(dp.ComposedDpEvent(list(events))).get_epsilon(delta))


def _interval(charges: Iterable[Charge], bound: float) -> float:
    """The grid of losses where ε is at most ``bound``: the wider the losses, the coarser, so that they fit into memory.
    It rounds up at every width. One step of noise s lets out a loss of at most (1 + 16 s) / (2 s^2), but for 1e-15."""
    least = min((charge.noise for charge in charges if charge.noise), default=NOISE[1])
    return INTERVAL * max(1.0, bound / 10, (1 + 16 * least) / (20 * least**2))


def epsilon(charges: Iterable[Charge], delta: float, accountant: Accountant) -> float:
    """The epsilon at ``delta`` of all charges together; infinite where an accountant has no finite one."""
    import dp_accounting as dp

    # It warns of every order that it leaves out, which makes the bound no smaller than with it.
    logging.getLogger("absl").setLevel(logging.ERROR)

    charges = tuple(charges)
    events = _events(charges, sampled=accountant != "zcdp")
    if not events:
        return 0.0
    made: Any = dp.rdp.RdpAccountant(None, dp.NeighboringRelation.REPLACE_SPECIAL)
    for repeated in events:
        made._rdp += repeated.count * _renyi(repeated.event)
    bound = float(made.get_epsilon(delta))
    if accountant != "pld" or bound > LOSSES or max(event.count for event in events) > REPEATS:
        return bound
    return min(bound, _by_losses(tuple(_events(charges, True, KINDS)), delta, _interval(charges, bound)))
