"""What surrounds a federation: settings before, record, report and table after."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prunella.core.installation import IMPORT_ROOT as ROOT
from prunella.deploy.cli import federation
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.runs import RunDir, create, find, point_latest, state
from prunella.deploy.runtime.processes import environment, importable
from prunella.deploy.runtime.request import RunRequest, describe
from prunella.deploy.runtime.watch import Outcome
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = create(tmp_path / "runs", "one", 2)
    store = RunStore.open(made.path)
    store.write_run(id="one", status="running", settings={}, versions={}, threat_model="", claims=[])
    store.append_metrics(1, [row("round", 1), row("rounds", 2), row("accuracy_ratio", 0.5)])
    return made


def launched(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> list[tuple]:
    seen: list[tuple] = []

    def launch(request, view, check, resume):  # noqa: ANN001, ANN202
        check()
        seen.append((request, resume))
        return outcome

    monkeypatch.setattr(federation, "launch", launch)
    return seen


def test_a_failure_is_recorded_explained_and_reported(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = run.log("server")
    log.write_text("first\nthe last words\n")
    seen = launched(monkeypatch, Outcome(run, "failed", "no memory", log))
    assert federation.run_local(None, run.path.parent, ["rounds=2"], "", False, {"supernodes": 2}) == "failed"
    [(request, resume)] = seen
    assert request == RunRequest(ROOT, run.path.parent, {"rounds": 2}, 2) and resume is None
    told = capfd.readouterr()
    assert "no memory" in told.err and "the last words" in told.err and str(log) in told.err
    assert "report:" in told.out and (run.path / "report.html").exists()
    assert json.loads((run.path / "run.json").read_text())["error"] == "no memory"


def test_of_an_error_of_ours_no_traceback_is_shown_and_of_another_no_colours(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = run.log("server")
    for last, shown in (("prunella.core.errors.DataError: not there", False), ("\x1b[91mERROR\x1b[0m: else", True)):
        log.write_text(f"Traceback\n{last}\nmore at a place on the web\n")
        launched(monkeypatch, Outcome(run, "failed", "not there", log))
        assert federation.run_local(None, run.path.parent, ["rounds=2"], "", False, {"supernodes": 2}) == "failed"
        told = capfd.readouterr().err
        assert ("Traceback" in told) is shown and "not there" in told and "\x1b" not in told
        assert ("ERROR: else" in told) is shown


def test_a_full_disk_is_one_line(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, Outcome(run, "failed", "OSError: [Errno 28]", run.log("server")))
    monkeypatch.setattr(federation, "room", lambda path: 5_000)
    with pytest.raises(LaunchError, match=r"is full: free some space, then go on with prunella run --resume one"):
        federation.run_local(None, run.path.parent, [], "", False, {"supernodes": 2})
    assert not (run.path / "report.html").exists()


def test_stopping_says_how_to_go_on_and_writes_it_down(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    launched(monkeypatch, Outcome(run, "stopped", "stopped by the user"))
    assert federation.run_local(None, run.path.parent, [], "", False, {}) == "stopped"
    assert "--resume one" in capfd.readouterr().err
    assert federation.again(RunDir(Path("/my data/runs/one"))) == "prunella run --resume one --runs '/my data/runs'"
    assert run.status() == "stopped" and not (run.path / "report.html").exists()


def test_the_servers_own_account_of_a_failure_stays(run: RunDir) -> None:
    RunStore.open(run.path).finish("failed", "its own words")
    federation.record(Outcome(run, "failed", "Flower's words"))
    assert json.loads((run.path / "run.json").read_text())["error"] == "its own words"


def test_a_run_that_never_began_has_failed_and_latest_is_the_newest_that_did(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        create(tmp_path, name, 0)
    for name in ("metrics.jsonl", "run.json"):
        (tmp_path / "a" / name).write_text("{}\n")
    point_latest(tmp_path, "b")
    federation.record(Outcome(RunDir(tmp_path / "b"), "failed", "no data"), ours=True)
    assert state(RunDir(tmp_path / "b")) == "failed" and find(tmp_path, "latest").id == "a"
    assert json.loads((tmp_path / "b" / "run.json").read_text())["error"] == "no data"
    assert state(RunDir(tmp_path / "c")) == "interrupted"  # nobody wrote down how it ended


def test_a_completed_run_is_not_run_again(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    RunStore.open(run.path).finish("completed")
    seen = launched(monkeypatch, Outcome(run, "completed"))
    assert federation.run_local(None, run.path.parent, [], "one", False, {}) == "completed"
    assert not seen and "completed already" in capfd.readouterr().out


def test_resume_keeps_the_settings(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    request = RunRequest(ROOT, run.path.parent, {"rounds": 2}, 3, "one", "deny")
    (run.path / "launch.json").write_text(json.dumps(describe(request)))
    seen = launched(monkeypatch, Outcome(run, "completed"))
    assert federation.run_local(None, run.path.parent, [], "one", False, {"supernodes": 9}) == "completed"
    assert seen == [(request, run)]
    with pytest.raises(UsageError, match="leave out -c"):
        federation.run_local(None, run.path.parent, ["rounds=3"], "one", False, {})


def test_a_foreign_app_without_a_store_has_no_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = create(tmp_path, "one", 0)
    federation.record(Outcome(run, "failed", "x"))
    federation.finish(run)
    assert not (run.path / "report.html").exists() and not (run.path / "run.json").exists()
    assert "report" not in capfd.readouterr().out


def test_a_report_is_written_beside_modules_of_the_users_own(run: RunDir) -> None:
    folder = run.path.parent.parent
    for name in ("server.py", "core/__init__.py", "strategies/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise RuntimeError('not Prunella')")
    code = "from prunella.deploy.cli import start; start()"
    command = [sys.executable, "-c", code, "report", "one"]
    done = subprocess.run(command, cwd=folder, env=importable(environment()), capture_output=True, text=True)
    assert done.returncode == 0 and (run.path / "report.html").exists(), done.stderr
