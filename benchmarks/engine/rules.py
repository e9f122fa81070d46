"""When a claim holds. The rules know nothing of a claim's numbers but how uncertain they are. The stored results are
older than these rules: they were judged again, and the smallest effects were set, after they were measured.

A comparison is a list of differences ``a - b``, one a seed, which is above 0 where the claim is right. What is known of
its mean is the 95 % interval of Student's t over seeds. A number that is counted and not sampled does not vary, and
its interval is the number. ``by`` is declared with a claim: above 0 the smallest effect that matters, below 0 the
margin within which two sides count as equal.

holds            every comparison is above ``by``, or 0 if that is less, beyond chance, and in the mean at least ``by``;
                 so is the mean over comparisons
holds in trend   the mean over comparisons is, and no single one is refuted
does not hold    a single one is below ``by`` beyond chance (that of as many looks: Bonferroni), or the mean over all
undecided        none of these: the seeds are too few for the spread, or the effect is near ``by``
not judged       a positive control failed, so that nothing can be compared

Where nothing is there, a claim of ``by`` 0 holds, in full or in trend, in at most 2.5 % of measurements, and is refuted
in at most 5 % (``tests/benchmarks/engine/test_rules.py`` plays both). Every verdict carries its reason in words.
"""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import spearmanr, t

Word = Literal["holds", "holds in trend", "undecided", "does not hold", "not judged"]
HOLDS: Word = "holds"
TREND: Word = "holds in trend"
UNDECIDED: Word = "undecided"
NOT: Word = "does not hold"
REFUSED: Word = "not judged"
_ORDER: tuple[Word, ...] = (HOLDS, TREND, UNDECIDED, NOT, REFUSED)
_SAME_ORDER = 0.9  # rank correlation from which two columns count as ordered alike
_TAIL = 0.025  # chance of being wrong, on each side
_ANY = 1e-12  # the smallest effect, where any will do and none will not
_WORDS = {"not": "not at", "open": "undecided at"}
Pairs = Mapping[str, Sequence[tuple[float, float]]]  # (a, b) of every seed, by comparison
Curves = Mapping[str, Sequence[tuple[float, Sequence[float]]]]  # (x, seed by seed) of every point, by line


@dataclass(frozen=True)
class Judgement:
    word: Word
    reason: str


def worst(verdicts: Sequence[Judgement]) -> Judgement:
    """All parts of a claim together: the worst word, every reason.

    >>> worst([Judgement("holds", "A"), Judgement("does not hold", "B")])
    Judgement(word='does not hold', reason='A; B')
    """
    return Judgement(max((v.word for v in verdicts), key=_ORDER.index), "; ".join(v.reason for v in verdicts))


def either(verdicts: Mapping[str, Judgement]) -> Judgement:
    """A claim at the setting where it does best, as a paper that searches for settings would have it; every reason.

    >>> either({"a": Judgement("does not hold", "A"), "b": Judgement("undecided", "B")})
    Judgement(word='undecided', reason='b: B; a (does not hold): A')
    """
    name = min(verdicts, key=lambda key: _ORDER.index(verdicts[key].word))
    others = [f"{key} ({found.word}): {found.reason}" for key, found in verdicts.items() if key != name]
    return Judgement(verdicts[name].word, "; ".join([f"{name}: {verdicts[name].reason}", *others]))


def interval(values: Sequence[float], tail: float = _TAIL) -> tuple[float, float]:
    """The mean's, by Student's t; of one value that could vary nothing is known.

    >>> [tuple(round(end, 2) for end in interval(values)) for values in ([1.0, 2.0, 3.0], [2.0, 2.0], [2.0])]
    [(-0.48, 4.48), (2.0, 2.0), (-inf, inf)]
    """
    if len(values) < 2:
        return -math.inf, math.inf
    mean = statistics.fmean(values)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    wide = _quantile(tail, len(values) - 1) * error if error else 0.0
    return mean - wide, mean + wide


@functools.cache
def _quantile(tail: float, freedom: int) -> float:
    return float(t.ppf(1 - tail, freedom))


def shown(values: Sequence[float]) -> str:
    """A mean and its interval.

    >>> shown([1.0, 2.0, 3.0])
    '+2 [-0.484, +4.48]'
    """
    low, high = interval(values)
    return f"{statistics.fmean(values):+.3g} [{low:+.3g}, {high:+.3g}]"


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's; 0 where one side does not vary."""
    found = float(spearmanr(a, b).statistic) if len(set(a)) > 1 and len(set(b)) > 1 else 0.0
    return found


