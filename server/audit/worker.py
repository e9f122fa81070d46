"""The audit worker: a separate process that attacks recorded views, several at once, each in a fork.

``python -m prunella.server.audit.worker DIRECTORY PID JOBS`` serves a folder of jobs, up to JOBS at a time. A job
is a folder with ``view.safetensors`` (a trace) and ``job.json`` (attack, its settings, device, a seed, seconds); for a
public canary the view is made here (``server.audit.canary``), and ``truth.safetensors`` with it. The answer is
``rebuilt.safetensors`` and ``result.json``. The files are the queue, so a restart loses nothing: a killed worker's
forks die with it and leave their jobs to the next worker, and a long attack continues from ``descents/``. A job that
crashes or is killed becomes an answer with an error. Training never waits: the worker runs at low priority and uses the
processor time that the rounds leave. It ends when the folder has a file ``stop`` and no open job, or when its parent,
process PID, is gone.

An attack that descends step by step ends after ``audit-seconds`` with the best it has, and says so; any other is killed
``FAR_PAST`` times later, as one that hangs would be.

PyTorch and the scores are imported once, before the first fork. No thread and no CUDA driver is started in this
process, so that forking is safe and a job's memory is returned when the job ends.
"""

import ctypes
import importlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sized
from dataclasses import asdict, dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from prunella.attacks import find_attack
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.score.leakage import score
from prunella.attacks.trace import load_trace, recorded_task
from prunella.core.config import parse_section
from prunella.core.device import pick_device
from prunella.core.errors import PrunellaError
from prunella.core.files import read_tree, write_json, write_tree
from prunella.core.memory import keep_freed_memory
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.server.audit.attempt import Attempt, Order, attempt
from prunella.server.audit.canary import make_canary
from prunella.server.audit.job import DESCENTS, JOB, PUBLIC, REBUILT, RESULT, STOP, TRUTH, VIEW
from prunella.server.audit.shadow import read_public, shadow_beside
from prunella.server.audit.view import standing, unread

POLL = 0.1
PR_SET_PDEATHSIG = 1  # prctl(2)
NICE = 10  # of Unix's 19: the rounds come first
FAR_PAST = 1.5  # times the seconds an attack may take, and ``MARGIN`` beyond: for the view and the scores of any attack
MARGIN = 30.0  # seconds


@dataclass(frozen=True)
class JobResult:
    """The result of a job. ``error`` is for the log; ``reason``, of a failure, of an attack that was cut short or of a
    doubt, for everybody: it names its kind, never a value. ``explained`` says whether the images explain the update;
    None where the attack has no objective that would say."""

    objective: float | None = None
    iterations: int = 0
    seconds: float = 0.0
    scores: dict[str, Any] | None = None
    assignment: list[tuple[int, int]] | None = None
    error: str | None = None
    reason: str | None = None
    explained: bool | None = None
    found_by: str | None = None


def _rebuild(folder: Path) -> tuple[Attempt, str | None]:
    """What the attack found, and why finding nothing would prove nothing, if something is known that would: it was cut
    short, or of what left beside the update."""
    job = json.loads((folder / JOB).read_text())
    task = recorded_task(folder / VIEW)  # written by our own server, which has built this model already
    view, _, about = load_trace(folder / VIEW, task)
    settings: Any = parse_section(job["settings"], job["attack"], find_attack(job["attack"]).settings)
    view = view.on(pick_device(job["device"]))  # in this fork only, which is what CUDA's driver bears
    store = ResumeStore(folder / DESCENTS, deadline=time.monotonic() + job["seconds"])
    order = Order(job["attack"], settings, stream(job["seed"], purpose="attack"))
    found = attempt(view, task, order, store, lambda: shadow_beside(folder / VIEW, view, task, about))
    shutil.rmtree(folder / DESCENTS, ignore_errors=True)
    limit = min(job["seconds"], getattr(settings, "seconds", math.inf))  # an attack may have a limit of its own
    doubt = standing(job.get("job", {}).get("doubt", "") or unread(view, task), found.explained, found.rebuilt.found_by)
    return found, f"cut short: {limit:g} s are too few for all of it" if found.cut else doubt or None


def _score(folder: Path, rebuilt: Reconstruction) -> tuple[dict[str, Any] | None, list[tuple[int, int]] | None]:
    if not (folder / TRUTH).exists():
        return None, None
    truth, _ = read_tree(folder / TRUTH)
    others = folder.parent / PUBLIC  # no canaries among them, and the attack has learnt from none of the canaries
    gallery = read_public(others)[0] if others.exists() else None
    leakage = score(rebuilt, PrivateBatch(truth["x"], truth["y"]), gallery=gallery)
    return leakage.to_dict(), list(leakage.assignment)


