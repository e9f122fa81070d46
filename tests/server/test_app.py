import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supercore.exit.exit_handler import trigger_exit_handlers

import prunella.client.app
from prunella.core.config import Run, parse_run
from prunella.core.errors import ConfigError
from prunella.server.app import LAST_SCRAPE, LAUNCHED, app, assemble, describe, placed, versions
from prunella.server.exporter import Exporter
from prunella.server.store.read import read_run
from prunella.server.store.schema import Row, StoreError
from prunella.server.store.write import claimed
from tests.local_grid import LocalGrid, settings


def make(tmp_path: Path, **overrides: Any) -> Any:
    raw = settings(run_dir=str(tmp_path / "run"), **overrides)
    return assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"strategy": "prunfl"}, "did you mean 'prunefl'"),
        ({"attack": "sgii"}, "did you mean 'sgi'"),
        ({"defenses": "dgpp"}, "did you mean 'dgp'"),
        ({"dataset": "minst"}, "did you mean 'mnist'"),
        ({"model": "resnet"}, "did you mean 'resnet1"),
        ({"dgp__topp": 0.1}, "did you mean 'dgp.top'"),
        ({"dgp__top": 1.5}, "dgp.top"),
        ({"defenses": "none,dgp"}, "none"),
    ],
)
def test_a_wrong_name_or_value_is_refused_before_anything_starts(tmp_path: Path, overrides: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(tmp_path, **overrides)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [({"batch_size": 64}, True), ({"batch_size": 16}, False), ({"batch_size": 64, "audit_every": 0}, False)],
)
def test_a_run_that_has_too_few_public_images_for_its_controls_says_so_before_it_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, overrides: Any, warned: bool
) -> None:
    """A client's update has up to 8 x 64 images, and of the 359 test images of the digits 179 are a control's."""
    logging.getLogger("flwr").addHandler(caplog.handler)
    describe(make(tmp_path, **{"dataset": "digits", "local_steps": 8, "audit_every": 1, **overrides}))
    logging.getLogger("flwr").removeHandler(caplog.handler)
    told = "179 public images are too few for a control of this client's 512; have twice as many test images"
    assert (told in caplog.text) is warned


def test_a_run_without_a_place_gets_one_of_its_own_where_flower_keeps_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    first, second = (placed(Run(), number).run_dir for number in (7, 8))
    assert Path(first) == tmp_path / "prunella" / "runs" / "7" and Path(second).name == "8"
    assert placed(Run(run_dir="/there"), 7).run_dir == "/there"
    monkeypatch.delenv("FLWR_HOME")
    assert Path(placed(Run(), 7).run_dir).is_relative_to(Path.home() / ".flwr")
    with pytest.raises(ConfigError, match="run-dir"):
        placed(Run(resume=True), 7)


def test_a_run_that_nobody_launched_ends_with_a_report_only_its_owner_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    logging.getLogger("flwr").addHandler(caplog.handler)
    raw = settings(audit_every=0, rounds=1, poll_seconds=0.01) | {"learning-rate": "auto"}
    app(LocalGrid(prunella.client.app.app, 2, raw, tmp_path / "nodes"), context(raw))
    logging.getLogger("flwr").removeHandler(caplog.handler)
    folder = tmp_path / "prunella" / "runs" / "5"
    assert f"report: {folder}/report.html" in caplog.text and (folder / "report.html").stat().st_mode & 0o77 == 0
    assert folder.stat().st_mode & 0o77 == 0 and read_run(folder)["status"] == "completed"


def test_a_launcher_writes_the_report_itself(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LAUNCHED).write_text("{}")
    assert run_main(tmp_path)["status"] == "completed" and not (tmp_path / "run" / "report.html").exists()


