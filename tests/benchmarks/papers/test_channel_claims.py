"""What the channel paper claims: cells, the plane as the paper computes it, and verdicts on made-up measurements."""

import dataclasses

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers.channel_claims import (
    BATCHES,
    C4,
    CAPACITIES,
    KAPPAS,
    MATCHED,
    NATURAL,
    PLANE_CELLS,
    PRIVATE,
    REMOVED,
    ROUNDS,
    improvements,
    judge_batch,
    judge_eigenvalue,
    judge_kappa,
    judge_many,
    judge_plane,
    judge_rounds,
    judge_time,
)
from prunella.benchmarks.papers.channel_inversion import CHANNELS, OPACUS
from prunella.privacy.ledger.bounds import dp_capacity


@pytest.mark.parametrize(
    ("channel", "private", "word"), [(1.05, 1.6, HOLDS), (1.2, 1.6, NOT), (1.05, 1.2, NOT), (1.5, 1.6, NOT)]
)
def test_c5_asks_a_channel_for_little_time_and_dp_sgd_for_much(channel: float, private: float, word: str) -> None:
    ratios = {"channel-natural": 1.01, "channel-white": channel, OPACUS: private}
    points = [Point((model, arm), {"ratio": (r,) * 3}) for model in ("lenet", "resnet10") for arm, r in ratios.items()]
    assert judge_time(points).word == word


@pytest.mark.parametrize(("gain", "leak", "word"), [(0.1, -0.01, HOLDS), (-0.1, -0.01, NOT), (0.1, 0.01, NOT)])
def test_c1_asks_accuracy_and_leak_to_grow_with_kappa(gain: float, leak: float, word: str) -> None:
    points = [Point(("none", "natural"), {"accuracy": (0.9,) * 3, "mse_strongest": (0.0,) * 3})]
    for i, kappa in enumerate(KAPPAS):
        values = {"accuracy": (0.5 + gain * i,) * 3, "mse_strongest": (0.1 + leak * i,) * 3}
        points.append(Point((str(kappa), "natural"), values))
    assert judge_kappa(points).word == word


@pytest.mark.parametrize(("gain", "leak", "word"), [(0.1, -0.01, HOLDS), (-0.1, -0.01, NOT), (0.1, 0.01, NOT)])
def test_c2_asks_accuracy_and_leak_to_grow_with_n(gain: float, leak: float, word: str) -> None:
    points = []
    for i, rounds in enumerate(ROUNDS):
        values = {"accuracy": (0.5 + gain * i,) * 3, "mse_strongest": (0.1 + leak * i,) * 3}
        points.append(Point((str(rounds), "natural"), values))
    assert judge_rounds(points).word == word


def plane(accuracy: float, mse: float, auc: float) -> list[Point]:
    """Natural channels of one accuracy, error and AUC, beside DP of 0.5, 0.1 and 0.5, and other channels, which are not
    judged, of the worst of everything; plain errors are all alike."""
    made = []
    known = {**dict.fromkeys(CHANNELS, (0.0, 0.001, 1.0)), NATURAL: (accuracy, mse, auc), "none": (0.9, 0.01, 0.6)}
    for cell in PLANE_CELLS:
        values = known.get(cell["arm"], (0.5, 0.1, 0.5))
        named = dict(zip(("accuracy", "mse_strongest", "auc"), ((value,) * 3 for value in values), strict=True))
        made.append(Point((str(cell["strength"]), cell["arm"]), {**named, "mse_plain": (0.1,) * 3}))
    return made


def test_improvements_are_the_papers_formulas() -> None:
    inversion, members = improvements(plane(0.8, 0.05, 0.57), "strongest")
    assert inversion["100", NATURAL] == pytest.approx([1 - 0.01 / 0.05] * 3)
    assert members["100", NATURAL] == pytest.approx([(0.6 - 0.57) / 0.6] * 3)
    assert inversion["100", "dp-sgd"] == pytest.approx([0.9] * 3) and len(inversion) == len(PLANE_CELLS) - 1


@pytest.mark.parametrize(
    ("accuracy", "mse", "auc", "word"),
    [(0.8, 1.0, 0.51, HOLDS), (0.4, 1.0, 0.51, NOT), (0.8, 0.02, 0.51, NOT), (0.8, 1.0, 0.45, NOT)],
)
def test_c4_asks_natural_for_accuracy_and_gdc_and_each_side_for_its_strength(
    accuracy: float, mse: float, auc: float, word: str
) -> None:
    verdict = judge_plane(plane(accuracy, mse, auc))
    assert verdict.word == word and "without denoising, not judged" in verdict.reason


@pytest.mark.parametrize(("accuracy", "mse", "word"), [(0.8, 1.0, HOLDS), (0.4, 1.0, NOT), (0.8, 0.02, NOT)])
def test_matched_asks_natural_for_accuracy_and_for_hidden_images(accuracy: float, mse: float, word: str) -> None:
    """And never for membership, which is not inferred there."""
    points = [
        dataclasses.replace(point, values={key: of for key, of in point.values.items() if key != "auc"})
        for point in plane(accuracy, mse, 0.0)
    ]
    assert judge_many(points).word == word and "GDC" not in judge_many(points).reason


def test_matched_is_c4_on_clients_with_more_images_than_pixels() -> None:
    (few, many) = (claim.experiment.sweeps["small"].cells for claim in (C4, MATCHED))
    changed = {"clients": 2, "examples": 5000, "population": False, "members": False}
    assert [{**cell, **changed} for cell in few] == list(many)


def test_c4_stands_a_channel_beside_dp_of_the_same_printed_nats() -> None:
    for cell in PLANE_CELLS:
        if cell["arm"] in PRIVATE:
            noise = cell["options"][f"{cell['arm']}.noise-multiplier"]
            assert dp_capacity(1.0, noise**2, cell["batch_size"], as_printed=True) == pytest.approx(
                cell["strength"], rel=1e-3
            )


def test_every_private_arm_has_its_own_noise_and_the_channel_none() -> None:
    for cell in PLANE_CELLS:
        sections = {key.split(".")[0] for key in cell["options"]}
        assert sections == ({cell["arm"]} if cell["arm"] != "none" else set())
    assert {cell["arm"] for cell in PLANE_CELLS} == {"none", *CHANNELS, *PRIVATE}


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
