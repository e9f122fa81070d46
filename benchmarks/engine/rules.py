"""When a claim holds. The rules are fixed before a measurement and know nothing of it.

holds            every comparison of the claim came out as it says
holds in trend   the direction is right, single comparisons are not
does not hold    the direction is not there
not judged       a positive control failed, so that nothing can be compared

Every verdict carries its reason in words.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import spearmanr

Word = Literal["holds", "holds in trend", "does not hold", "not judged"]
HOLDS: Word = "holds"
TREND: Word = "holds in trend"
NOT: Word = "does not hold"
REFUSED: Word = "not judged"
_ORDER: tuple[Word, ...] = (HOLDS, TREND, NOT, REFUSED)
_SAME_ORDER = 0.9  # rank correlation from which two columns count as ordered alike


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


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's; 0 where one side does not vary."""
    found = float(spearmanr(a, b).statistic) if len(set(a)) > 1 and len(set(b)) > 1 else 0.0
    return found


def within(pairs: Mapping[str, tuple[float, float]], tolerance: float) -> Judgement:
    """(measured, published): every one within a relative tolerance, or at least in the published order.

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


def falls(series: Mapping[str, Sequence[tuple[float, float, float]]], what: str) -> Judgement:
    """(x, mean, spread) by series: falling at every step; in trend, rank correlation below 0 and an end below the
    beginning by more than the larger spread of the two.

    >>> falls({"snip": [(0.1, 30, 1), (0.5, 20, 1), (0.9, 10, 1)]}, "PSNR").word
    'holds'
    """
    strict, trend, rest = [], [], []
    for name, points in series.items():
        ordered = sorted(points)
        xs, means, spreads = zip(*ordered, strict=True)
        if all(later < before for before, later in zip(means, means[1:], strict=False)):
            strict.append(name)
        elif rank_correlation(xs, means) < 0 and means[0] - means[-1] > max(spreads[0], spreads[-1]):
            trend.append(name)
        else:
            rest.append(name)
    text = f"{what} falls at every step for {len(strict)} of {len(series)}"
    text += f", from end to end for {', '.join(trend)}" if trend else ""
    text += f", not for {', '.join(rest)}" if rest else ""
    return Judgement(NOT if rest else TREND if trend else HOLDS, text)


def at_least(pairs: Mapping[str, Sequence[tuple[float, float]]], what: str) -> Judgement:
    """(a, b) of every seed by comparison: a's mean is not under b's; in trend, under it nowhere by more than the spread
    of the differences, and not in the mean over all.

    >>> at_least({"0.5": [(2, 1), (3, 1)]}, "SGI over GI").word, at_least({"0.5": [(1, 2), (1, 2.1)]}, "x").word
    ('holds', 'does not hold')
    """
    means, clear = {}, []
    for name, seeds in pairs.items():
        differences = [a - b for a, b in seeds]
        means[name] = math.fsum(differences) / len(differences)
        spread = math.sqrt(math.fsum((d - means[name]) ** 2 for d in differences) / max(1, len(differences) - 1))
        if means[name] < -spread or (means[name] < 0 and len(differences) == 1):
            clear.append(name)
    under = [name for name, mean in means.items() if mean < 0]
    overall = math.fsum(means.values()) / len(means)
    text = f"{what}: not under in {len(means) - len(under)} of {len(means)} comparisons, {overall:+.3g} in the mean"
    if not under:
        return Judgement(HOLDS, text)
    text += f"; under at {', '.join(under)}"
    return Judgement(TREND if not clear and overall >= 0 else NOT, text)


def above(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Judgement:
    """Of every pair the first is larger, seed by seed: the mean of the differences is beyond twice its standard error.
    In trend: some are and none is smaller.

    >>> above({"a": ([0.9, 0.8, 0.9], [0.1, 0.2, 0.1]), "b": ([0.1, 0.2], [0.2, 0.1])})
    Judgement(word='holds in trend', reason='holds: a; undecided: b')
    """
    said: dict[str, list[str]] = {"holds": [], "fails": [], "undecided": []}
    for name, sides in pairs.items():
        gaps = [a - b for a, b in zip(*sides, strict=True)]
        mean, error = statistics.mean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
        said["undecided" if abs(mean) <= 2 * error else "holds" if mean > 0 else "fails"].append(name)
    text = "; ".join(f"{outcome}: {', '.join(names)}" for outcome, names in said.items() if names)
    every, some = len(said["holds"]) == len(pairs), bool(said["holds"]) and not said["fails"]
    return Judgement(HOLDS if every else TREND if some else NOT, text)


def at_most(measured: Mapping[str, float], bound: float, what: str) -> Judgement:
    """Every number at or under a bound; in trend, their mean.

    >>> at_most({"a": 1.0, "b": 2.5}, 2.0, "time").word
    'holds in trend'
    """
    name = max(measured, key=lambda key: measured[key])
    text = f"{what}: most {measured[name]:.2f} ({name}), bound {bound:.2f}"
    if measured[name] <= bound:
        return Judgement(HOLDS, text)
    return Judgement(TREND if math.fsum(measured.values()) / len(measured) <= bound else NOT, text)
