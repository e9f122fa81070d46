"""What an attacker can prove of an epsilon: lower bounds from games, to be held against the ledger's upper bound.

A bound above the ledger's epsilon proves that the mechanism is broken. One below it proves nothing: this attacker did
not get further in so many trials.

``from_game``: an example is present in some trials and absent in others, and every trial gives the attacker one score.
For every event S, (epsilon, delta) promises P(S | one) <= exp(epsilon) P(S | other) + delta, both ways. S is "the score
is at least t" or "is below t", chosen on the first half of the trials; both probabilities are bounded on the other half
(Clopper and Pearson 1934), so that the confidence holds whatever the scores are. n trials a side cannot prove more than
about log(n / 7.4) at 95 %.

``one_run``: one answer to m canaries, each included by a fair coin, and guesses about some of the coins (Steinke, Nasr
and Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2 and its p-value). Under epsilon alone the
number of right guesses is at most Binomial(guesses, e^eps / (1 + e^eps)) in distribution; delta adds at most
2 m delta max_i P[v > Binomial >= v - i] / i to the chance of v of them. Rigorous, never tight.

``if_normal``: assumes that scores are normal with one variance (Andrew et al. 2024, "One-shot empirical privacy
estimation for federated learning", who take the left out canaries' distribution from theory where this takes it from
their scores). An estimate for one Gaussian mechanism without sampling, close to the truth there; no bound elsewhere.

>>> one_run(correct=75, guesses=100, canaries=1000, delta=1e-4, confidence=0.95) < 0.674  # the paper prints 0.673
True
>>> round(from_game([1.0] * 2000, [0.0] * 2000, 1e-5, 0.95), 1), from_game([0.0] * 2000, [0.0] * 2000, 1e-5, 0.95)
(5.6, 0.0)
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = Sequence[float] | NDArray[np.float64]
Array = NDArray[np.float64]
# Which of the two sides an event is likely under, and whether it is the scores from the threshold on or those below.
RULES = tuple((inside, above) for inside in (True, False) for above in (True, False))
TRIED = 400  # thresholds tried from each end
GRID = 0.05  # of epsilons: the p-value is looked at this often, since nothing says that it only grows


def _check(delta: float, confidence: float) -> None:
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise ValueError("an empirical ε needs delta in [0, 1) and confidence in (0, 1)")


def _scores(values: Scores, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2 or bool(np.isnan(array).any()):
        raise ValueError(f"the scores {name} must be one row of at least two numbers, none NaN")
    return array


def _at_least(counts: Any, of: int, miss: float) -> Array:
    """The lower Clopper-Pearson limit of the probability behind ``counts`` of ``of``, wrong with chance ``miss``."""
    low = stats.beta.ppf(miss, np.maximum(counts, 1), of - np.asarray(counts) + 1)
    return np.asarray(np.where(np.asarray(counts) > 0, low, 0.0), dtype=np.float64)


def _at_most(counts: Any, of: int, miss: float) -> Array:
    return 1 - _at_least(of - np.asarray(counts), of, miss)


def _count(scores: Array, thresholds: Any, above: bool) -> Any:
    below = np.searchsorted(np.sort(scores), thresholds, side="left")
    return len(scores) - below if above else below


def _proven(likely: Array, unlikely: Array, thresholds: Any, above: bool, delta: float, miss: float) -> Array:
    """log((p - delta) / q) for the event's two probabilities, p at least and q at most; 0 where nothing follows."""
    p = _at_least(_count(likely, thresholds, above), len(likely), miss / 2)
    q = _at_most(_count(unlikely, thresholds, above), len(unlikely), miss / 2)
    ratio = np.maximum(p - delta, 0) / np.maximum(q, np.finfo(np.float64).tiny)
    return np.log(np.maximum(ratio, 1.0))


def _thresholds(values: Array) -> Array:
    """Between neighbours of the sorted ``values``, every one near both ends and ever fewer towards the middle."""
    between = np.append(values[:1], np.nextafter(values[:-1], np.inf) / 2 + values[1:] / 2)
    steps = np.unique(np.geomspace(1, len(between), TRIED).astype(np.int64)) - 1
    return between[np.union1d(steps, len(between) - 1 - steps)]


