"""Every rule says each of its words where it should, and the reason names what went wrong."""

import numpy as np
import pytest

from prunella.benchmarks.engine.rules import (
    HOLDS,
    NOT,
    REFUSED,
    TREND,
    UNDECIDED,
    Judgement,
    at_least,
    at_most,
    either,
    falls,
    positive,
    within,
    worst,
)

RUNS = 2000


def test_within_looks_at_the_worst_number_then_at_the_order() -> None:
    assert within({"a": (1.019, 1.0), "b": (2.0, 2.0)}, 0.02).word == HOLDS
    off = within({"a": (1.021, 1.0), "b": (2.0, 2.0)}, 0.02)
    assert off.word == TREND and "2.10% (a)" in off.reason
    assert within({"a": (2.0, 1.0), "b": (1.0, 2.0)}, 0.02).word == NOT


@pytest.mark.parametrize(
    ("means", "spread", "word"),
    [
        ([3, 2, 1], 0.1, HOLDS),
        ([3, 3.2, 1], 0.1, TREND),  # a step that rises
        ([3, 3.2, 2.9], 0.5, UNDECIDED),  # the fall is inside the spread
        ([1, 2, 3], 0.1, NOT),
        ([2, 2, 2], 0.0, NOT),
    ],
)
def test_falls(means: list[float], spread: float, word: str) -> None:
    points = [(x, [m - spread, m, m + spread]) for x, m in zip((0.1, 0.5, 0.9), means, strict=True)]
    points[-1] = (0.9, points[-1][1][::-1])  # the seeds of the last are not those of the first
    assert falls({"a": points[::-1]}, "NMI").word == word
    both = falls({"good": [(0.1, [3.0] * 3), (0.9, [1.0] * 3)], "bad": points}, "NMI")
    assert both.word == word and (word == HOLDS or "bad" in both.reason)


def test_the_smallest_effect_that_matters_has_to_be_there() -> None:
    sure, wide = [0.30, 0.31, 0.29], [0.1, 0.6, 0.2]
    assert [positive({"a": sure}, "x", by).word for by in (0.0, 0.2, 0.305, 0.4)] == [HOLDS, HOLDS, UNDECIDED, NOT]
    assert [positive({"a": wide}, "x", by).word for by in (0.0, 0.2, 0.4)] == [UNDECIDED] * 3
    under = [-value for value in sure]
    assert [positive({"a": under}, "x", by).word for by in (-0.4, -0.2)] == [HOLDS, NOT]  # equal but for a margin


def test_one_clear_miss_is_not_outweighed_and_an_open_one_is_a_trend() -> None:
    good = [(9.0, 1.0), (9.0, 1.0), (9.0, 1.0)]
    assert at_least({"a": [(1.0, 2.0), (1.0, 2.1), (1.0, 1.9)], "b": good}, "x").word == NOT
    noisy = at_least({"a": [(1.0, 1.3), (1.2, 1.0), (1.1, 1.1)], "b": good}, "x")
    assert noisy.word == TREND and "undecided at a" in noisy.reason
    alone = at_least({"a": [(1.0, 2.0)]}, "x")
    assert alone.word == UNDECIDED  # of one seed nothing is known


def test_pairs_take_away_what_both_sides_share() -> None:
    """Seeds that differ by ten times the effect, alike on both sides."""
    pairs = [(seed * 10 + 1.0, seed * 10.0) for seed in range(3)]
    assert at_least({"a": pairs}, "x").word == HOLDS


@pytest.mark.parametrize(("seeds", "comparisons"), [(3, 1), (3, 4), (5, 8), (8, 2)])
def test_where_nothing_is_there_a_claim_is_seldom_judged_wrong(seeds: int, comparisons: int) -> None:
    """The null simulation. It held, in full or in trend, in 40 % under the rule before: no mean below 0, or none
    clearly."""
    words = simulated(0.0, seeds, comparisons, by=0.0)
    assert sum(word in (HOLDS, TREND) for word in words) / len(words) < 0.035
    assert sum(word == NOT for word in words) / len(words) < 0.06
    falling = simulated(0.0, seeds, comparisons, falls_over=4)
    assert sum(word in (HOLDS, TREND) for word in falling) / len(falling) < 0.035


def test_an_effect_at_the_margin_is_seldom_refuted_and_a_large_one_is_found() -> None:
    assert sum(word == NOT for word in simulated(0.5, 5, 4, by=0.5)) / RUNS < 0.06
    assert sum(word in (HOLDS, TREND) for word in simulated(4.0, 5, 4, by=0.5)) / RUNS > 0.95
    equal = simulated(0.0, 5, 4, by=-4.0)
    assert sum(word in (HOLDS, TREND) for word in equal) / RUNS > 0.95


def simulated(effect: float, seeds: int, comparisons: int, by: float = 0.0, falls_over: int = 0) -> list[str]:
    """Verdicts over measurements whose differences have this mean and a spread of 1."""
    draw, words = np.random.default_rng(0), []
    for _ in range(RUNS):
        if falls_over:
            values = draw.normal(size=(comparisons, falls_over, seeds))
            lines = {str(i): [(float(x), list(row)) for x, row in enumerate(line)] for i, line in enumerate(values)}
            words.append(falls(lines, "x").word)
        else:
            values = draw.normal(effect, size=(comparisons, seeds))
            words.append(positive({str(i): list(row) for i, row in enumerate(values)}, "x", by).word)
    return words


def test_at_most() -> None:
    assert [at_most({"a": [a, a], "b": [1.0, 1.0]}, 2.0, "x").word for a in (2.0, 2.5)] == [HOLDS, NOT]
    assert at_most({"a": [1.5, 2.6, 1.6]}, 2.0, "x").word == UNDECIDED


def test_the_worst_part_decides_and_no_reason_is_lost() -> None:
    parts = [Judgement(word, word) for word in (TREND, HOLDS, UNDECIDED, NOT)]
    assert worst(parts).word == NOT and all(part.reason in worst(parts).reason for part in parts)
    assert worst([*parts, Judgement(REFUSED, "control")]).word == REFUSED


def test_either_takes_the_best_word_and_says_the_others() -> None:
    found = either({"a": Judgement(NOT, "A"), "b": Judgement(TREND, "B"), "c": Judgement(REFUSED, "C")})
    assert found == Judgement(TREND, "b: B; a (does not hold): A; c (not judged): C")