def within(pairs: Mapping[str, tuple[float, float]], tolerance: float) -> Judgement:
    """(measured, published), counted numbers: every one within a relative tolerance, or at least in the published
    order.

    >>> within({"a": (1.01, 1.0), "b": (2.0, 2.0)}, 0.02).word, within({"a": (3.0, 1.0), "b": (9.0, 2.0)}, 0.02).word
    ('holds', 'holds in trend')
    """
    off = {name: abs(measured / published - 1) for name, (measured, published) in pairs.items()}
    name = max(off, key=lambda key: off[key])
    text = f"largest deviation {off[name]:.2%} ({name}) of {len(off)} numbers, {tolerance:.0%} allowed"
    if off[name] <= tolerance:
        return Judgement(HOLDS, text)
    alike = rank_correlation(*zip(*pairs.values(), strict=True)) >= _SAME_ORDER
    return Judgement(TREND if alike else NOT, text + (", the order is the published one" if alike else ""))


def positive(comparisons: Mapping[str, Sequence[float]], what: str, by: float = 0.0) -> Judgement:
    """The rule of the module for differences by comparison.

    >>> positive({"a": [2.0, 2.1, 1.9]}, "gain").word, positive({"a": [2.0, -2.0, 0.3]}, "gain").word
    ('holds', 'undecided')
    >>> positive({"a": [0.0, 0.01, 0.0]}, "gain", by=1.0)
    Judgement(word='does not hold', reason='gain, 1 or more: not at a; +0.00333 [-0.011, +0.0177] in the mean')
    """
    said: dict[str, list[str]] = {"so": [], "not": [], "open": []}
    for name, values in comparisons.items():
        high = interval(values, _TAIL / len(comparisons))[1]
        said["so" if _there(values, by) else "not" if high < by else "open"].append(name)
    seeds = min(len(values) for values in comparisons.values())
    every = [statistics.fmean(values[seed] for values in comparisons.values()) for seed in range(seeds)]
    pooled = _there(every, by)
    text = f"{what}, {_margin(by)}: " if abs(by) > _ANY else f"{what}: "
    parts = [f"{len(said['so'])} of {len(comparisons)}"] if said["so"] else []
    parts += [f"{word} {', '.join(said[kind])}" for kind, word in _WORDS.items() if said[kind]]
    text += f"{', '.join(parts)}; {shown(every)} in the mean"
    if said["not"] or interval(every)[1] < by:
        return Judgement(NOT, text)
    return Judgement(UNDECIDED if not pooled else TREND if said["open"] else HOLDS, text)


def _there(values: Sequence[float], by: float) -> bool:
    return interval(values)[0] >= min(by, 0.0) and statistics.fmean(values) >= by


def _margin(by: float) -> str:
    return f"{by:g} or more" if by > 0 else f"to {-by:g}"


def at_least(pairs: Pairs, what: str, by: float = 0.0) -> Judgement:
    """a is at least b, of every comparison and seed by seed.

    >>> at_least({"0.5": [(2, 1), (3, 2)]}, "SGI over GI").word, at_least({"0.5": [(1, 2), (1, 2.1)]}, "x").word
    ('holds', 'does not hold')
    """
    return positive({name: [a - b for a, b in seeds] for name, seeds in pairs.items()}, what, by)


def above(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]], what: str = "larger") -> Judgement:
    """Of every pair the first side is larger, seed by seed.

    >>> above({"a": ([0.9, 0.8, 0.9], [0.1, 0.2, 0.1])}).word, above({"a": ([0.1, 0.2], [0.1, 0.2])}).word
    ('holds', 'does not hold')
    """
    return at_least({name: list(zip(*sides, strict=True)) for name, sides in pairs.items()}, what, _ANY)


def at_most(measured: Mapping[str, Sequence[float]], bound: float, what: str) -> Judgement:
    """Every number, seed by seed, at or under a bound.

    >>> at_most({"a": [1.0, 1.0], "b": [1.5, 1.5]}, 2.0, "time")
    Judgement(word='holds', reason='time, under 2: 2 of 2; most 1.50 (b)')
    """
    most = {name: statistics.fmean(values) for name, values in measured.items()}
    name = max(most, key=lambda key: most[key])
    found = positive({key: [bound - value for value in values] for key, values in measured.items()}, "")
    return Judgement(
        found.word, f"{what}, under {bound:g}{found.reason.rpartition(';')[0]}; most {most[name]:.2f} ({name})"
    )


def falls(series: Curves, what: str, by: float = _ANY) -> Judgement:
    """Along every line from its first x to its last, by ``by`` at least; in full only where no step rises in the mean.

    >>> falls({"snip": [(0.1, [30, 31]), (0.5, [20, 21]), (0.9, [10, 10])]}, "PSNR")
    Judgement(word='holds', reason='PSNR falls: 1 of 1; +20.5 [+14.1, +26.9] in the mean')
    """
    ends, rising = dict[str, list[float]](), list[str]()
    for name, points in series.items():
        rows = [values for _, values in sorted(points)]
        ends[name] = [first - last for first, last in zip(rows[0], rows[-1], strict=True)]
        means = [statistics.fmean(values) for values in rows]
        rising += [name] if any(later > before for before, later in zip(means, means[1:], strict=False)) else []
    found = positive(ends, f"{what} falls", by)
    if found.word == HOLDS and rising:
        return Judgement(TREND, f"{found.reason}; with a step that rises at {', '.join(rising)}")
    return found
