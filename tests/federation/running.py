"""``prunella run`` as a process of its own, for tests that do something to it, and the end of others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from prunella.deploy.ports import free_ports
from prunella.server.checkpoint import Checkpoint, load
from prunella.server.store.read import read_metrics

ROOT = Path(__file__).parents[2]


def start(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **env}
    command = [sys.executable, "-c", "from prunella.deploy.cli import start; start()", "run", *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object], what: str) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"gave up waiting for {what}")


class Place:
    """A directory in which ``prunella`` commands run as on several machines, each with a log of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.control, self.fleet = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "dumb", "COLUMNS": "200"}
        self.link: subprocess.Popen[str]
        self.nodes: dict[str, subprocess.Popen[str]] = {}

    def start(self, log: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from prunella.deploy.cli import start; start()", *arguments]
        with (self.folder / log).open("w") as out:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env,
                stdout=out,
                stderr=out,
                text=True,
                # As in a terminal, whoever started the tests: a shell's background job ignores Ctrl-C.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self._stack.callback(end, process)
        return process

    def open(self, options: Mapping[str, tuple[str, ...]]) -> None:
        """Keys, a SuperLink, and a SuperNode it knows for every name, with these options."""
        names = [part for name in options for part in ("--name", name)]
        made = self.start("keys.log", "keys", *names, "--host", "127.0.0.1")
        assert made.wait(90) == 0, self.said("keys.log")
        self.link = self.start("link.log", "superlink", "--fleet", self.fleet, "--control", self.control)
        register = self.start("register.log", "register", "--superlink", self.control)
        assert register.wait(120) == 0, self.said("register.log") + self.said("link.log")
        for number, (name, more) in enumerate(options.items()):
            which = ("--name", name, "--client-id", str(number), "--clients", str(len(options)), *more)
            self.nodes[name] = self.start(f"{name}.log", "supernode", "--superlink", self.fleet, *which)

    def said(self, log: str) -> str:
        return (self.folder / log).read_text(errors="replace")


def rounds(folder: Path) -> int:
    path = folder / "runs" / "latest"
    return max((r["round"] for r in read_metrics(path)), default=0) if path.exists() else 0


def find(process: subprocess.Popen[str], needle: str) -> psutil.Process:
    """The one process under ``process`` whose name or command line holds ``needle``."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):  # a zombie has no command line
            found += [each] if needle in each.name() or needle in " ".join(each.cmdline()) else []
    (one,) = found
    return one


def failures(run: Path) -> dict[int, dict[str, float]]:
    """Replies left out by round and reason; the counters in the store are cumulative."""
    found: dict[int, dict[str, float]] = {}
    before: dict[str, float] = {}
    for line in read_metrics(run):
        if line["metric"] == "client_failures_total":
            reason, total = line["labels"]["reason"], line["value"]
            if total > before.get(reason, 0.0):
                found.setdefault(line["round"], {})[reason] = total - before.get(reason, 0.0)
            before[reason] = total
    return found


def series(run: Path, metric: str, **labels: str) -> list[float]:
    return [line["value"] for line in read_metrics(run) if line["metric"] == metric and line["labels"] == labels]


def final(folder: Path) -> Checkpoint:
    saved = load(folder / "runs" / "latest" / "checkpoint")
    assert saved is not None
    return saved
