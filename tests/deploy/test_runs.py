import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from prunella.deploy.runs import RunDir, RunError, create, every, find, locked, new_id, point_latest, prepare, state
from prunella.deploy.tools.results import records


def test_ids_sort_by_age_and_differ() -> None:
    assert new_id(0.0) < new_id(1.0) < new_id(1e9)
    assert len({new_id(0.0) for _ in range(50)}) > 40


def test_a_new_run_is_private(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        run = create(tmp_path / "deep" / "runs", "one", 2)
    finally:
        os.umask(old)
    private = [run.path, run.flower, run.path / "logs", run.node(0), run.node(1), run.node(1) / "state"]
    assert [path.stat().st_mode & 0o777 for path in private] == [0o700] * 6
    assert run.id == "one" and run.path.is_absolute() and run.status() == "" and run.launch() == {}


def test_preparing_again_keeps_what_clients_remember(tmp_path: Path) -> None:
    run = create(tmp_path, "one", 1)
    (run.node(0) / "state" / "x").write_text("kept")
    prepare(run, 2)
    assert (run.node(0) / "state" / "x").read_text() == "kept" and (run.node(1) / "state").is_dir()


def test_a_file_in_the_place_of_the_folder_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("")
    with pytest.raises(RunError, match="afile .it is a file, not a folder.: choose another directory"):
        create(tmp_path / "afile", "one", 1)
    with pytest.raises(RunError, match="a file stands where a folder above it should be"):
        create(tmp_path / "afile" / "runs", "one", 1)


@pytest.mark.parametrize("name", ["", ".", "..", "latest", "a/b", "a b", "wegé", "-a", "a\n", "$a"])
def test_names_that_are_no_ids(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="always means the newest" if name == "latest" else "not a run id"):
        create(tmp_path / "runs", name, 1)


def test_runs_are_in_the_order_in_which_they_began_whatever_they_are_called(tmp_path: Path) -> None:
    for number, name in enumerate(("zebra", "ant", "cat", "bee")):
        run = create(tmp_path, name, 1)
        if name != "bee":  # whose server has not begun
            (run.path / "run.json").write_text(json.dumps({"started": f"2026-11-0{number + 1}T08:00:00+00:00"}))
    (tmp_path / "cat" / "run.json").write_text("{")
    os.utime(tmp_path / "cat", (2e9, 2e9))
    os.utime(tmp_path / "bee", (1e9, 1e9))
    assert [run.id for run in every(tmp_path)] == ["bee", "zebra", "ant", "cat"]
    assert state(RunDir(tmp_path / "cat")) == "unreadable", "and the others are listed"
    with pytest.raises(RunError, match="the newest are zebra, ant, cat"):
        find(tmp_path, "dog")


@contextmanager
def nobody() -> Iterator[None]:
    """As another user than root, to whom no folder is closed."""
    user = os.geteuid()
    try:
        os.seteuid(65534 if user == 0 else user)
        yield
    finally:
        os.seteuid(user)


def test_a_run_of_another_user_hides_no_other() -> None:
    """Runs are for their owner only, and several people may keep theirs in one folder."""
    with TemporaryDirectory() as folder:  # pytest's own is closed to others than its user
        runs = Path(folder)
        for name in ("mine", "theirs"):
            (runs / name / "logs").mkdir(parents=True)
            (runs / name / "run.json").write_text('{"status": "completed"}')
        runs.chmod(0o755)
        (runs / "theirs").chmod(0)
        with nobody():
            assert {run.id: state(run) for run in every(runs)} == {"mine": "completed", "theirs": "unreadable"}
            mine, theirs = sorted(records(every(runs)), key=lambda each: each["run"])
            assert mine["status"] == "completed" and theirs["status"] == "unreadable" and theirs["error"]
            with pytest.raises(RunError, match="no run 'other'"):
                find(runs, "other")
            with pytest.raises(RunError, match="theirs is not yours to read"):
                find(runs, "theirs")
        (runs / "theirs").chmod(0o700)


def test_taken_or_unwritable(tmp_path: Path) -> None:
    create(tmp_path, "one", 1)
    with pytest.raises(RunError, match="--resume one"):
        create(tmp_path, "one", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="--runs"):
        create(tmp_path / "file", "two", 1)


def test_latest_moves(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (create(tmp_path, name, 1).path / "launch.json").write_text("{}")
        point_latest(tmp_path, name)
    assert os.readlink(tmp_path / "latest") == "two"
    assert find(tmp_path, "latest").id == "two"
    assert not list(tmp_path.glob(".latest-*"))


def test_find_by_id_path_or_beginning(tmp_path: Path) -> None:
    for name in ("20260101-a", "20260101-b", "20270101-c"):
        (create(tmp_path, name, 0).path / "launch.json").write_text("{}")
    assert find(tmp_path, "20260101-b").id == "20260101-b"
    assert find(tmp_path, "2027").id == "20270101-c"
    assert find(tmp_path / "elsewhere", str(tmp_path / "20260101-a")).id == "20260101-a"
    for name in ("2026", "nothing", ""):
        with pytest.raises(RunError, match="the newest are 20260101-a, 20260101-b, 20270101-c"):
            find(tmp_path, name)
    with pytest.raises(RunError, match="prunella run"):
        find(tmp_path / "empty", "latest")
    (tmp_path / "folder").mkdir()
    for runs, name in ((tmp_path, "folder"), (tmp_path / "elsewhere", str(tmp_path / "folder"))):
        with pytest.raises(RunError, match="folder holds no run"):
            find(runs, name)


def test_two_launchers_cannot_hold_one_run(tmp_path: Path) -> None:
    run = create(tmp_path, "one", 0)
    with locked(run), pytest.raises(RunError, match="going on"), locked(run):
        raise AssertionError("held twice")
    with locked(run):
        assert run.path.exists()


def test_a_run_nobody_holds_was_interrupted(tmp_path: Path) -> None:
    run = create(tmp_path, "one", 0)
    (run.path / "run.json").write_text('{"status": "running"}')
    assert state(run) == "interrupted"
    with locked(run):
        assert state(run) == "running"
    (run.path / "run.json").write_text('{"status": "completed"}')
    assert state(run) == "completed"


def test_a_run_without_run_json_is_what_its_launcher_said(tmp_path: Path) -> None:
    run = create(tmp_path, "one", 0)
    assert state(run) == "interrupted" and not run.ended()
    run.end("failed")
    assert state(run) == "failed"
    run.end("completed")
    assert state(run) == "completed" and not run.status()


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    for text in ('{"status": ', "null", "5", "[]"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(RunError, match="run.json is not a JSON object: restore it, or remove"):
            RunDir(tmp_path).status()
        assert state(RunDir(tmp_path)) == "unreadable"
    (tmp_path / "run.json").write_text('{"status": "completed"}')
    assert RunDir(tmp_path).status() == "completed"
