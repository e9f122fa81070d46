"""A row of the table is a whole run; FedAvg stands in it once."""

from pathlib import Path

import pytest

from prunella.benchmarks.engine.results import write
from prunella.benchmarks.papers.scheme_table import MANY_CLIENTS, SCHEME_TABLE, run, table
from prunella.benchmarks.reproduce import reproduce
from prunella.strategies import STRATEGIES

TINY = {"dataset": "digits", "model": "cnn", "clients": 3, "rounds": 2, "local_steps": 2, "batch_size": 8}


@pytest.mark.parametrize(("scheme", "rate"), [("fedavg", 0.0), ("feddst", 0.7), ("lotteryfl", 0.5)])
def test_a_row_has_accuracy_and_bytes_and_nobody_failed(scheme: str, rate: float) -> None:
    row = run({**TINY, "device": "cpu", "scheme": scheme, "rate": rate}, 0, None)[str(rate)]
    assert 0 <= row["accuracy"] <= row["best"] <= 1 and row["failures"] == 0
    assert 0 < row["up"] and row["megabytes"] == row["up"] + row["down"] < row["dense"]
    if scheme == "feddst":
        assert row["density"] == pytest.approx(0.3, abs=1e-3)


def test_many_clients_have_fedpruning_s_setting_and_more_rounds_at_full_size() -> None:
    sweeps = MANY_CLIENTS.experiment.sweeps
    for small, full in zip(sweeps["small"].cells, sweeps["paper"].cells, strict=True):
        assert small["clients"] * small["fraction"] == full["clients"] * full["fraction"] == 10
        assert small["feddst__end_round"] / small["rounds"] == full["feddst__end_round"] / full["rounds"] == 0.6
        assert "device" not in full and full["model"] == "resnet18"
    tiny = {"dataset": "digits", "rounds": 1, "local_steps": 1, "batch_size": 8, "clients": 20}
    for cell in sweeps["small"].cells:
        assert run({**cell, **tiny}, 0, None)[str(cell["rate"])]["failures"] == 0


def test_every_scheme_has_its_rates_and_a_line_over_megabytes(tmp_path: Path) -> None:
    cells = SCHEME_TABLE.experiment.sweeps["small"].cells
    assert {cell["scheme"] for cell in cells} == set(STRATEGIES) and len(cells) == 1 + 3 * (len(STRATEGIES) - 1)
    claim = table(("fedavg", "random"), (0.5, 0.7), name="mine", **{**TINY, "rounds": 1, "evaluate_every": 1})
    result = reproduce(claim, "small", tmp_path, None, lambda line: None)
    assert [point.label for point in result.points] == [("fedavg", "0.0"), ("random", "0.5"), ("random", "0.7")]
    page, svg, *_ = write(result, tmp_path)
    assert "`prunella reproduce mine --size small`" in page.read_text() and "megabytes sent" in svg.read_text()