def from_game(inside: Scores, outside: Scores, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that trials with (``inside``) and without (``outside``) the example rule out at ``delta``.

    Scores are of independent trials, at least four a side and in no order; larger or smaller ones may speak for
    presence. The result exceeds the true epsilon with probability at most 1 - ``confidence``. Raises ``ValueError``.
    """
    _check(delta, confidence)
    sides = _scores(inside, "inside"), _scores(outside, "outside")
    if min(map(len, sides)) < 4:
        raise ValueError("a game needs at least four trials a side: half of them choose the threshold")
    first = [side[: len(side) // 2] for side in sides]
    second = [side[len(side) // 2 :] for side in sides]
    thresholds = _thresholds(np.unique(np.concatenate(first)))
    best, chosen = -1.0, (0.0, True, True)
    for is_inside, above in RULES:
        likely, unlikely = first if is_inside else first[::-1]
        proven = _proven(likely, unlikely, thresholds, above, delta, 1 - confidence)
        at = int(np.argmax(proven))
        if proven[at] > best:
            best, chosen = float(proven[at]), (float(thresholds[at]), is_inside, above)
    threshold, is_inside, above = chosen
    likely, unlikely = second if is_inside else second[::-1]
    return float(_proven(likely, unlikely, threshold, above, delta, 1 - confidence))


def right_guesses(scores: Scores, included: Sequence[bool] | NDArray[np.bool_], guesses: int) -> int:
    """How many of ``guesses`` are right: half name the highest scores as included, half the lowest as left out."""
    order = np.argsort(_scores(scores, "of the canaries"), kind="stable")
    coins = np.asarray(included, dtype=bool)
    if coins.shape != order.shape or not 2 <= guesses <= len(order) or guesses % 2:
        raise ValueError("right_guesses needs one coin a score and an even number of guesses, 2 to all canaries")
    half = guesses // 2
    return int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())


def _p_value(epsilon: float, correct: int, guesses: int, canaries: int, delta: float) -> float:
    """The largest chance that (epsilon, delta) leaves for so many right guesses or more."""
    accuracy = 1 / (1 + math.exp(-epsilon))
    enough = float(stats.binom.sf(correct - 1, guesses, accuracy))
    short = np.arange(1, correct + 1)
    nearly = stats.binom.sf(correct - 1 - short, guesses, accuracy) - enough
    return enough + 2 * canaries * delta * float(np.max(nearly / short, initial=0.0))


def one_run(correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that ``correct`` of ``guesses`` about ``canaries`` fair coins rule out at ``delta``.

    The number of guesses is fixed beforehand, not chosen by how many turned out right. Raises ``ValueError``.
    """
    _check(delta, confidence)
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise ValueError("one_run needs 0 <= correct <= guesses <= canaries and at least one guess")

    def ruled_out(epsilon: float) -> bool:
        return _p_value(epsilon, correct, guesses, canaries, delta) <= 1 - confidence

    if not ruled_out(0.0):
        return 0.0
    low = 0.0
    while ruled_out(low + GRID):  # ends: all right is certain, and fewer impossible, as epsilon grows
        low += GRID
    high = low + GRID
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if ruled_out(middle) else (low, middle)
    return low


def if_normal(inside: Scores, outside: Scores, delta: float, confidence: float = 0.95) -> float:
    """An epsilon at ``delta`` if scores are normal with one variance: that of the least mu-GDP for their distance.

    mu is the difference of means in deviations, less its standard error times the normal quantile of ``confidence``.
    Infinite where no score differs from its side's mean and the means differ. Raises ``ValueError``.
    """
    import dp_accounting as dp  # a second of importing that bounds without it need not wait for

    _check(delta, confidence)
    one, other = _scores(inside, "inside"), _scores(outside, "outside")
    freedom = len(one) + len(other) - 2
    gap = float(one.mean() - other.mean())
    spread = math.sqrt((len(one) * one.var() + len(other) * other.var()) / freedom)
    if spread == 0:
        return math.inf if gap > 0 else 0.0
    distance = gap / spread
    error = math.sqrt(1 / len(one) + 1 / len(other) + distance**2 / (2 * freedom))
    mu = distance - float(stats.norm.ppf(confidence)) * error
    with np.errstate(divide="ignore"):
        return float(dp.get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0
