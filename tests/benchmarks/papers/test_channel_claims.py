"""The channel paper's declarations: verdicts on made-up measurements, and what does not run says why."""

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers import CLAIMS
from prunella.benchmarks.papers.channel_claims import CLAIMS as DECLARED
from prunella.benchmarks.papers.channel_claims import (
    KAPPAS,
    ROUNDS,
    judge_inversion,
    judge_kappa,
    judge_rounds,
    judge_time,
)
from prunella.benchmarks.papers.channel_time import OPACUS


def test_they_are_in_the_list() -> None:
    assert DECLARED and all(CLAIMS[claim.name] is claim for claim in DECLARED)


@pytest.mark.parametrize(
    ("channel", "private", "word"), [(1.05, 1.6, HOLDS), (1.2, 1.6, TREND), (1.05, 1.2, TREND), (1.5, 1.6, NOT)]
)
def test_c5_asks_a_channel_for_little_time_and_dp_sgd_for_much(channel: float, private: float, word: str) -> None:
    ratios = {"channel-natural": 1.01, "channel-white": channel, OPACUS: private}
    points = [Point((model, arm), {"ratio": (r,) * 3}) for model in ("lenet", "resnet10") for arm, r in ratios.items()]
    assert judge_time(points).word == word


def inversion(slope: float, lead: float) -> list[Point]:
    points = [Point(("none", "none", "ig"), {"mse": (0.01,) * 3})]
    for channel in ("natural", "white", "personalized"):
        for kappa in KAPPAS:
            level = 0.5 - slope * kappa / 1000 + (0.0 if channel == "natural" else lead)
            points.append(Point((channel, str(kappa), "ig"), {"mse": (level, level + 0.01, level - 0.01)}))
    return points


@pytest.mark.parametrize(("slope", "lead", "word"), [(1, 0.1, HOLDS), (-1, 0.1, NOT), (1, -0.1, NOT)])
def test_c3_asks_mse_to_fall_with_kappa_and_natural_to_be_the_least(slope: float, lead: float, word: str) -> None:
    assert judge_inversion(inversion(slope, lead)).word == word


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
