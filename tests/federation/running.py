"""``prunella run`` as a process of its own, for tests that do something to it, and the end of others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from server.checkpoint import Checkpoint, load
from server.store import read_metrics

ROOT = Path(__file__).parents[2]


def start(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **env}
    command = [sys.executable, "-c", "from deploy.cli import app; app()", "run", *arguments]
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