def test_a_simulation_that_is_told_to_end_is_stopped_whatever_its_thread_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower runs its exit handlers while the ServerApp, a thread of its own there, goes on."""

    def told(*_: object) -> None:
        trigger_exit_handlers(run_before_force_exit=False)
        raise RuntimeError("the workers are gone")

    monkeypatch.setattr("prunella.server.app.federate", told)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError):
        pool.submit(run_main, tmp_path).result()
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == "stopped" and run["error"] is None


def context(raw: dict[str, Any]) -> Any:
    return SimpleNamespace(run_config=raw, run_id=5)


def run_main(tmp_path: Path, **overrides: Any) -> dict[str, Any]:
    raw = settings(run_dir=str(tmp_path / "run"), audit_every=0, rounds=1, poll_seconds=0.01, **overrides)
    raw |= {"learning-rate": "auto"}  # as Flower hands it to both sides, of `flwr run` as well
    grid = LocalGrid(prunella.client.app.app, 2, raw, tmp_path / "nodes")
    app(grid, context(raw))
    return json.loads((tmp_path / "run" / "run.json").read_text())


def test_a_finished_run_says_so_and_what_it_was(tmp_path: Path) -> None:
    run = run_main(tmp_path)
    assert run["status"] == "completed" and run["error"] is None
    assert run["settings"]["dataset"] == "digits" and run["model_parameters"] == 21882
    assert run["settings"]["learning-rate"] == 0.25, "settled, whoever settled it"
    assert run["shape"] == [1, 8, 8] and run["classes"] == 10
    assert run["test_examples"] == 359 and 0.1 <= run["largest_class"] < 0.15
    assert run["claims"] == ["priprune: heuristic, no ε"]
    assert (tmp_path / "run" / "metrics.parquet").exists()


def test_where_the_clients_evaluate_guessing_is_not_that_of_the_servers_examples(tmp_path: Path) -> None:
    run = run_main(tmp_path, evaluation="clients")
    assert run["classes"] == 10 and "test_examples" not in run


def test_a_failed_run_says_why_and_the_error_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="2 of 5 clients"):
        run_main(tmp_path, min_clients=5, round_seconds=0.3)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == "failed" and "2 of 5 clients" in run["error"]


@pytest.mark.parametrize("code, status, error", [(0, "stopped", None), (3, "failed", "SystemExit: 3")])
def test_a_run_that_was_told_to_stop_did_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: str, error: str | None
) -> None:
    monkeypatch.setattr("prunella.server.app.federate", lambda *_: sys.exit(code))
    with pytest.raises(SystemExit):
        run_main(tmp_path)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == status and run["error"] == error


@pytest.mark.parametrize("how", ["completed", "failed", "Ctrl-C"])
def test_monitoring_is_told_of_the_end_and_given_time_to_read_it_unless_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def federate(*given: Any) -> None:
        assert shown[-1] == Row("run_ended", 0.0)
        given[0].ledgers = {"0": {"epsilon": 1.0, "epsilon_next": 1.5, "unheard": 2}}  # the round is cut short
        if how != "completed":
            raise {"failed": RuntimeError("no"), "Ctrl-C": KeyboardInterrupt()}[how]

    shown: list[Row] = []
    closed: list[tuple[float, str]] = []
    status = lambda: json.loads((tmp_path / "run" / "run.json").read_text())["status"]  # noqa: E731
    monkeypatch.setattr("prunella.server.app.federate", federate)
    monkeypatch.setattr(Exporter, "update", lambda _, rows: shown.extend(rows))
    monkeypatch.setattr(Exporter, "close", lambda _, patience: closed.append((patience, status())))
    with nullcontext() if how == "completed" else pytest.raises((RuntimeError, KeyboardInterrupt)):
        run_main(tmp_path, metrics_address="127.0.0.1:0")
    assert shown[-1] == Row("run_ended", 1.0) and Row("privacy_epsilon_unknown", 1.0) in shown
    assert closed == [(0.0 if how == "Ctrl-C" else LAST_SCRAPE, "completed" if how == "completed" else "failed")]


def test_a_second_server_of_the_same_run_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_main(tmp_path)
    monkeypatch.setattr(claimed, "__defaults__", (0.0,))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with claimed(tmp_path / "run"), pytest.raises(StoreError, match="another ServerApp is writing"):
        run_main(tmp_path, resume=True)
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    run_main(tmp_path, resume=True)


def test_versions_are_those_installed() -> None:
    assert versions()["flwr"] == version("flwr")
