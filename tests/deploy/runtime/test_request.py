"""What is asked of a run, on disk and in the run's settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prunella.deploy.runs import RunDir, RunError, create
from prunella.deploy.runtime.request import RunRequest, describe, restored, run_config, submission


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create(tmp_path / "runs", "one", 2)


def test_a_request_survives_the_disk(run: RunDir, smallest_app: Path) -> None:
    request = RunRequest(smallest_app, run.path.parent, {"rounds": 3}, 2, "one", "deny", 5)
    (run.path / "launch.json").write_text(json.dumps(describe(request)))
    assert restored(run) == request
    assert restored(run, keep=True) == replace(request, keep=True)
    (run.path / "launch.json").write_text("{}")
    with pytest.raises(RunError, match="start a new run"):
        restored(run)


def test_the_launcher_sets_only_keys_the_app_has(run: RunDir, smallest_app: Path) -> None:
    config = run_config(RunRequest(smallest_app, run.path.parent, {"rounds": 1}), run, 9000, True)
    assert config == {"run-dir": str(run.path), "resume": True, "rounds": 1}


def test_a_submission_carries_the_app_its_settings_and_the_target(run: RunDir, smallest_app: Path) -> None:
    process = submission(RunRequest(smallest_app, run.path.parent), run, {"rounds": 3}, address="127.0.0.1:1")
    sent = json.loads(Path(process.args[0]).read_text())
    assert sent == {
        "app": str(smallest_app),
        "packages": str(smallest_app),
        "config": {"rounds": 3},
        "out": str(run.events),
        "address": "127.0.0.1:1",
    }
    assert process.log == str(run.log("control")) and process.env == {"FLWR_HOME": str(run.home("control"))}
