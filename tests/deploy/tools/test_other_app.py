"""A run of another app ends with its time, its new traces, and a command that is one of ours."""

import os
import shlex
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from prunella.attacks.score.control import undefended_view
from prunella.attacks.trace import save_trace
from prunella.core.types import PrivateBatch
from prunella.deploy.cli import federation
from prunella.deploy.cli.main import app
from prunella.deploy.runs import RunDir, create
from prunella.deploy.runtime.watch import Outcome
from prunella.deploy.tools.other_app import closing, command, nothing_trained, traces_since
from prunella.tasks.task import Task, initial


def trace(path: Path, model: str = "cnn") -> Path:
    task = Task("cnn", (1, 8, 8), 10)
    x = torch.full((1, 1, 8, 8), 0.5)
    view = undefended_view(task, *initial(task, 0), PrivateBatch(x, torch.tensor([3])))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_trace(path, view, Task(model, (1, 8, 8), 10), {"round": 1})
    return path


def test_only_what_the_run_wrote_is_its_own(tmp_path: Path) -> None:
    old = trace(tmp_path / "traces" / "round-000001-node-7.safetensors")
    os.utime(old, (1.0, 1.0))
    started = time.time() - 10
    new = trace(tmp_path / "traces" / "round-000002-node-7.safetensors")
    trace(tmp_path / "traces" / "other.safetensors")
    below = trace(tmp_path / "a" / "b" / "round-000001-node-8.safetensors")
    assert traces_since([tmp_path, tmp_path / "traces"], started) == [below, new]


def test_a_model_of_somebody_s_own_is_named_in_the_command_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = trace(tmp_path / "with space" / "round-000001-node-7.safetensors", "my_app.model:build")
    words = ["prunella", "audit", str(mine), "--control", "--model", "my_app.model:build"]
    assert shlex.split(command(mine, tmp_path)) == [f"PYTHONPATH={tmp_path}", *words]
    monkeypatch.chdir(tmp_path)
    assert shlex.split(command(mine, tmp_path)) == words
    plain = command(trace(tmp_path / "round-000001-node-7.safetensors"), tmp_path / "elsewhere")
    assert plain.startswith("prunella audit") and "--model" not in plain
    (tmp_path / "broken.safetensors").write_text("")
    assert "--model" not in command(tmp_path / "broken.safetensors", tmp_path)


def test_the_command_that_is_named_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace(tmp_path / "traces" / "round-000001-node-7.safetensors")
    lines = closing(RunDir(tmp_path / "runs" / "one"), tmp_path, time.time() - 90)
    assert "completed in 1\N{NARROW NO-BREAK SPACE}min" in lines[0] and "1 file in" in lines[1]
    words = shlex.split(lines[2].removeprefix("audit one: "))[1:]
    few = ["--attack", "ig", "-c", "ig.iterations=2", "-c", "ig.labels-tried=1"]
    done = CliRunner().invoke(app, [*words, *few])
    assert done.exit_code == 0 and "verdict" in done.output, done.output


def test_the_end_repeats_that_nobody_defended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = RunDir(tmp_path / "one").log("superlink")
    log.parent.mkdir(parents=True)
    told = "the run names defenses 'dgp', but 2 of 2 clients answered without Defend: undefended, and dense"
    log.write_text(f"\x1b[93mWARNING \x1b[0m:   {told}\nINFO :      [ROUND 2/2]\n")
    assert closing(RunDir(tmp_path / "one"), tmp_path, time.time() - 90)[1] == f"warning: {told}"


def test_the_end_of_a_run_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "pyproject.toml").write_text(
        "[tool.flwr.app]\npublisher = 'them'\n[tool.flwr.app.components]\nserverapp = 'a:b'\nclientapp = 'a:c'\n"
    )
    monkeypatch.chdir(tmp_path)

    def launch(*_: object) -> Outcome:
        return Outcome(create(tmp_path / "runs", "one", 0), "completed")

    monkeypatch.setattr(federation, "launch", launch)
    done = CliRunner().invoke(app, ["run", "--app", "theirs", "--runs", "runs"])
    assert done.exit_code == 0 and "run one of theirs: completed in" in done.output, done.output
    assert "prunella.record" in done.output
    listed = CliRunner().invoke(app, ["runs", "--runs", "runs", "--json"])
    assert '"completed"' in listed.output and "interrupted" not in listed.output
    (tmp_path / "runs" / "one" / "launch.json").write_text("{}")
    monkeypatch.delattr(federation, "launch")  # it is not run again
    again = CliRunner().invoke(app, ["run", "--resume", "one", "--runs", "runs"])
    assert again.exit_code == 0 and "completed already; its logs are in" in again.output, again.output


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (
            "\x1b[92mINFO\x1b[0m :      \taggregate_train: Received 0 results and 3 failures\n" * 2,
            "in 2 rounds (6 failures)",
        ),
        ("INFO: aggregate_fit: received 0 results and 1 failures\n", "in 1 round (1 failure)"),
        (
            "INFO :\t> Received error in reply from node 8: <class 'a.ConfigError'>:<'unknown \x1b[2Jdefense'>\n"
            "aggregate_train: Received 0 results and 1 failures\n",
            "nothing was trained. One client said: unknown [2Jdefense",
        ),
        (
            "aggregate_train: Received 0 results and 3 failures\naggregate_train: Received 1 results and 2 failures\n",
            "",
        ),
        ("aggregate_evaluate: Received 0 results and 3 failures\n", ""),  # of a run that only trains
    ],
)
def test_a_run_in_which_no_answer_counted_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, error: str
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "pyproject.toml").write_text(
        "[tool.flwr.app]\npublisher = 'them'\n[tool.flwr.app.components]\nserverapp = 'a:b'\nclientapp = 'a:c'\n"
    )
    monkeypatch.chdir(tmp_path)

    def launch(*_: object) -> Outcome:
        run = create(tmp_path / "runs", "one", 0)
        run.log("server").parent.mkdir(exist_ok=True)
        run.log("server").write_text(told)
        return Outcome(run, "completed")

    monkeypatch.setattr(federation, "launch", launch)
    done = CliRunner().invoke(app, ["run", "--app", "theirs", "--runs", "runs"])
    assert done.exit_code == (1 if error else 0) and error in done.output, done.output
    assert ("nothing was trained" in done.output) == bool(error) != ("completed in" in done.output)
    assert nothing_trained([tmp_path / "none"]) == ""
