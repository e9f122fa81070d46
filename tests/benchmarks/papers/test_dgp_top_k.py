"""D7: what is published has a cell at paper size, and verdicts on made-up accuracies and scores."""

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers.defended import TRAINING
from prunella.benchmarks.papers.dgp_attacks import ATTACKS
from prunella.benchmarks.papers.dgp_top_k import CHAINS, D7, PUBLISHED, judge_accuracy, paper, small


def test_every_published_number_has_a_cell_and_both_chains_see_every_attack() -> None:
    labels = {(cell["dataset"], cell["model"], cell["defenses"], cell["attack"]) for cell in paper()}
    assert labels == set(PUBLISHED) and all(0.2 < value < 0.8 for value in PUBLISHED.values())
    for chain in CHAINS:
        assert {cell["attack"] for cell in small() if cell["defenses"] == chain} == {*ATTACKS, TRAINING}
    assert D7.sizes() == ("small", "paper")


@pytest.mark.parametrize(
    ("lead", "dgp", "top_k", "word"),
    [(0.1, 0.2, 0.2, HOLDS), (-0.1, 0.2, 0.2, NOT), (0.1, 0.2, 0.6, TREND), (0.1, 0.6, 0.2, NOT)],
)
def test_d7_asks_for_accuracy_at_like_privacy(lead: float, dgp: float, top_k: float, word: str) -> None:
    points = []
    for chain, accuracy, ssim in (("dgp", 0.5 + lead, dgp), ("top-k", 0.5, top_k)):
        points.append(Point(("digits", "cnn", chain, TRAINING), {"accuracy": (accuracy,) * 3}))
        points.append(Point(("cifar10", "cnn", chain, "ig"), {"ssim": (ssim,) * 3}))
    assert judge_accuracy(points).word == word
    alone = [point for point in points if point.label[-1] == TRAINING]
    assert judge_accuracy(alone).word == (HOLDS if lead > 0 else NOT)
