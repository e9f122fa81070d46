"""C4, C6 and C7: the plane as the paper computes it, and verdicts on made-up measurements."""

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers.channel_attacks import (
    BATCHES,
    C4,
    CAPACITIES,
    NATURAL,
    PLANE_CELLS,
    PRIVATE,
    REMOVED,
    improvements,
    judge_batch,
    judge_eigenvalue,
    judge_plane,
)


def plane(accuracy: float, mse: float, auc: float) -> list[Point]:
    """Natural channels of one accuracy, error and AUC, beside DP of 0.5, 0.1 and 0.5."""
    made = []
    for cell in PLANE_CELLS:
        values = {NATURAL: (accuracy, mse, auc), "none": (0.9, 0.01, 0.6)}.get(cell["arm"], (0.5, 0.1, 0.5))
        named = dict(zip(("accuracy", "mse_strongest", "auc"), ((value,) * 3 for value in values), strict=True))
        made.append(Point((str(cell["strength"]), cell["arm"]), named))
    return made


def test_improvements_are_the_papers_formulas() -> None:
    found = improvements(plane(0.8, 0.05, 0.57))
    assert found[NATURAL, "50.0"] == pytest.approx((1 - 0.01 / 0.05, (0.6 - 0.57) / 0.6))
    assert found["dp-sgd", "0.8"] == pytest.approx((0.9, 1 / 6)) and len(found) == len(PLANE_CELLS) - 1


@pytest.mark.parametrize(
    ("accuracy", "mse", "auc", "word"),
    [(0.8, 1.0, 0.51, HOLDS), (0.4, 1.0, 0.51, NOT), (0.8, 0.02, 0.51, NOT), (0.8, 1.0, 0.45, TREND)],
)
def test_c4_asks_natural_for_accuracy_and_gdc_and_each_side_for_its_strength(
    accuracy: float, mse: float, auc: float, word: str
) -> None:
    assert judge_plane(plane(accuracy, mse, auc)).word == word


def test_every_private_arm_has_its_own_noise_and_the_channel_none() -> None:
    for cell in PLANE_CELLS:
        sections = {key.split(".")[0] for key in cell["options"]}
        assert sections == ({cell["arm"]} if cell["arm"] != "none" else set())
    assert {cell["arm"] for cell in PLANE_CELLS} == {"none", NATURAL, *PRIVATE}


def batches(private: float, plain: float, noisy: float) -> list[Point]:
    slopes = {"dp-sgd": private, "none": plain, "gaussian": noisy}
    return [
        Point((name, str(batch), "ig"), {"mse": (0.5 + slope * i, 0.51 + slope * i, 0.49 + slope * i)})
        for name, slope in slopes.items()
        for i, batch in enumerate(BATCHES)
    ]


def test_c4_says_that_the_paper_matches_dp_by_the_printed_capacity_which_is_twice_the_true_one() -> None:
    assert "100, 197, 302, 1499 nats" in CAPACITIES and "50, 98, 151, 750 nats" in CAPACITIES
    assert CAPACITIES in C4.remarks


@pytest.mark.parametrize(
    ("slopes", "word"),
    [((-0.1, 0.05, 0.1), HOLDS), ((0.1, 0.05, 0.1), NOT), ((-0.1, -0.05, 0.1), NOT), ((-0.1, 0.1, 0.05), NOT)],
)
def test_c6_asks_three_directions(slopes: tuple[float, float, float], word: str) -> None:
    assert judge_batch(batches(*slopes)).word == word


@pytest.mark.parametrize(
    ("errors", "word"),
    [((0.04, 0.03, 0.02, 0.01), HOLDS), ((0.04, 0.01, 0.02, 0.01), TREND), ((0.01, 0.02, 0.03, 0.04), NOT)],
)
def test_c7_asks_the_error_to_fall_with_the_eigenvalue(errors: tuple[float, ...], word: str) -> None:
    pairs = zip(REMOVED, errors, strict=True)
    points = [Point((str(which), "ig"), {"mse": (e, e + 0.001, e - 0.001)}) for which, e in pairs]
    assert judge_eigenvalue(points).word == word
