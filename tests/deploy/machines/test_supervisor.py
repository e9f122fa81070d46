"""What is started again, what is given up, and with which words; on a clock of our own."""

import datetime
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from prunella.deploy.errors import LaunchError
from prunella.deploy.machines import keys, supervisor
from prunella.deploy.machines.commands import EXECUTOR
from prunella.deploy.machines.supervisor import AGAIN, Supervisor, Tail
from prunella.deploy.runtime.processes import Exit, Process
from prunella.deploy.runtime.services import SUPERLINK, SUPERNODE

UNKNOWN = "Exit Code: 305\n[code: 2004] Failed to activate SuperNode.\n"


class Fake:
    """A backend whose processes end when told to."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[Exit] = []

    def spawn(self, process: Process) -> None:
        self.started.append(process.name)

    def exits(self) -> list[Exit]:
        ended, self.ended = self.ended, []
        return ended

    def stop(self) -> None:
        raise AssertionError("a supervisor does not stop its backend")


class Bench:
    """A supervisor, its backend, its log and what it said."""

    def __init__(self, folder: Path, name: str = SUPERNODE, *args: str) -> None:
        self.log, self.said, self.backend = folder / "main.log", [], Fake()
        processes = [Process(name, "x", args, str(self.log)), Process(EXECUTOR, "y")]
        self.supervisor = Supervisor(processes, self.backend, self.said.append, patience=60.0)
        self.supervisor.start()

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def end(self, name: str, code: int, now: float) -> None:
        self.backend.ended.append(Exit(name, code))
        self.supervisor.step(now)


@pytest.fixture
def node(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_full_disk_is_told_once_until_there_is_room_again(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    free = shutil.disk_usage(node.log.parent).free
    for now, least in enumerate((free // 2, free * 2, free * 2, free // 2, free * 2)):
        monkeypatch.setattr(supervisor, "FULL", least)
        node.supervisor.step(1000.0 + now * supervisor.LOOK)
        node.supervisor.step(1000.1 + now * supervisor.LOOK)
    assert ["is full: free some space" in line for line in node.said] == [True, True]


@pytest.mark.parametrize(("user", "told"), [(0, 0), (1000, 1)])
def test_what_is_reserved_for_root_is_free_for_root(
    node: Bench, monkeypatch: pytest.MonkeyPatch, user: int, told: int
) -> None:
    disk = SimpleNamespace(f_blocks=10**6, f_bfree=10**4, f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    node.supervisor.step(1000.0)
    assert len(node.said) == told


def test_a_home_that_is_away_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    logs = tmp_path / "home" / "logs"
    logs.mkdir(parents=True)
    node = Bench(logs)
    node.write("SuperNode ID: 1\n")
    node.supervisor.step(1000.0)
    (tmp_path / "home").rename(tmp_path / "away")
    node.supervisor.step(1000.0 + supervisor.LOOK)
    (tmp_path / "away").rename(tmp_path / "home")
    node.write("more\n")
    node.supervisor.step(1000.0 + 2 * supervisor.LOOK)
    assert node.said == ["SuperNode ID: 1", "more"]
    node.log.unlink()
    node.log.mkdir()  # an error of opening what is there, as of a handle that is stale
    node.supervisor.step(1000.0 + 3 * supervisor.LOOK)


def test_a_certificate_that_ends_soon_is_told_once_a_day_until_there_is_another(
    node: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = keys.Keys(tmp_path / "keys")
    keys.make(here.path, [], [])
    node.supervisor.reminders = lambda: keys.ending(here)
    hour = 3600.0
    for number in range(49):
        node.supervisor.step(1000.0 + number * hour)
    assert not node.said
    now = keys._now() + datetime.timedelta(days=keys.SUPERLINK_DAYS - 29)
    monkeypatch.setattr(keys, "_now", lambda: now)
    for number in range(49, 97):
        node.supervisor.step(1000.0 + number * hour)
    assert ["superlink.crt ends on" in line for line in node.said] == [True, True]
    here.certificate.unlink()
    node.supervisor.step(1000.0 + 97 * hour)
    assert len(node.said) == 2, "it is being replaced"


def test_a_supernode_that_the_superlink_forgot_comes_back(node: Bench) -> None:
    node.write("SuperNode ID: 1\n")
    node.end(SUPERNODE, 0, now=100.0)
    node.supervisor.step(100.0 + AGAIN - 0.1)
    assert node.backend.started == [SUPERNODE, EXECUTOR]
    node.supervisor.step(100.0 + AGAIN)
    assert node.backend.started == [SUPERNODE, EXECUTOR, SUPERNODE]


def test_an_unknown_key_is_tried_for_a_while_and_then_refused(node: Bench) -> None:
    now, tries = 1000.0, 0
    with pytest.raises(LaunchError, match="prunella register"):
        while now < 2000:
            node.write(UNKNOWN)
            node.end(SUPERNODE, 1, now)
            tries += 1
            now += AGAIN
            node.supervisor.step(now)
    assert 60 - 2 * AGAIN <= now - 1000.0 <= 60 + AGAIN and tries > 5


def test_a_key_that_gets_in_starts_a_new_patience(node: Bench) -> None:
    node.write(UNKNOWN)
    node.end(SUPERNODE, 1, 0.0)
    node.supervisor.step(AGAIN)
    node.write("SuperNode ID: 1\n")
    node.supervisor.step(50.0)
    node.end(SUPERNODE, -9, 51.0)
    node.supervisor.step(51.0 + AGAIN)
    node.write(UNKNOWN)
    node.end(SUPERNODE, 1, 100.0)
    assert "for 60 s at most" in node.said[-1]


def test_what_waiting_cannot_fix_ends_at_once(node: Bench) -> None:
    node.write("Exit Code: 305\nCERTIFICATE_VERIFY_FAILED\n")
    with pytest.raises(LaunchError, match="copy ca.crt"):
        node.end(SUPERNODE, 1, 0.0)


def test_a_start_that_fails_for_an_unknown_reason_is_not_repeated(node: Bench) -> None:
    node.write("Traceback\n")
    with pytest.raises(LaunchError, match="before it was ready"):
        node.end(SUPERNODE, 1, 0.0)


def test_words_of_a_refusal_in_a_working_log_do_not_end_it(node: Bench) -> None:
    node.write("SuperNode ID: 1\n")
    node.supervisor.step(0.0)
    node.write("CERTIFICATE_VERIFY_FAILED\n")
    node.end(SUPERNODE, 1, 1.0)
    node.supervisor.step(1.0 + AGAIN)
    assert node.backend.started.count(SUPERNODE) == 2


def test_an_executor_that_dies_is_replaced_and_a_dead_task_is_told(node: Bench) -> None:
    node.end(EXECUTOR, -9, 0.0)
    node.supervisor.step(AGAIN)
    assert node.backend.started == [SUPERNODE, EXECUTOR, EXECUTOR]
    node.end("flwr-clientapp of executor", -9, 10.0)
    assert "was killed by SIGKILL" in node.said[-1]
    said = len(node.said)
    node.end("flwr-clientapp of executor", 0, 11.0)
    assert len(node.said) == said


def test_nobody_answering_is_hinted_at_once(node: Bench) -> None:
    for _ in range(3):
        node.write("Connection attempt failed, retrying in 1.00 seconds\n")
        node.supervisor.step(0.0)
    assert len([line for line in node.said if "doctor --reach" in line]) == 1


@pytest.mark.parametrize("database", [True, False])
def test_a_superlink_comes_back_only_on_its_database(tmp_path: Path, database: bool) -> None:
    link = Bench(tmp_path, SUPERLINK, *(["--database", "x.db"] if database else []))
    link.write("Uvicorn running on https://127.0.0.1:8000\n")
    link.supervisor.step(0.0)
    if not database:
        with pytest.raises(LaunchError, match="leave out --in-memory"):
            link.end(SUPERLINK, -9, 1.0)
        return
    link.end(SUPERLINK, -9, 1.0)
    link.supervisor.step(1.0 + AGAIN)
    assert link.backend.started == [SUPERLINK, EXECUTOR, SUPERLINK]


def test_a_tail_gives_complete_new_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("from an earlier start\n")
    tail = Tail(path)
    assert tail.read() == ""
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert tail.read() == "one\n"
        file.write("o\n")
    assert tail.read() == "two\n"
    assert Tail(tmp_path / "none").read() == ""


def test_an_executor_on_its_own_always_comes_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, EXECUTOR)
    bench.supervisor.processes = bench.supervisor.processes[:1]
    for now, code in ((10.0, 1), (20.0, 0), (30.0, -9)):
        bench.end(EXECUTOR, code, now)
        bench.supervisor.step(now + AGAIN)
    assert bench.backend.started[2:] == [EXECUTOR] * 3
