"""DGP's declarations: the printed tables, a cell that is a curve, and verdicts on what would be measured."""

from prunella.benchmarks.engine.claim import Point, numbers
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.papers.dgp_claims import (
    ARMS,
    EVERY,
    RATIOS,
    TABLE_3,
    cells,
    curve,
    judge_feedback,
    judge_search,
    judge_traffic,
)


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


def points(with_: float, without: float) -> list[Point]:
    final = {"none": 0.95, "dgp": with_, "dgp without feedback": without}
    made = [Point(("digits", arm, "100"), {"accuracy": (value,) * 3}) for arm, value in final.items()]
    return [*made, *(Point(("digits", arm, "20"), {"accuracy": (0.1,) * 3}) for arm in final)]


def test_both_halves_count_and_only_the_last_round() -> None:
    assert judge_feedback(points(0.94, 0.80)).word == HOLDS
    assert judge_feedback(points(0.94, 0.935)).word == NOT
    assert judge_feedback(points(0.90, 0.80)).word == NOT
    assert judge_feedback(points(0.80, 0.90)).word == NOT
    assert judge_feedback(points(0.95, 0.95)).word == NOT


def test_a_cell_is_a_curve_and_every_arm_runs() -> None:
    cell = {**cells("digits", 20, 0.1)[1], "clients": 2}
    found = curve(cell, 0, None)
    assert list(found) == ["10", "20"] and all(0 <= row["accuracy"] <= 1 for row in found.values())
    assert found != curve({**cell, "arm": "dgp without feedback"}, 0, None)
    assert {cell["arm"] for cell in cells("digits", 20, 0.1)} == set(ARMS) and EVERY == 10
