import json
from dataclasses import asdict
from pathlib import Path

import pytest

from prunella.core.errors import AttackError
from prunella.core.files import write_json
from prunella.server.audit.job import DESCENTS, JOB, PATTERN, PRIOR, REBUILT, RESULT, TRUTH, VIEW
from prunella.server.audit.parcel import deliver, pack
from prunella.server.audit.worker import JobResult, failed

RIGHT = json.dumps(asdict(JobResult(objective=0.5, seconds=1.0))).encode()
FAILED = json.dumps(asdict(failed("why", "reason"))).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "round-000001-control"
    (folder / DESCENTS).mkdir(parents=True)
    write_json(folder / JOB, {"attack": "rog", "settings": {"rog.prior": str(tmp_path / "learnt")}, "device": "cpu"})
    (folder / PATTERN).write_bytes(b"pattern")
    (tmp_path / "learnt").write_bytes(b"network")
    (tmp_path / "secret").write_bytes(b"of another job")
    return folder


def test_a_job_s_files_travel_and_nothing_else(folder: Path) -> None:
    files = pack(folder)
    assert files == {JOB: (folder / JOB).read_bytes(), PATTERN: b"pattern", PRIOR: b"network"}


def test_a_job_that_cannot_be_read_is_an_error(folder: Path) -> None:
    (folder / JOB).unlink()
    with pytest.raises(KeyError):
        pack(folder)


def test_an_answer_is_what_a_local_worker_would_have_left(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    deliver(folder, {RESULT: RIGHT, REBUILT: b"rebuilt", VIEW: b"view", TRUTH: b"truth", "../secret": b"", "x": b""})
    expected = {*before, RESULT, REBUILT, VIEW, TRUTH} - {PATTERN}
    assert {path.name for path in folder.iterdir()} == expected
    assert (folder / RESULT).read_bytes() == RIGHT and (folder / VIEW).read_bytes() == b"view"
    assert (folder.parent / "secret").read_bytes() == b"of another job"


def test_a_failure_is_an_answer_without_pictures_and_keeps_the_pattern(folder: Path) -> None:
    deliver(folder, {RESULT: FAILED})
    assert json.loads((folder / RESULT).read_text())["reason"] == "reason" and (folder / PATTERN).exists()


@pytest.mark.parametrize(
    "answer",
    [{}, {RESULT: b"{"}, {RESULT: b"[]"}, {RESULT: b'{"more": 1}', REBUILT: b""}, {RESULT: RIGHT}],
    ids=["nothing", "no JSON", "a list", "another release", "no picture"],
)
def test_what_is_no_answer_is_refused_and_nothing_of_it_written(folder: Path, answer: dict[str, bytes]) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(AttackError, match="the answer of the Ray cluster"):
        deliver(folder, answer)
    assert sorted(folder.iterdir()) == before
