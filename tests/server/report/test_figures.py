import re

from prunella.server.report.figures import leakage_charts, run_charts, whole, whole_decibels
from prunella.server.store.schema import StoreLine


def counter(metric: str, direction: str, per_round: float, rounds: int = 3) -> list[StoreLine]:
    return [
        {"round": r, "metric": metric, "value": r * per_round, "labels": {"direction": direction}, "time": 0.0}
        for r in range(1, rounds + 1)
    ]


def test_bytes_are_shown_per_round_beside_dense() -> None:
    lines = counter("wire_bytes_total", "up", 1000) + counter("wire_bytes_total", "down", 3000)
    lines += counter("wire_dense_bytes_total", "up", 4000) + counter("wire_dense_bytes_total", "down", 4000)
    chart = run_charts(lines)[2]
    assert "from clients, round 3: 1\u202fkB" in chart and "to clients, round 3: 3\u202fkB" in chart
    assert "dense, either way" in chart and "dense, up" not in chart


def test_dense_is_split_when_the_ways_differ() -> None:
    lines = counter("wire_dense_bytes_total", "up", 4000) + counter("wire_dense_bytes_total", "down", 2000)
    chart = run_charts(lines)[2]
    assert "dense, up" in chart
    keys = re.findall(r'class="key"><svg.*?class="line (\w+)"', chart)
    assert len(keys) == len(set(keys)) == 2, "two lines that look alike"


def test_leakage_figures_tell_controls_from_clients() -> None:
    scores = {"ssim": {"worst": 0.8, "random": 0.0, "other": 0.4}}
    audits = [{"round": 1, "kind": kind, "scores": scores} for kind in ("control", "control-defended", "client")]
    psnr, ssim, _ = leakage_charts(audits)
    assert "Nothing measured" in psnr
    for name in ("control, undefended", "control, defended", "clients", "random to other image"):
        assert name in ssim


def test_the_worst_case_of_a_run_without_a_defense_is_drawn_and_stands_back_behind_a_defended_one() -> None:
    scores = {"psnr": {"worst": 40.0, "random": 5.0, "other": 9.0}}
    single, defended = ({"round": 1, "kind": kind, "scores": scores} for kind in ("single", "single-defended"))
    assert "worst case, undefended, round 1" in leakage_charts([single])[0]
    assert "undefended" not in leakage_charts([single, defended])[0]


def test_axes_carry_no_needless_zeros() -> None:
    assert whole(1.0) == "100\u202f%" and whole_decibels(40.0) == "40\u202fdB" and whole_decibels(2.5) == "2.5\u202fdB"
