"""The figures of made-up runs are those they were made of; without namespaces nothing is measured, and that is said."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from prunella.benchmarks.speed import link
from prunella.benchmarks.speed.link import Deployed, measure, row, show
from prunella.benchmarks.speed.thin_link import Line, ThinLink
from prunella.server.store.rows import row as stored
from prunella.server.store.write import RunStore


def rounds(folder: Path, seconds: list[float], lost: int) -> None:
    """Each round brings 100 bytes down and 30 up; ``lost`` replies are left out."""
    store = RunStore.open(folder)
    for number, taken in enumerate(seconds, 1):
        rows = [stored("round_seconds", taken)]
        rows += [stored("wire_bytes_total", each * number, direction=way) for way, each in (("down", 100), ("up", 30))]
        rows += [stored("client_failures_total", 1, reason=reason) for reason in ["timeout", "unreachable"][:lost]]
        store.append_metrics(number, rows)


def test_a_row_is_of_the_rounds_after_the_first(tmp_path: Path) -> None:
    rounds(tmp_path / "runs" / "one", [90.0, 2.0, 8.0, 4.0], lost=2)
    place = Deployed(ThinLink(Line()), tmp_path, None)  # type: ignore[arg-type]
    found = row(place, "one", carried=900.0)
    expected = {"seconds": 4.0, "longest": 8.0, "down": 100.0, "up": 30.0, "wire": 300.0, "left out": 2.0}
    assert found == pytest.approx(expected)
    assert place.lines("none", "round_seconds") == []


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"rate": 1e6, "delay": 0.1, "loss": 0.0, "rounds": 5, "given": [], "cut": "", **given})


def test_without_namespaces_one_line_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(link, "missing", lambda: "needs root")
    show(measure(options()))
    assert capsys.readouterr().out == "nothing measured: needs root\n"


def test_one_round_is_too_few() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="at least 2"):
        measure(options(rounds=1))


def test_ratios_are_of_the_dense_arm(capsys: pytest.CaptureFixture[str]) -> None:
    dense = {"seconds": 8.0, "longest": 9.0, "down": 1e5, "up": 1e5, "wire": 4e5, "left out": 0.0}
    rows = {"dense": dense, "pruned": {**dense, "seconds": 2.0, "wire": 1e5}}
    show({"rate": 1e6, "delay": 0.1, "loss": 0.01, "rounds": 5, "missing": "", "rows": rows})
    said = capsys.readouterr().out
    assert "1 Mbit/s, 200 ms there and back, 1.0% lost" in said
    pruned = next(line for line in said.splitlines() if "pruned" in line)
    assert pruned.count("0.25") == 2
