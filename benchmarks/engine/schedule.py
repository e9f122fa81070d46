"""Which cell is measured next: the one that tells most per second.

A *round* of a claim is all its cells of one seed, their controls among them. The first one tells 1: it turns nothing
into something. The n-th narrows intervals, which are about 1/√n wide, and tells 1/√(n - 1) - 1/√n. A claim's rounds
follow one another, and of the claims that one goes first whose round tells most over the seconds of its cells that are
left, with the rounds of other claims that end with it; within it the cheapest cell, its control before it. For claims
that share no cells, with seeds that take equally long, no order completes as much as early (Smith's rule, Naval
Research Logistics Quarterly 3, 1956): it may be stopped at any time.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence

Rounds = Sequence[Sequence[str]]
_LEAST = 1e-9  # seconds: no cell is free


def gain(before: int) -> float:
    """What a round tells where so many seeds are known.

    >>> [round(gain(before), 2) for before in range(4)]
    [1, 0.29, 0.13, 0.08]
    """
    return before**-0.5 - (before + 1) ** -0.5 if before else 1


def next_cell(
    claims: Mapping[str, Rounds], controls: Mapping[str, str], seconds: Callable[[str], float], taken: Container[str]
) -> str | None:
    """The cell to take after those that were ``taken``, by key; None where all were. ``controls`` has the control of
    each cell that has one.

    >>> claims = {"long": [["a", "b"]], "short": [["c"], ["d"]]}
    >>> next_cell(claims, {"c": "e"}, {"a": 9, "b": 9, "c": 1, "d": 1, "e": 5}.__getitem__, [])
    'e'
    """
    rounds = list[tuple[float, list[str], set[str]]]()  # of every claim the first that is not finished
    for each in claims.values():
        left = ((gain(n), [key for key in keys if key not in taken]) for n, keys in enumerate(each))
        rounds += [(tells, keys, set(keys)) for tells, keys in left if keys][:1]

    def cost(keys: Sequence[str]) -> float:
        return max(_LEAST, sum(map(seconds, keys)))

    def rate(keys: Sequence[str], together: set[str]) -> float:
        return sum(tells for tells, _, others in rounds if others <= together) / cost(keys)

    def missing(key: str) -> list[str]:
        return [one for one in (controls.get(key, key), key) if one not in taken]

    if not rounds:
        return None
    _, keys, _ = max(rounds, key=lambda each: rate(*each[1:]))
    return missing(min(keys, key=lambda key: cost(missing(key))))[0]


class Seconds:
    """What a cell takes, learnt from finished ones: the mean of the same settings at other seeds, else of its measure,
    else what ``typical`` has for the measure (of earlier results), else the mean of all, else 1."""

    def __init__(self, typical: Mapping[str, float] | None = None) -> None:
        self.typical = dict(typical or {})
        self.known = defaultdict[str, list[float]](list)

    def learn(self, settings: str, measure: str, took: float) -> None:
        for name in (f"{measure} {settings}", measure, ""):
            self.known[name].append(took)

    def of(self, settings: str, measure: str) -> float:
        for name in (f"{measure} {settings}", measure):
            if name in self.known:
                return statistics.fmean(self.known[name])
        return self.typical.get(measure) or statistics.fmean(self.known.get("") or self.typical.values() or [1.0])
