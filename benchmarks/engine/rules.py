"""When a claim holds. The rules know nothing of a claim's numbers but how uncertain they are. The stored results are
older than these rules: they were judged again, and the smallest effects were set, after they were measured.

A comparison is a list of differences ``a - b``, one a seed, which is above 0 where the claim is right. What is known of
its mean is the interval of Student's t over seeds, 95 % where one is shown. A number that is counted and not sampled
does not vary, and its interval is the number. ``by`` is declared with a claim: above 0 the smallest effect that
matters, below 0 the margin within which two sides count as equal.

holds            every comparison is above ``by``, or 0 if that is less, beyond chance, and in the mean at least ``by``;
                 so is the mean over comparisons
holds in trend   the mean over comparisons is, and no single one is refuted
does not hold    a single one is below ``by`` beyond chance, or the mean over all
undecided        none of these: the seeds are too few for the spread, or the effect is near ``by``
not judged       a positive control failed, so that nothing can be compared, or a number that the rule needs is none

Where there is nothing (``by`` 0), or an effect of just ``by``, a claim holds, in full or in trend, in 2.5 % of
measurements at most, and is refuted in 2.5 %. All looks that can refute it share the second (Bonferroni): comparisons,
their mean, and those of the other parts (``worst``). Settings of which the best counts (``either``) share the first;
nothing else is a second try to hold.
So at most 5 % of verdicts are wrong, however comparisons, parts and settings hang together
(``tests/benchmarks/engine/test_rules.py`` plays it; before the chances were shared it was 5 to 7 % of one to eight
comparisons, 9 and 17 % of two and four parts, and 8 % of the best of three settings). That is of one claim, not of all
claims together. It takes differences whose noise is symmetric, as that of pairs is, and normal or a mixture of normals,
whether seeds differ in spread or tails are heavy (Bakirov and Szekely 2006; Ibragimov and Mueller, "t-statistic based
correlation and heterogeneity robust inference", 2010). It is more for noise that has bounds (6 to 8 % where it is
uniform), that leans to one side (5 to 27 % where it is exponential) or that takes few values (25 % of three throws of a
coin, which may fall alike).

Images are not drawn again. A two-level bootstrap of seeds and images (``claim.Point.interval``) of 95 % misses the
truth at three seeds in 3 to 6 % where seeds differ by their images only, but in 17 to 19 % where half of the variance
is the seed's and in 23 to 25 % where all of it is, at eight seeds in 8 and 11 %; ``scipy.stats.bootstrap`` (BCa) of
three seeds' means in 25 to 31 %. Student's t over these means misses it in 5 % of all: with as many images for each
seed it is the exact test for images within seeds. More images make the means steadier; three seeds cannot tell how much
of the variance is theirs. Every verdict carries its reason in words.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from scipy.stats import spearmanr, t

Word = Literal["holds", "holds in trend", "undecided", "does not hold", "not judged"]
HOLDS: Word = "holds"
TREND: Word = "holds in trend"
UNDECIDED: Word = "undecided"
NOT: Word = "does not hold"
REFUSED: Word = "not judged"
_ORDER: tuple[Word, ...] = (HOLDS, TREND, UNDECIDED, NOT, REFUSED)
_SAME_ORDER = 0.9  # rank correlation from which two columns count as ordered alike
_TAIL = 0.025  # each side of an interval of 95 %
_ANY = 1e-12  # the smallest effect, where any will do and none will not
_WORDS = {"not": "not at", "open": "undecided at"}
Pairs = Mapping[str, Sequence[tuple[float, float]]]  # (a, b) of every seed, by comparison
Curves = Mapping[str, Sequence[tuple[float, Sequence[float]]]]  # (x, seed by seed) of every point, by line


class Shares(NamedTuple):
    """Among how many the chances of being wrong are shared: ``settings`` to hold at, ``looks`` to be refuted by."""

    settings: int = 1
    looks: int = 1


ALONE = Shares()


@dataclass(frozen=True)
class Judgement:
    """``looks`` are those by which it could be refuted, none where nothing was left to chance; ``again`` judges the
    same numbers where they share their chances with others."""

    word: Word
    reason: str
    looks: int = field(default=0, compare=False, repr=False)
    again: Callable[[Shares], "Judgement"] | None = field(default=None, compare=False, repr=False)


def _among(shares: Shares, verdict: Judgement) -> Judgement:
    return verdict.again(shares) if verdict.again else verdict


def worst(verdicts: Sequence[Judgement], shares: Shares = ALONE) -> Judgement:
    """All parts of a claim together: the worst word, every reason. Every look at any of them may refute it.

    >>> worst([Judgement("holds", "A"), Judgement("does not hold", "B")])
    Judgement(word='does not hold', reason='A; B')
    """
    looks = sum(verdict.looks for verdict in verdicts)
    parts = [_among(Shares(shares.settings, max(shares.looks, looks)), verdict) for verdict in verdicts]
    word = max((part.word for part in parts), key=_ORDER.index)
    return Judgement(word, "; ".join(part.reason for part in parts), looks, partial(worst, verdicts))


def either(verdicts: Mapping[str, Judgement], shares: Shares = ALONE) -> Judgement:
    """A claim at the setting where it does best, as a paper that searches for settings would have it; every reason.
    It may hold at any of them, and is refuted only at all.

    >>> either({"a": Judgement("does not hold", "A"), "b": Judgement("undecided", "B")})
    Judgement(word='undecided', reason='b: B; a (does not hold): A')
    """
    number = sum(verdict.looks > 0 for verdict in verdicts.values()) or 1
    every = {key: _among(Shares(shares.settings * number, shares.looks), one) for key, one in verdicts.items()}
    name = min(every, key=lambda key: _ORDER.index(every[key].word))
    others = [f"{key} ({found.word}): {found.reason}" for key, found in every.items() if key != name]
    reason = "; ".join([f"{name}: {every[name].reason}", *others])
    looks = max(verdict.looks for verdict in verdicts.values())
    return Judgement(every[name].word, reason, looks, partial(either, verdicts))


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


def _unknown(what: str, found: Mapping[str, Iterable[float]]) -> Judgement | None:
    """Refused where a number is NaN or infinite: comparing with it tells nothing, whichever way it comes out."""
    names = [name for name, values in found.items() if not all(map(math.isfinite, values))]
    return Judgement(REFUSED, f"{what}: no finite number at {', '.join(names)}") if names else None


def within(pairs: Mapping[str, tuple[float, float]], tolerance: float) -> Judgement:
    """(measured, published), counted numbers: every one within a relative tolerance, or at least in the published
    order.

    >>> within({"a": (1.01, 1.0), "b": (2.0, 2.0)}, 0.02).word, within({"a": (3.0, 1.0), "b": (9.0, 2.0)}, 0.02).word
    ('holds', 'holds in trend')
    """
    if unknown := _unknown("deviation", pairs):
        return unknown
    off = {name: abs(measured / published - 1) for name, (measured, published) in pairs.items()}
    name = max(off, key=lambda key: off[key])
    text = f"largest deviation {off[name]:.2%} ({name}) of {len(off)} numbers, {tolerance:.0%} allowed"
    if off[name] <= tolerance:
        return Judgement(HOLDS, text)
    alike = rank_correlation(*zip(*pairs.values(), strict=True)) >= _SAME_ORDER
    return Judgement(TREND if alike else NOT, text + (", the order is the published one" if alike else ""))


def positive(
    comparisons: Mapping[str, Sequence[float]], what: str, by: float = 0.0, shares: Shares = ALONE
) -> Judgement:
    """The rule of the module for differences by comparison.

    >>> positive({"a": [2.0, 2.1, 1.9]}, "gain").word, positive({"a": [2.0, -2.0, 0.3]}, "gain").word
    ('holds', 'undecided')
    >>> positive({"a": [0.0, 0.01, 0.0]}, "gain", by=1.0)
    Judgement(word='does not hold', reason='gain, 1 or more: not at a; +0.00333 [-0.011, +0.0177] in the mean')
    """
    if unknown := _unknown(what, comparisons):
        return unknown
    seeds = min(len(values) for values in comparisons.values())
    every = [statistics.fmean(values[seed] for values in comparisons.values()) for seed in range(seeds)]
    looks = len(comparisons) + (len(comparisons) > 1)  # one comparison is its own mean
    tail, other = _TAIL / shares.settings, _TAIL / max(looks, shares.looks)
    said: dict[str, list[str]] = {"so": [], "not": [], "open": []}
    for name, values in comparisons.items():
        under = interval(values, other)[1] < by
        said["not" if under else "so" if _there(values, by, tail) else "open"].append(name)
    text = f"{what}, {_margin(by)}: " if abs(by) > _ANY else f"{what}: "
    parts = [f"{len(said['so'])} of {len(comparisons)}"] if said["so"] else []
    parts += [f"{word} {', '.join(said[kind])}" for kind, word in _WORDS.items() if said[kind]]
    text += f"{', '.join(parts)}; {shown(every)} in the mean"
    word = UNDECIDED
    if said["not"] or interval(every, other)[1] < by:
        word = NOT
    elif _there(every, by, tail):
        word = TREND if said["open"] else HOLDS
    return Judgement(word, text, looks, partial(positive, comparisons, what, by))


def _there(values: Sequence[float], by: float, tail: float) -> bool:
    return interval(values, tail)[0] >= min(by, 0.0) and statistics.fmean(values) >= by


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


def at_most(measured: Mapping[str, Sequence[float]], bound: float, what: str, shares: Shares = ALONE) -> Judgement:
    """Every number, seed by seed, at or under a bound.

    >>> at_most({"a": [1.0, 1.0], "b": [1.5, 1.5]}, 2.0, "time")
    Judgement(word='holds', reason='time, under 2: 2 of 2; most 1.50 (b)')
    """
    if unknown := _unknown(what, measured):
        return unknown
    most = {name: statistics.fmean(values) for name, values in measured.items()}
    name = max(most, key=lambda key: most[key])
    under = {key: [bound - value for value in values] for key, values in measured.items()}
    found = positive(under, "", shares=shares)
    text = f"{what}, under {bound:g}{found.reason.rpartition(';')[0]}; most {most[name]:.2f} ({name})"
    return Judgement(found.word, text, found.looks, partial(at_most, measured, bound, what))


def falls(series: Curves, what: str, by: float = _ANY, shares: Shares = ALONE) -> Judgement:
    """Along every line from its first x to its last, by ``by`` at least; in full only where no step rises in the mean.

    >>> falls({"snip": [(0.1, [30, 31]), (0.5, [20, 21]), (0.9, [10, 10])]}, "PSNR")
    Judgement(word='holds', reason='PSNR falls: 1 of 1; +20.5 [+14.1, +26.9] in the mean')
    """
    steps = {name: [value for _, values in points for value in values] for name, points in series.items()}
    if unknown := _unknown(f"{what} falls", steps):
        return unknown
    ends, rising = dict[str, list[float]](), list[str]()
    for name, points in series.items():
        rows = [values for _, values in sorted(points)]
        ends[name] = [first - last for first, last in zip(rows[0], rows[-1], strict=True)]
        means = [statistics.fmean(values) for values in rows]
        rising += [name] if any(later > before for before, later in zip(means, means[1:], strict=False)) else []
    found = positive(ends, f"{what} falls", by, shares)
    word, reason = found.word, found.reason
    if word == HOLDS and rising:
        word, reason = TREND, f"{reason}; with a step that rises at {', '.join(rising)}"
    return Judgement(word, reason, found.looks, partial(falls, series, what, by))
