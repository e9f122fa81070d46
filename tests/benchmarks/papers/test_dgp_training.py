"""Error feedback: a cell is a curve, and the verdict asks both halves of the claim."""

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers import dgp_training
from prunella.benchmarks.papers.dgp_training import ARMS, cells, curve, judge_feedback


def points(with_: float, without: float) -> list[Point]:
    final = {"none": 0.95, "dgp": with_, "dgp without feedback": without}
    made = [Point(("digits", arm, "100"), {"accuracy": (value,) * 3}) for arm, value in final.items()]
    return [*made, *(Point(("digits", arm, "20"), {"accuracy": (0.1,) * 3}) for arm in final)]


def test_both_halves_count_and_only_the_last_round() -> None:
    assert judge_feedback(points(0.94, 0.80)).word == HOLDS
    assert judge_feedback(points(0.94, 0.935)).word == TREND
    assert judge_feedback(points(0.90, 0.80)).word == TREND
    assert judge_feedback(points(0.80, 0.90)).word == NOT
    assert judge_feedback(points(0.95, 0.95)).word == NOT


def test_a_cell_is_a_curve_and_every_arm_runs() -> None:
    cell = {**cells("digits", 20, 0.1)[1], "clients": 2}
    found = curve(cell, 0, None)
    assert list(found) == ["10", "20"] and all(0 <= row["accuracy"] <= 1 for row in found.values())
    assert found != curve({**cell, "arm": "dgp without feedback"}, 0, None)
    assert {cell["arm"] for cell in cells("digits", 20, 0.1)} == set(ARMS) and dgp_training.EVERY == 10
