from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prunella.server.report.series import baseline_band, increments, label_values, last, leak_series, points, total


def line(round: int, value: float, metric: str = "wire_bytes_total", **labels: str) -> dict[str, Any]:
    return {"round": round, "metric": metric, "value": value, "labels": labels, "time": 0.0}


LINES = [line(1, 10, direction="up"), line(2, 30, direction="up"), line(2, 5, direction="down"), line(1, 0.5, "loss")]


def test_series_are_told_apart_by_name_and_labels() -> None:
    assert points(LINES, "wire_bytes_total", direction="up") == ((1, 10), (2, 30))
    assert last(LINES, "wire_bytes_total", direction="down") == 5 and last(LINES, "accuracy_ratio") is None
    assert label_values(LINES, "wire_bytes_total", "direction") == ["down", "up"]


def test_a_total_adds_the_last_value_of_every_label() -> None:
    assert total(LINES, "wire_bytes_total", "direction") == 35
    assert total(LINES, "client_failures_total", "reason") is None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_increments_undo_a_running_sum(amounts: list[int]) -> None:
    cumulative, running = [], 0
    for round, amount in enumerate(amounts, 1):
        running += amount
        cumulative.append((float(round), float(running)))
    assert [y for _, y in increments(cumulative)] == amounts


def audit(round: int, kind: str, worst: float | None, other: float = 0.3) -> dict[str, Any]:
    scores = None if worst is None else {"ssim": {"worst": worst, "random": 0.1, "other": other}}
    return {"round": round, "kind": kind, "scores": scores}


def test_the_line_follows_the_worst_client_and_the_rest_are_dots() -> None:
    audits = [audit(5, "client", 0.4), audit(5, "client", 0.9), audit(5, "client", None), audit(5, "control", 1.0)]
    assert leak_series(audits, "client", "ssim") == (((5, 0.9),), ((5, 0.4),))


def test_the_band_spans_the_baselines_of_a_round() -> None:
    audits = [audit(5, "client", 0.4, other=0.3), audit(5, "client", 0.4, other=0.5), audit(6, "client", None)]
    assert baseline_band(audits, "ssim").edges == ((5, 0.1, 0.5),)
