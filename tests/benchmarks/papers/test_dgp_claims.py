"""DGP's declarations: the printed tables, and verdicts on what would be measured."""

from prunella.benchmarks.engine.claim import Point, numbers
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.papers.dgp_claims import RATIOS, TABLE_3, judge_search, judge_traffic


def traffic(factor: float) -> list[Point]:
    found = {}
    for label, mib in numbers(TABLE_3).items():
        found[label] = {"paper_mib": (mib * (factor if label[1] == "dgp" else 1.0),) * 3, "saved": (0.5,) * 3}
    return [Point(label, values) for label, values in found.items()]


def test_the_papers_saving_is_about_40_percent() -> None:
    table = numbers(TABLE_3)
    for model in ("resnet18", "vgg11-bn", "lenet-zhu", "cnn6"):
        assert 0.38 < 1 - table[model, "dgp"] / table[model, "baseline"] < 0.39


def test_two_percent_is_the_limit() -> None:
    assert judge_traffic(traffic(1.0)).word == HOLDS and judge_traffic(traffic(1.03)).word != HOLDS


def test_the_search_is_held_against_the_papers_worst_ratio() -> None:
    assert 1.29 < RATIOS["lenet-zhu", "dgp"] < RATIOS["cnn6", "dgp"] < 2.4
    ours = [Point((model, arm), {"ratio": (ratio,) * 3}) for (model, arm), ratio in RATIOS.items()]
    assert judge_search(ours).word == HOLDS
    slow = [Point(p.label, {"ratio": tuple(2 * r for r in p.values["ratio"])}) for p in ours]
    assert judge_search(slow).word == NOT
