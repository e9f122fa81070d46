"""A row of the table is a whole run; rows come in a fixed order with ratios to FedAvg's."""

import json
from pathlib import Path

import pytest

from prunella.benchmarks.papers.schemes import cache_file, cases, in_order, measure, measure_all

TINY = {"dataset": "digits", "model": "cnn", "rounds": 2, "local_steps": 2, "batch_size": 8, "device": "cpu"}


@pytest.mark.parametrize(("scheme", "rate"), [("fedavg", 0.0), ("feddst", 0.7), ("lotteryfl", 0.5)])
def test_a_row_has_accuracy_and_bytes_and_nobody_failed(scheme: str, rate: float) -> None:
    (case,) = cases([scheme], [rate], TINY, 3)
    row = measure(case)
    assert 0 <= row["accuracy"] <= row["best_accuracy"] <= 1 and row["failures"] == 0
    assert row["evaluated_on"] == ("clients" if scheme == "lotteryfl" else "server")
    assert 0 < row["megabytes_up"] and row["megabytes_up"] + row["megabytes_down"] < row["megabytes_dense"]
    if scheme == "feddst":
        assert row["density"] == pytest.approx(0.3, abs=1e-3)


def test_rows_are_ordered_and_compared_to_fedavg() -> None:
    def row(scheme: str, rate: float, size: float) -> dict:
        return {"scheme": scheme, "rate": rate, "megabytes_up": size, "megabytes_down": size}

    rows = in_order([row("snip", 0.5, 2.0), row("random", 0.3, 3.0), row("snip", 0.3, 3.0), row("fedavg", 0.0, 4.0)])
    assert [(r["scheme"], r["rate"]) for r in rows] == [("fedavg", 0.0), ("random", 0.3), ("snip", 0.3), ("snip", 0.5)]
    assert [r["ratio"] for r in rows] == [1.0, 0.75, 0.75, 0.5]
    assert "ratio" not in in_order([row("snip", 0.5, 2.0)])[0]


def test_a_finished_row_is_taken_from_its_file_and_another_is_measured(tmp_path: Path) -> None:
    done, other = cases(["random"], [0.5, 0.7], {**TINY, "rounds": 1}, 2)
    cache_file(tmp_path, done).write_text(json.dumps({"accuracy": 42.0}))
    kept, measured = measure_all([done, other], 1, tmp_path)
    assert kept == {"accuracy": 42.0} and measured["rate"] == 0.7
    assert json.loads(cache_file(tmp_path, other).read_text()) == measured


def test_accuracy_is_taken_when_asked_and_after_the_last_round() -> None:
    (case,) = cases(["fedavg"], [], {**TINY, "rounds": 3, "evaluate_every": 2}, 2)
    assert measure(case)["accuracy_by_round"].keys() == {"2", "3"}
