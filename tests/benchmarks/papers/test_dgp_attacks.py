"""DGP's tables on privacy: what is swept, what is published, and verdicts on what would be measured."""

from collections.abc import Mapping

import pytest

from prunella.benchmarks.engine.claim import Point, numbers
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers.defended import TRAINING
from prunella.benchmarks.papers.dgp_attacks import (
    ATTACKS,
    BREAKS,
    CANNOT,
    CHAINS,
    D1,
    D6,
    D7,
    PUBLISHED,
    TABLE_1,
    judge_accuracy,
    judge_table_1,
    judge_table_2,
    judge_table_5,
    paper,
    shares,
    small,
    table_2,
)
from prunella.privacy.dgp import DualPruning

PRINTED = {**numbers(TABLE_1), ("precode", "r-gap"): 0.2}


PUBLISHED_5 = D6.experiment.metrics[0].published


def measured(change: Mapping[tuple[str, str], float], accuracy: float = 0.93) -> list[Point]:
    ssim = {**PRINTED, **change}
    found = [Point(label, {"ssim": (value,) * 3}) for label, value in ssim.items()]
    for defense in dict.fromkeys(defense for defense, _ in ssim):
        kept = 0.76 if defense == "precode" else accuracy if defense == "dgp" else 0.936
        found.append(Point((defense, "training"), {"accuracy": (kept,) * 3}))
    return found


def test_the_papers_own_table_holds_and_dgp_must_resist_all() -> None:
    assert judge_table_1(measured({})).word == HOLDS
    assert judge_table_1(measured({("dgp", "ig"): 0.9})).word == NOT
    assert judge_table_1(measured({}, accuracy=0.9)).word == NOT
    others = {("top-k", "ig"): 0.4, ("top-k", "gradinversion"): 0.4}
    verdict = judge_table_1(measured(others))
    assert verdict.word == NOT and "not at top-k under ig" in verdict.reason
    unsure = [Point(p.label, {"ssim": (0.1, 0.9, 0.5)}) if p.label == ("dgp", "ig") else p for p in measured({})]
    assert judge_table_1(unsure).word == TREND


def test_an_attack_that_knows_the_defense_counts_and_the_four_alone_are_told() -> None:
    withstands = {("precode", attack): 0.1 for attack in ("ig", "gradinversion", "r-gap", "rob")}
    assert judge_table_1(measured(withstands)).word == NOT
    verdict = judge_table_1(measured({**withstands, ("precode", "representation"): 1.0}))
    assert verdict.word == HOLDS and "four attacks alone, not judged, privacy does not hold" in verdict.reason
    verdict = judge_table_1(measured({("dgp", "portfolio"): 0.9}))
    assert verdict.word == NOT and "four attacks alone, not judged, privacy holds" in verdict.reason


def test_every_pair_is_measured_but_those_that_cannot_be() -> None:
    pairs = {(cell["defenses"], cell.get("named", cell["attack"])) for cell in D1.experiment.sweeps["small"].cells}
    assert len(pairs) == 8 * 5 - len(CANNOT) + len(BREAKS) and not pairs & CANNOT
    assert set(BREAKS.items()) < pairs


def test_the_shares_are_the_papers() -> None:
    for cell in (*table_2("small"), *table_2("paper")):
        raw = cell["raw"]
        DualPruning(raw["dgp.top"], raw["dgp.bottom"])
        total, ratio = raw["dgp.top"] + raw["dgp.bottom"], raw["dgp.top"] / raw["dgp.bottom"]
        assert abs((total if cell["swept"] == "k1 + k2" else ratio) - cell["value"]) < 1e-3
    assert shares(0.8, 1 / 3) == {"dgp.top": 0.2, "dgp.bottom": 0.6}


def test_leakage_must_fall_with_both_shares() -> None:
    def points(ig: list[float]) -> list[Point]:
        found = []
        for swept, attack, values in (("k1 + k2", "rob", [0.2, 0.1, 0.05]), ("p", "ig", ig)):
            for x, value in enumerate(values):
                found.append(Point((swept, str(x), attack), {"ssim": (value,) * 3}))
                found.append(Point((swept, str(x), "training"), {"accuracy": (0.9, 0.9, 0.9)}))
        return found

    assert judge_table_2(points([0.29, 0.25, 0.23])).word == HOLDS
    assert judge_table_2(points([0.29, 0.30, 0.31])).word == NOT


def test_table_5_is_lower_and_unrecognised() -> None:
    def points(change: Mapping[tuple[str, str, str], float]) -> list[Point]:
        return [Point(label, {"ssim": (value,) * 3}) for label, value in {**PUBLISHED_5, **change}.items()]

    assert judge_table_5(points({})).word == HOLDS
    assert judge_table_5(points({("resnet18", "dgp", "rob"): 0.6})).word == NOT
    assert judge_table_5(points({("resnet18", "dgp", "rob"): 0.95})).word == NOT


def test_every_published_number_has_a_cell_and_both_chains_see_every_attack() -> None:
    labels = {(cell["dataset"], cell["model"], cell["defenses"], cell["attack"]) for cell in paper()}
    assert labels == set(PUBLISHED) and all(0.2 < value < 0.8 for value in PUBLISHED.values())
    for chain in CHAINS:
        assert {cell["attack"] for cell in small() if cell["defenses"] == chain} == {*ATTACKS, "portfolio", TRAINING}
    assert D7.sizes() == ("small", "paper")


@pytest.mark.parametrize(
    ("lead", "dgp", "top_k", "word"),
    [
        *((0.1, 0.2, 0.2, HOLDS), (0.1, 0.6, 0.6, HOLDS), (-0.1, 0.2, 0.2, NOT)),
        *((0.1, 0.2, 0.6, TREND), (0.1, 0.6, 0.2, NOT)),
    ],
)
def test_d7_asks_for_accuracy_at_like_privacy(lead: float, dgp: float, top_k: float, word: str) -> None:
    points = []
    for chain, accuracy, ssim in (("dgp", 0.5 + lead, dgp), ("top-k", 0.5, top_k)):
        points.append(Point(("digits", "cnn", chain, TRAINING), {"accuracy": (accuracy,) * 3}))
        points.append(Point(("cifar10", "cnn", chain, "ig"), {"ssim": (ssim,) * 3}))
    assert judge_accuracy(points).word == word
    alone = [point for point in points if point.label[-1] == TRAINING]
    assert judge_accuracy(alone).word == (HOLDS if lead > 0 else NOT)
