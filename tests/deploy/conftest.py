"""Federations as a user starts them: the command in a process of its own, running the smallest app."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from prunella.benchmarks.speed.round import write_app

ROOT = Path(__file__).resolve().parents[2]
TAG = "PRUNELLA_TEST_TAG"
PATIENCE = 120.0  # seconds until a test gives up; never an expectation of speed


def wait_for(condition: Callable[[], object], what: str, left: Callable[[], object] = str) -> None:
    """``left`` is asked when it gives up, for what is in the way."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"gave up waiting for {what}; left: {left()}"
        time.sleep(0.05)


@dataclass
class Command:
    """A running ``prunella`` and everything it started, found by an environment variable they inherit."""

    process: subprocess.Popen[str]
    tag: str
    runs: Path

    def family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TAG) == self.tag:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def finish(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output

    def listening(self) -> set[tuple[str, int]]:
        """Every address and port somebody of the family accepts connections on, IPv4-mapped ones as IPv4."""
        found = set()
        for process in self.family():
            try:
                connections = process.net_connections("inet")
            except psutil.NoSuchProcess:
                continue
            listeners = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
            found |= {(address.ip.removeprefix("::ffff:"), address.port) for address in listeners}
        return found

    def await_round(self, number: int) -> None:
        metrics = self.runs / "latest" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and f'"round": {number},' in metrics.read_text(), f"round {number}")

    def await_family(self, count: int) -> None:
        wait_for(lambda: len(self.family()) >= count, f"{count} processes")

    def await_end_of_family(self) -> None:
        wait_for(lambda: not self.family(), "the end of all processes", self.family)


@pytest.fixture(scope="session")
def smallest_app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_app(tmp_path_factory.mktemp("app") / "smallest-app")


@pytest.fixture
def prunella(tmp_path: Path, smallest_app: Path) -> Iterator[Callable[..., Command]]:
    """Start ``prunella run`` on the smallest app with these arguments; whatever is left is killed afterwards."""
    started: list[Command] = []

    def start(*arguments: str, subcommand: str = "run", runs: Path = tmp_path / "runs") -> Command:
        tag = uuid.uuid4().hex
        env = {**os.environ, "PYTHONPATH": str(ROOT), TAG: tag, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
        command = [sys.executable, "-c", "from prunella.deploy.cli import start; start()", subcommand]
        new = [] if "--resume" in arguments else ["--app", str(smallest_app), "--supernodes", "2"]
        process = subprocess.Popen(
            [*command, "--runs", str(runs), *new, *arguments],
            env=env,
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Tests that run in the background of a shell inherit that Ctrl-C is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(Command(process, tag, runs))
        return started[-1]

    yield start
    for command in started:
        for process in command.family():
            process.send_signal(signal.SIGKILL)
        command.process.wait()
