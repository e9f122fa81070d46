"""The settings that advice compares: a shortlist of chains of defenses, and the neighbours of those that pay off.

A chain with an ε gets the noise that its ε needs over all rounds of the run that is asked about and the steps of the
client that makes its first mask, at the site with the fewest examples, which samples each one most often; the
federations that are tried here may be shorter.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from prunella.core.config import Raw, Run, parse_run, parse_section
from prunella.core.errors import ConfigError
from prunella.privacy import find_defense
from prunella.privacy.accounting import NOISE, Accountant, Charge, Privacy, epsilon
from prunella.strategies import find, scheme_settings
from prunella.tasks.data import make_task

NONE, PRIVATE = "none", "dp-sgd"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CHAINS: tuple[tuple[str, float | None], ...] = (
    *(
        (NONE, None),
        (PRIVATE, 16.0),
        (PRIVATE, 4.0),
        (PRIVATE, 1.0),
    ),  # first: a short budget is to know what an ε costs
    *(("dgp", None), ("priprune", None), ("channel-natural", None), ("channel-white", None)),
    *(("dgp,mask-hiding", None), ("channel-natural,dgp", None), ("channel-natural,priprune", None)),
    (f"{PRIVATE},dgp", 4.0),
)
RATES = (0.3, 0.7)
PRECISION = 1e-4  # of the logarithm of a noise
STRENGTHS: Mapping[str, tuple[float, ...]] = {  # of the defenses that have one, from more noise to less
    "channel-natural.kappa": (5.0, 15.0, 50.0, 150.0),
    "channel-white.kappa": (50.0, 150.0, 500.0, 1500.0),
    "priprune.lambda-pri": (150.0, 50.0, 15.0, 5.0),
}


@dataclass(frozen=True)
class Proposal:
    """A chain with the pruning rate, the strengths and the ε that it is tried at; None is a chain without one."""

    chain: str
    rate: float
    epsilon: float | None = None
    strengths: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """
        >>> Proposal("dp-sgd,dgp", 0.3, 4.0).name, Proposal("none", 0.0).name
        ('dp-sgd,dgp at ε 4, rate 0.3', 'none, unpruned')
        >>> Proposal("channel-natural", 0.7, None, (("channel-natural.kappa", 15.0),)).name
        'channel-natural (kappa 15), rate 0.7'
        """
        at = "" if self.epsilon is None else f" at ε {self.epsilon:g}"
        at += "".join(f" ({key.rpartition('.')[2]} {value:g})" for key, value in self.strengths)
        return f"{self.chain}{at}, " + (f"rate {self.rate:g}" if self.rate else "unpruned")


@dataclass(frozen=True)
class Question:
    """What is asked about. ``given`` are the settings that the user typed; the others are the app's. ``sites`` train,
    of which the smallest has ``examples`` of so many ``pixels``; each federation here has ``short`` rounds. The
    learning rates are those that were found to learn, without noise and with it."""

    given: Raw
    settings: Raw
    sites: int
    short: int
    examples: int
    pixels: int
    learning_rate: float
    private_rate: float

    @property
    def rates(self) -> tuple[float, ...]:
        """Pruning rates to try: the user's own, or ``RATES``."""
        if self.settings["strategy"] == "fedavg":
            return (0.0,)
        return (float(self.given["rate"]),) if "rate" in self.given else RATES

    @property
    def chains(self) -> tuple[tuple[str, float | None], ...]:
        """Chains to try: the user's own beside none, or ``CHAINS``."""
        own = str(self.given.get("defenses", NONE))
        return CHAINS if "defenses" not in self.given else tuple(dict.fromkeys([(NONE, None), (own, None)]))


def noise_for(target: float, question: Question) -> float:
    """The least noise multiplier, to three digits, with which a run's ε is at most ``target`` at any site, that which
    makes the run's first mask included. Raises ``ConfigError`` where there is none."""
    run, privacy = parse_run(question.settings), parse_section(question.settings, "privacy", Privacy)
    steps = run.rounds * run.local_steps + _first_steps(run, question.settings)
    sampling = min(1.0, run.batch_size / question.examples)
    found = least_noise(target, sampling, steps, privacy.delta, privacy.accountant)
    if found is None:
        raise ConfigError(f"no noise brings {steps} steps on {question.examples} examples to ε {target:g}")
    return found


def _first_steps(run: Run, raw: Raw) -> int:
    """The most local steps of the client that makes the run's first mask, which are charged beside its rounds."""
    first = find(run.strategy).client.first_mask
    if first is None:
        return 0
    return first(run, scheme_settings(run.strategy, raw), make_task(run.model, run.dataset, None)).steps


@functools.cache
def least_noise(target: float, sampling: float, steps: int, delta: float, accountant: Accountant) -> float | None:
    """By bisection: ε falls in the noise. None where the most noise that is accounted for is too little."""

    def spent(noise: float) -> float:
        return epsilon([Charge("advice", noise, sampling, steps)], delta, accountant)

    low, high = (math.log(end) for end in NOISE)
    if spent(math.exp(high)) > target:
        return None
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if spent(math.exp(middle)) <= target else (middle, high)
    unit = 10.0 ** (math.floor(high / math.log(10)) - 2)
    return round(math.ceil(math.exp(high) / unit) * unit, 12)


def settings_of(proposal: Proposal, question: Question) -> dict[str, Any]:
    """What the proposal sets, beside what the user has typed."""
    noisy = any(find_defense(name).private for name in proposal.chain.split(","))
    found: dict[str, Any] = {"defenses": proposal.chain, **dict(proposal.strengths)}
    found |= {"rate": proposal.rate} if proposal.rate else {}
    found |= {"learning-rate": question.private_rate if noisy else question.learning_rate}
    if proposal.epsilon is not None:
        found[f"{PRIVATE}.noise-multiplier"] = noise_for(proposal.epsilon, question)
    return found


def shortlist(question: Question, rate: float) -> list[Proposal]:
    """Every chain at one pruning rate."""
    return [Proposal(chain, rate, target) for chain, target in question.chains]


def beside(value: float, ladder: Iterable[float]) -> list[float]:
    """The next lower and the next higher rung.

    >>> beside(4.0, (1.0, 2.0, 4.0, 8.0)), beside(1.0, (1.0, 2.0)), beside(3.0, (1.0, 2.0))
    ([2.0, 8.0], [2.0], [2.0])
    """
    lower, higher = [v for v in ladder if v < value], [v for v in ladder if v > value]
    return [*([max(lower)] if lower else []), *([min(higher)] if higher else [])]


def neighbours(proposal: Proposal, question: Question) -> list[Proposal]:
    """The same chain at other pruning rates, and one step stronger and weaker; what the user typed stays."""
    found = [replace(proposal, rate=rate) for rate in question.rates if rate != proposal.rate]
    if proposal.epsilon is not None:
        found += [replace(proposal, epsilon=each) for each in beside(proposal.epsilon, EPSILONS)]
    for key, ladder in STRENGTHS.items():
        if key.partition(".")[0] not in proposal.chain.split(",") or key in question.given:
            continue
        own = dict(proposal.strengths)
        now = float(own.get(key, question.settings[key]))
        found += [replace(proposal, strengths=tuple({**own, key: each}.items())) for each in beside(now, ladder)]
    return found
