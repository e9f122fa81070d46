import json
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from prunella.core.files import write_json
from prunella.server.audit import remote
from prunella.server.audit.job import JOB, PRIOR, PUBLIC, REBUILT, RESULT, VIEW
from prunella.server.audit.parcel import pack
from prunella.server.audit.process import MAX_STARTS
from prunella.server.audit.remote import attack_here, difference, release
from prunella.server.audit.worker import preload, work
from tests.server.audit.test_worker import job, until


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the other machine keeps its files."""
    place = tmp_path / "there"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def left(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob(f"{remote.PREFIX}*"))


def test_the_answer_is_that_of_the_local_worker_bit_for_bit(tmp_path: Path, place: Path) -> None:
    preload()
    folder = job(tmp_path / "here", "a", iterations=40)
    answer = attack_here(pack(folder), None, release())
    assert isinstance(answer, dict) and not left(place)
    work(folder)
    assert answer[REBUILT] == (folder / REBUILT).read_bytes() and answer[VIEW] == (folder / VIEW).read_bytes()
    there, here = json.loads(answer[RESULT]), json.loads((folder / RESULT).read_text())
    assert there.pop("seconds") > 0 and here.pop("seconds") > 0 and there == here and there["scores"] is not None


@pytest.mark.parametrize("part", release())
def test_another_release_gives_no_answer_but_one_line_that_says_so(tmp_path: Path, place: Path, part: str) -> None:
    assert difference(release(), release()) is None
    told = attack_here(pack(job(tmp_path, "a")), None, release() | {part: "another"})
    assert isinstance(told, str) and f"{part} {release()[part]} instead of another" in told and "\n" not in told
    assert not list(place.iterdir())  # it is not even unpacked


def test_a_worker_that_cannot_start_there_is_a_reason(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.server.audit.process.sys.executable", "/bin/false")
    told = attack_here(pack(job(tmp_path, "a")), None, release())
    assert told == f"the audit worker ended {MAX_STARTS} times without an answer on the Ray cluster" and not left(place)


def test_a_job_finds_public_images_and_the_network_it_brought(tmp_path: Path) -> None:
    files = {JOB: json.dumps({"attack": "rog", "settings": {"rog.prior": "/elsewhere"}}).encode(), PRIOR: b"network"}
    folder = remote._unpack(files, b"public", tmp_path)
    settings = json.loads((folder / JOB).read_text())["settings"]
    assert Path(settings["rog.prior"]).read_bytes() == b"network"
    assert (folder.parent / PUBLIC).read_bytes() == b"public" and folder.stat().st_mode & 0o77 == 0


def hold() -> None:
    with remote._scratch() as folder:
        write_json(folder / "view", "what a client sent")
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)


def test_what_a_killed_process_leaves_is_removed_by_the_next_and_what_is_in_use_is_not(place: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=hold)
    process.start()
    try:
        until(lambda: list(place.glob("*/view")))
        with remote._scratch():
            assert list(place.glob("*/view"))
    finally:
        process.kill()
        process.join()
    assert list(place.glob("*/view"))
    with remote._scratch() as mine:
        assert left(place) == [mine.name, f"{mine.name}.lock"]
    assert not left(place)
