"""Every rule says each of its words where it should, and the reason names what went wrong."""

from collections.abc import Callable

import numpy as np
import pytest

from prunella.benchmarks.engine.claim import Point
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
    interval,
    positive,
    within,
    worst,
)

RUNS = 4000
ALLOWED = 0.05 + 3 * (0.05 * 0.95 / RUNS) ** 0.5  # of three standard errors of a simulation


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


def normal(draw: np.random.Generator, comparisons: int, seeds: int) -> np.ndarray:
    return draw.normal(size=(comparisons, seeds))


def shared(draw: np.random.Generator, comparisons: int, seeds: int) -> np.ndarray:
    """What a seed does to one comparison it does to all, by half of the variance."""
    return draw.normal(size=(1, seeds)) + draw.normal(size=(comparisons, seeds))


def heavy(draw: np.random.Generator, comparisons: int, seeds: int) -> np.ndarray:
    """Student's t of three degrees of freedom, which has no kurtosis."""
    return draw.standard_t(3, size=(comparisons, seeds))


def unlike(draw: np.random.Generator, comparisons: int, seeds: int) -> np.ndarray:
    """Seeds whose spreads differ ten times."""
    return draw.normal(size=(comparisons, seeds)) * np.geomspace(1, 10, seeds)


Noise = Callable[[np.random.Generator, int, int], np.ndarray]
NORMAL = [(normal, *design) for design in ((3, 1), (3, 4), (5, 8), (8, 2))]


@pytest.mark.parametrize(("noise", "seeds", "comparisons"), [*NORMAL, *((n, 3, 4) for n in (shared, heavy, unlike))])
def test_where_nothing_is_there_five_verdicts_in_a_hundred_are_wrong_at_most(
    noise: Noise, seeds: int, comparisons: int
) -> None:
    """The null simulation: whatever is said but *undecided* is wrong."""
    assert wrong(lambda draw: positive(named(noise(draw, comparisons, seeds)), "x")) < ALLOWED


def part(draw: np.random.Generator) -> Judgement:
    return positive(named(normal(draw, 2, 3)), "x")


def parts(draw: np.random.Generator) -> Judgement:
    return worst([part(draw), part(draw), part(draw)])


def settings(draw: np.random.Generator) -> Judgement:
    return either({str(i): part(draw) for i in range(3)})


def both(draw: np.random.Generator) -> Judgement:
    """Parts at the best of settings, as P7 and P8 have it."""
    return either({str(i): worst([part(draw), part(draw)]) for i in range(2)})


def lines(draw: np.random.Generator) -> Judgement:
    points = draw.normal(size=(3, 4, 3)).tolist()
    return falls({str(i): list(enumerate(line)) for i, line in enumerate(points)}, "x")


@pytest.mark.parametrize("claim", [parts, settings, both, lines])
def test_nor_of_parts_together_of_the_best_of_settings_and_of_lines(
    claim: Callable[[np.random.Generator], Judgement],
) -> None:
    assert wrong(claim) < ALLOWED


def test_a_bootstrap_of_three_seeds_and_their_images_would_be_wrong_more_often() -> None:
    """Why no verdict is by it: half of the variance is the seed's, four images each."""
    draw, missed = np.random.default_rng(0), {"bootstrap": 0, "t": 0}
    for _ in range(300):
        images = draw.normal(size=(3, 1)) + draw.normal(size=(3, 4))
        kept = {f"x.{i}": tuple(column) for i, column in enumerate(images.T)}
        for name, ends in (("bootstrap", Point(("a",), kept).interval("x")), ("t", interval(images.mean(1).tolist()))):
            assert ends is not None
            missed[name] += not ends[0] <= 0 <= ends[1]
    assert missed["bootstrap"] / 300 > 0.12 and missed["t"] / 300 < 0.09


def test_what_the_rules_do_not_cover_is_wrong_more_often() -> None:
    """A difference that leans to one side, or that takes two values only: three seeds alike are taken for certain."""
    leaning = wrong(lambda draw: positive({"a": (draw.exponential(size=3) - 1).tolist()}, "x"))
    coin = wrong(lambda draw: positive({"a": draw.choice([-1.0, 1.0], size=3).tolist()}, "x"))
    assert 0.1 < leaning < 0.14 and 0.22 < coin < 0.28


def test_an_effect_at_the_margin_is_seldom_refuted_and_a_large_one_is_found() -> None:
    def words(effect: float, by: float) -> list[str]:
        draw = np.random.default_rng(0)
        return [positive(named(effect + normal(draw, 4, 5)), "x", by).word for _ in range(1000)]

    assert words(0.5, 0.5).count(NOT) < 40
    assert words(-0.5, -0.5).count(NOT) + sum(word in (HOLDS, TREND) for word in words(-0.5, -0.5)) < 60
    assert sum(word in (HOLDS, TREND) for word in words(4.0, 0.5)) > 950
    assert sum(word in (HOLDS, TREND) for word in words(0.0, -4.0)) > 950


def named(values: np.ndarray) -> dict[str, list[float]]:
    return {str(i): row for i, row in enumerate(values.tolist())}


def wrong(verdict: Callable[[np.random.Generator], Judgement]) -> float:
    """How often anything is said where there is nothing to say."""
    draw = np.random.default_rng(0)
    return sum(verdict(draw).word != UNDECIDED for _ in range(RUNS)) / RUNS


def test_parts_and_settings_share_the_chance_of_being_wrong_and_counted_ones_take_none() -> None:
    near = [-1.0, -1.2, -1.8]  # refuted at 2.5 %, and not at half of it
    alone, counted = positive({"a": near}, "x"), Judgement(HOLDS, "counted")
    assert alone.word == worst([alone, counted]).word == NOT
    assert worst([alone, positive({"b": [1.0, 1.2, 1.3]}, "y")]).word == UNDECIDED
    above = positive({"a": [-value for value in near]}, "x")
    assert above.word == worst([above, above]).word == either({"a": above, "b": counted}).word == HOLDS
    assert either({"a": above, "b": alone}).word == UNDECIDED


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


NAN = float("nan")


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_what_is_no_number_is_not_judged_wherever_it_stands(bad: float) -> None:
    good, spoilt = [1.0, 1.0, 1.0], [1.0, bad, 1.0]
    lines = {"line": [(0.1, [30.0, 31.0, 30.0]), (0.5, [bad] * 3), (0.9, [10.0, 10.0, 11.0])]}
    for verdict in (
        within({"fine": (1.0, 1.0), "line": (bad, 1.0)}, 0.02),
        within({"line": (1.0, bad), "fine": (1.0, 1.0)}, 0.02),
        positive({"fine": good, "line": spoilt}, "gain"),
        at_least({"line": [(1.0, bad), (1.0, 0.0)]}, "gain"),
        at_most({"fine": good, "line": spoilt}, 2.0, "time"),
        falls(lines, "PSNR"),
    ):
        assert verdict.word == REFUSED and verdict.reason.endswith("no finite number at line")
    assert worst([positive({"a": good}, "gain"), falls(lines, "PSNR")]).word == REFUSED
