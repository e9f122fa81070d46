"""The command: help that teaches, exit codes, and nothing heavy before it is needed."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prunella.deploy.cli import federation
from prunella.deploy.cli import main as cli
from prunella.deploy.errors import LaunchError
from prunella.deploy.runs import RunError, create
from prunella.deploy.runtime.processes import environment, importable
from prunella.deploy.tools import doctor

RUNNER = CliRunner()


def test_help_imports_neither_pytorch_nor_flower() -> None:
    code = """
import sys
from typer.testing import CliRunner
from prunella.deploy.cli.main import app
assert "prunella run" in CliRunner().invoke(app, ["--help"]).output
assert CliRunner().invoke(app, ["run", "--help"]).exit_code == 0
print(*[name for name in ("torch", "flwr", "numpy", "pydantic", "prunella.core") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], env=importable(environment()), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_every_command_has_a_help_with_words() -> None:
    listed = RUNNER.invoke(cli.app, ["--help"], env={"COLUMNS": "200"}).output
    for name in ("run", "simulate", "report", "runs", "audit", "export", "doctor"):
        assert name in listed
        assert len(RUNNER.invoke(cli.app, [name, "--help"], env={"COLUMNS": "200"}).output) > 200


def test_version() -> None:
    result = RUNNER.invoke(cli.app, ["--version"])
    assert result.exit_code == 0 and result.output.startswith("prunella")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "-c", "round=3"],
        ["run", "-c", "rounds=x"],
        ["run", "--supernodes", "0"],
        ["run", "--audit", "everything"],
        ["run", "--app", "/no/such/directory"],
        ["run", "--resume", "never-was"],
        ["run", "--resume", ""],
        ["simulate", "--resume", ""],
        ["report", "never-was"],
        ["export", "never-was"],
        ["audit", "/no/such/trace"],
        ["audit", "/no/such/trace", "--attack", "magic"],
        ["walk"],
    ],
)
def test_wrong_usage_is_2_and_one_line(arguments: list[str], tmp_path: Path) -> None:
    result = RUNNER.invoke(cli.app, arguments, env={"PRUNELLA_RUNS": str(tmp_path / "runs"), "COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "runs").exists(), "nothing was started"


@pytest.mark.parametrize(
    "raised, code",
    [
        (RunError("no"), 2),
        (LaunchError("broke"), 1),
        (KeyboardInterrupt(), 130),
        ("completed", 0),
        ("failed", 1),
        ("stopped", 130),
    ],
)
def test_exit_codes(raised: object, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_local(*_: object) -> object:
        if isinstance(raised, BaseException):
            raise raised
        return raised

    monkeypatch.setattr(federation, "run_local", run_local)
    assert RUNNER.invoke(cli.app, ["run"]).exit_code == code
    assert RUNNER.invoke(cli.app, ["simulate"]).exit_code == code


@pytest.mark.parametrize(
    "given", [["--audit", "deny"], ["--supernodes", "2"], ["--run-id", "a"], ["--client-seed", "3"]]
)
def test_what_a_resumed_run_would_ignore_is_refused(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who types --audit deny relies on it."""
    monkeypatch.setattr(federation, "run_local", lambda *_: "completed")
    result = RUNNER.invoke(cli.app, ["run", "--resume", "latest", *given], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and f"leave out {given[0]}" in result.output
    assert RUNNER.invoke(cli.app, ["run", "--resume", "latest", "--keep"]).exit_code == 0


def test_options_reach_the_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple] = []
    monkeypatch.setattr(federation, "run_local", lambda *given: seen.append(given) or "completed")
    RUNNER.invoke(cli.app, ["run", "-c", "a=1", "-c", "b=2", "--client-seed", "3", "--stock", "--keep", "--runs", "r"])
    RUNNER.invoke(cli.app, ["simulate", "--supernodes", "50", "--gpus", "0.25", "--audit", "deny"])
    app, runs, given, resume, keep, options = seen[0]
    assert (app, runs, given, resume, keep) == (None, Path("r"), ["a=1", "b=2"], "", True)
    assert options["client_seed"] == 3 and options["stock"] and options["supernodes"] == 4
    assert seen[1][-1]["simulate"] and seen[1][-1]["gpus_per_client"] == 0.25 and seen[1][-1]["audit"] == "deny"


def test_doctor_fails_when_something_must_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    for state, code in (("ok", 0), ("warn", 0), ("bad", 1)):
        monkeypatch.setattr(doctor, "examine", lambda *_, state=state: [doctor.Check("x", state, "y", "z")])
        assert RUNNER.invoke(cli.app, ["doctor"]).exit_code == code


def test_runs_lists_ids_with_their_status(tmp_path: Path) -> None:
    (create(tmp_path, "one", 0).path / "run.json").write_text('{"status": "failed"}')
    create(tmp_path, "two", 0)
    (tmp_path / "claims").mkdir()  # the cells of `prunella reproduce`
    result = RUNNER.invoke(cli.app, ["runs", "--runs", str(tmp_path)])
    assert result.output.split() == ["one", "failed", "two", "interrupted"]


def test_runs_on_nothing_says_so(tmp_path: Path) -> None:
    result = RUNNER.invoke(cli.app, ["runs", "--runs", str(tmp_path)], env={"COLUMNS": "300"})
    assert result.exit_code == 0 and "no runs in" in result.output and "prunella run" in result.output


def test_a_crash_prints_no_local_variable() -> None:
    """It may be a key."""
    code = """
from prunella.deploy.cli.main import app
@app.command()
def crash() -> None:
    key = "hunter" + "2"
    raise ZeroDivisionError
app(["crash"])
"""
    done = subprocess.run([sys.executable, "-c", code], env=importable(environment()), capture_output=True, text=True)
    assert "ZeroDivisionError" in done.stderr and "hunter2" not in done.stderr + done.stdout and done.returncode
