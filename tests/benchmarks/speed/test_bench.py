"""The shared command line and clock of the benchmarks: ratios of a turn, the least of each, one JSON object."""

import json
import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from prunella.benchmarks.speed import bench


def test_ratios_are_of_the_same_turn_and_the_first_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 9, 9, 99] + [100, 101, 101, 103] + [200, 202, 202, 210])
    monkeypatch.setattr(bench.time, "process_time", lambda: next(clock))
    found = bench.turns({"plain": lambda: None, "defended": lambda: None}, "plain", 2)
    assert found["defended"] == {"seconds": 5, "ratio": 3, "least": 2, "most": 4}
    assert found["plain"]["ratio"] == 1


def test_the_fastest_of_each_is_taken_in_turn() -> None:
    waits, order = iter([0.02, 0.0]), []
    arms = {"a": lambda: (order.append("a"), time.sleep(next(waits))), "b": lambda: order.append("b")}
    times = bench.fastest(arms, 2)
    assert order == ["a", "b", "a", "b"] and times["a"] < 0.02


def measure(options: Namespace) -> dict[str, Any]:
    if options.steps < 1:
        raise ArgumentTypeError("--steps must be at least 1")
    return {"steps": options.steps, "given": options.given}


def test_a_command_shows_prints_or_writes_and_refuses_nonsense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(*arguments: str, options: Any = MappingProxyType({})) -> str:
        monkeypatch.setattr("sys.argv", ["toy", *arguments])
        given = {"dest": "given", "action": "append", "default": []}
        show = lambda result: bench.show_table("title", "what, figure", [("steps", str(result["steps"]))])  # noqa: E731
        bench.command("A toy.\nMore.", measure, show, {"--steps": 4, "-c": given, **options})
        return capsys.readouterr().out

    assert "steps" in run() and json.loads(run("--json", "-c", "a", "-c", "b"))["given"] == ["a", "b"]
    assert "7" in run("--steps", "7", "--json", str(tmp_path / "x.json"), options={"--json": {"type": Path}})
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["steps"] == 7 and written["machine"]["processors"]
    with pytest.raises(SystemExit):
        run("--steps", "0")
    assert "--steps must be at least 1" in capsys.readouterr().err


def test_what_is_missing_is_named_with_the_line_that_installs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.importable({"json": "json", "no_such_package": "no-such==1.0", "nor_this": "nor"}) == {"json"}
    assert "pip install no-such==1.0 nor\n" in capsys.readouterr().err