def work(folder: Path) -> JobResult:
    """Attack one job and write its answer."""
    begin = time.perf_counter()
    try:
        make_canary(folder)
        attacked, reason = _rebuild(folder)
        rebuilt = attacked.rebuilt
        tensors = {"x": rebuilt.x} | ({"y": rebuilt.y} if rebuilt.y is not None else {})
        write_tree(folder / REBUILT, tensors)
        scores, order = _score(folder, rebuilt)
        found = rebuilt.fit, rebuilt.iterations, time.perf_counter() - begin, scores, order
        result = JobResult(*found, reason=reason, explained=attacked.explained, found_by=rebuilt.found_by)
    except Exception as error:  # noqa: BLE001 - one bad job must not end the worker; it is counted by the server
        if not isinstance(error, PrunellaError):
            traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
        # Our own errors name shapes and kinds; the text of another may quote a pixel.
        told = why if isinstance(error, PrunellaError) else f"{type(error).__name__}: the server's log has the details"
        result = failed(why, told, time.perf_counter() - begin)
    write_json(folder / RESULT, asdict(result))
    return result


def attack_in_a_fork(folder: Path, worker: int) -> None:
    """``work`` in a separate process, which dies with its worker; the next worker then takes up the job.

    The same as ``deploy.runtime.processes.die_with_parent``, which is not part of an app's bundle.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == worker:
        work(folder)


def failed(why: str, reason: str, seconds: float = 0.0) -> JobResult:
    return JobResult(seconds=seconds, error=why, reason=reason)


def open_jobs(queue: Path) -> list[Path]:
    """Jobs without an answer in the order they were filed, so that a round's control comes first."""
    jobs = sorted(queue.glob(f"*/{JOB}"), key=lambda job: (job.stat().st_mtime_ns, job))
    return [job.parent for job in jobs if not (job.parent / RESULT).exists()]


def patience(folder: Path) -> float:
    """Seconds after which a job's process is killed."""
    try:
        return MARGIN + FAR_PAST * float(json.loads((folder / JOB).read_text())["seconds"])
    except (ValueError, KeyError, TypeError):
        return MARGIN  # the job cannot be read, which its process is about to say


class Jobs:
    """The jobs under way, each in a fork of this process."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running: dict[Path, ForkProcess] = {}
        self.ends: dict[Path, float] = {}  # when a job's process is killed, of ``time.monotonic``

    def start(self, folders: list[Path]) -> None:
        """Start as many of ``folders`` as the limit allows."""
        for folder in [f for f in folders if f not in self.running][: self.limit - len(self.running)]:
            job = (folder, os.getpid())
            process = multiprocessing.get_context("fork").Process(target=attack_in_a_fork, args=job, daemon=True)
            process.start()
            self.running[folder], self.ends[folder] = process, time.monotonic() + patience(folder)

    def reap(self) -> None:
        """Drop the processes that have ended, and kill those far past their time. A job whose process died is answered,
        so that it is not tried again."""
        for folder, process in list(self.running.items()):
            late = time.monotonic() >= self.ends[folder]
            if process.exitcode is None and not late:
                continue
            process.kill()
            process.join()
            del self.running[folder]
            if not (folder / RESULT).exists():
                why = f"the attack's process ended with code {process.exitcode}"
                if late:
                    why = f"the attack was killed after {patience(folder):.0f} s: it does not end when its time is over"
                    why += ", or other work kept the processor"
                write_json(folder / RESULT, asdict(failed(why, why)))

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()


class UnderWay(Protocol):
    """The jobs that are being attacked: here in ``Jobs``, on other machines in ``cluster.ClusterJobs``."""

    @property
    def running(self) -> Sized: ...
    def start(self, folders: list[Path]) -> None: ...
    def reap(self) -> None: ...
    def stop(self) -> None: ...


def serve(queue: Path, parent: int, jobs: UnderWay) -> None:
    """Work until told to stop or until the parent is gone. No job outlives its worker."""
    told = threading.Event()  # obeyed later, since an exception raised by SIGTERM could be lost inside an import
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        while os.getppid() == parent and not told.is_set():
            jobs.reap()
            jobs.start(open_jobs(queue))
            if not jobs.running and (queue / STOP).exists():
                return
            time.sleep(POLL)
    finally:
        jobs.stop()
        signal.signal(signal.SIGTERM, before)


def preload() -> None:
    """Import what scoring needs before the first job asks for it, while clients still train."""
    for module in ("scipy.optimize", "scipy.stats"):
        importlib.import_module(module)


def main(queue: str, parent: str, limit: str) -> None:
    os.nice(NICE)
    torch.set_num_threads(1)
    keep_freed_memory()  # of the forks' descents; a fork gives all of it back when it ends
    preload()
    serve(Path(queue), int(parent), Jobs(int(limit)))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:  # a terminal's Ctrl-C reaches every process; whoever started this one says so
        sys.exit(130)
