"""The audit worker: a process of its own that attacks recorded views, one after the other.

``python -m server.audit_worker DIRECTORY PID`` serves a folder of jobs. A job is a folder with ``view.safetensors`` (a
trace) and ``job.json`` (attack, its settings, a seed); for a public canary also ``truth.safetensors``. The answer is
``rebuilt.safetensors`` and ``result.json``. Files are the queue: a restart loses nothing, a job that crashes the attack
becomes an answer with an error, and training never waits. The worker ends when the folder has a file ``stop`` and no
open job, or when its parent, process PID, is gone.
"""

import importlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attacks import ATTACKS
from attacks.leakage import score
from attacks.trace import load_trace
from core.config import parse_section
from core.files import read_tree, write_json, write_tree
from core.randomness import stream
from core.types import PrivateBatch, Reconstruction

POLL = 0.2
JOB, STARTED, RESULT, STOP = "job.json", "started", "result.json", "stop"
VIEW, TRUTH, REBUILT = "view.safetensors", "truth.safetensors", "rebuilt.safetensors"


@dataclass(frozen=True)
class Result:
    """What came of a job. ``error`` names the kind of failure, never a value."""

    objective: float | None
    iterations: int
    seconds: float
    scores: dict[str, Any] | None
    assignment: list[tuple[int, int]] | None
    error: str | None


def _rebuild(folder: Path) -> Reconstruction:
    job = json.loads((folder / JOB).read_text())
    view, task, _ = load_trace(folder / VIEW)
    attack = ATTACKS[job["attack"]]
    settings: Any = parse_section(job["settings"], job["attack"], attack.settings)
    return attack.reconstruct(view, task, settings, stream(job["seed"], purpose="attack"))


def _score(folder: Path, rebuilt: Reconstruction) -> tuple[dict[str, Any] | None, list[tuple[int, int]] | None]:
    if not (folder / TRUTH).exists():
        return None, None
    truth, _ = read_tree(folder / TRUTH)
    leakage = score(rebuilt, PrivateBatch(truth["x"], truth["y"]))
    return leakage.to_dict(), list(leakage.assignment)


def work(folder: Path) -> Result:
    """Attack one job and write its answer. A job that ended a worker (out of memory, say) is not tried again."""
    begin = time.perf_counter()
    try:
        (folder / STARTED).touch(exist_ok=False)
        rebuilt = _rebuild(folder)
        tensors = {"x": rebuilt.x} | ({"y": rebuilt.y} if rebuilt.y is not None else {})
        write_tree(folder / REBUILT, tensors)
        scores, order = _score(folder, rebuilt)
        result = Result(rebuilt.objective, rebuilt.iterations, time.perf_counter() - begin, scores, order, None)
    except Exception as error:  # noqa: BLE001 - one bad job must not end the worker; it is counted by the server
        result = Result(None, 0, time.perf_counter() - begin, None, None, f"{type(error).__name__}: {error}")
    write_json(folder / RESULT, asdict(result))
    return result


def open_jobs(queue: Path) -> list[Path]:
    """Jobs without an answer in the order they were filed, so that a round's control comes first."""
    jobs = sorted(queue.glob(f"*/{JOB}"), key=lambda job: (job.stat().st_mtime_ns, job))
    return [job.parent for job in jobs if not (job.parent / RESULT).exists()]


def serve(queue: Path, parent: int) -> None:
    """Work until told to stop or orphaned."""
    while os.getppid() == parent:
        jobs = open_jobs(queue)
        if jobs:
            work(jobs[0])
        elif (queue / STOP).exists():
            return
        else:
            time.sleep(POLL)


def preload() -> None:
    """Import what scoring needs before the first job asks for it, while clients still train."""
    for module in ("sklearn.metrics", "scipy.optimize", "torchmetrics.functional.image"):
        importlib.import_module(module)


if __name__ == "__main__":
    torch.set_num_threads(1)
    preload()
    serve(Path(sys.argv[1]), int(sys.argv[2]))
