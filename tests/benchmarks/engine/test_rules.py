"""Every rule says each of its words where it should, and the reason names what went wrong."""

import pytest

from prunella.benchmarks.engine.rules import (
    HOLDS,
    NOT,
    REFUSED,
    TREND,
    Judgement,
    at_least,
    at_most,
    falls,
    within,
    worst,
)


def test_within_looks_at_the_worst_number_then_at_the_order() -> None:
    assert within({"a": (1.019, 1.0), "b": (2.0, 2.0)}, 0.02).word == HOLDS
    off = within({"a": (1.021, 1.0), "b": (2.0, 2.0)}, 0.02)
    assert off.word == TREND and "2.10% (a)" in off.reason
    assert within({"a": (2.0, 1.0), "b": (1.0, 2.0)}, 0.02).word == NOT


@pytest.mark.parametrize(
    ("means", "spread", "word"),
    [
        ([3, 2, 1], 0.1, HOLDS),
        ([3, 3.2, 1], 0.1, TREND),
        ([3, 3.2, 2.9], 0.5, NOT),  # the fall is inside the spread
        ([1, 2, 3], 0.1, NOT),
        ([2, 2, 2], 0.0, NOT),
    ],
)
def test_falls(means: list[float], spread: float, word: str) -> None:
    points = [(x, mean, spread) for x, mean in zip((0.1, 0.5, 0.9), means, strict=True)]
    assert falls({"a": points[::-1]}, "NMI").word == word
    both = falls({"good": [(0.1, 3, 0), (0.9, 1, 0)], "bad": points}, "NMI")
    assert both.word == word and (word == HOLDS or "bad" in both.reason)


def test_at_least_pairs_the_seeds() -> None:
    assert at_least({"a": [(2.0, 1.0), (1.0, 1.0)]}, "x").word == HOLDS
    noisy = {"a": [(1.0, 1.3), (1.2, 1.0)], "b": [(3.0, 1.0), (3.0, 1.0)]}
    assert at_least(noisy, "x").word == TREND and "under at a" in at_least(noisy, "x").reason
    clear = {"a": [(1.0, 2.0), (1.0, 2.1)], "b": [(9.0, 1.0), (9.0, 1.0)]}
    assert at_least(clear, "x").word == NOT  # a clear miss is not outweighed by the mean


def test_at_most() -> None:
    assert [at_most({"a": a, "b": 1.0}, 2.0, "x").word for a in (2.0, 2.5, 9.0)] == [HOLDS, TREND, NOT]


def test_the_worst_part_decides_and_no_reason_is_lost() -> None:
    parts = [Judgement(word, word) for word in (TREND, HOLDS, NOT)]
    assert worst(parts).word == NOT and all(part.reason in worst(parts).reason for part in parts)
    assert worst([*parts, Judgement(REFUSED, "control")]).word == REFUSED
