import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from prunella.attacks.score.control import undefended_view
from prunella.attacks.trace import save_trace
from prunella.core.files import read_tree, write_json, write_tree
from prunella.core.types import PrivateBatch
from prunella.server.audit.job import DESCENTS, JOB, REBUILT, RESULT, STOP, TRUTH, VIEW
from prunella.server.audit.worker import Jobs, open_jobs, preload, serve, work
from prunella.tasks.data import load_test
from prunella.tasks.task import Task, initial

TASK = Task("cnn", (1, 8, 8), 10)
ROOT = Path(__file__).parents[3]


def job(queue: Path, name: str, with_truth: bool = True, attack: str = "sgi", **settings: float) -> Path:
    test = load_test("digits", None)
    assert test is not None
    batch = PrivateBatch(test.x[:1], test.y[:1])
    folder = queue / name
    save_trace(folder / VIEW, undefended_view(TASK, *initial(TASK, 0), batch), TASK, {})
    if with_truth:
        write_tree(folder / TRUTH, {"x": batch.x, "y": batch.y})
    write_json(
        folder / JOB,
        {"attack": attack, "settings": {f"{attack}.{k}": v for k, v in settings.items()}, "seed": 1, "device": "cpu"},
    )
    return folder


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """As in the real worker: every fork would import it anew."""
    preload()


def until(condition: Callable[[], object]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("gave up waiting")


def test_a_canary_is_rebuilt_and_scored(tmp_path: Path) -> None:
    result = work(job(tmp_path, "a"))
    assert result.error is None and result.scores is not None
    assert result.scores["psnr"]["mean"] > 20 and result.scores["label_accuracy"] == 1.0
    assert tuple(read_tree(tmp_path / "a" / REBUILT)[0]["x"].shape) == (1, 1, 8, 8)


def test_without_truth_there_is_a_reconstruction_and_no_score(tmp_path: Path) -> None:
    result = work(job(tmp_path, "a", with_truth=False, iterations=3))
    assert result.error is None and result.scores is None and result.assignment is None
    assert result.objective is not None


def test_settings_of_the_run_reach_the_attack(tmp_path: Path) -> None:
    assert work(job(tmp_path, "a", with_truth=False, iterations=2)).iterations == 2


@pytest.mark.parametrize("damage", [VIEW, JOB])
def test_a_job_that_fails_is_an_answer_not_a_crash(tmp_path: Path, damage: str) -> None:
    folder = job(tmp_path, "a")
    (folder / damage).write_bytes(b"{")
    assert work(folder).error is not None
    assert json.loads((folder / RESULT).read_text())["scores"] is None
    assert open_jobs(tmp_path) == []


def test_a_job_whose_process_is_killed_is_answered_and_costs_no_other_job(tmp_path: Path) -> None:
    doomed = job(tmp_path, "a", iterations=10**9, patience=10**9, tolerance=0.0)
    jobs = Jobs(2)
    jobs.start([doomed])
    other = job(tmp_path, "b", iterations=2)
    jobs.start(open_jobs(tmp_path))
    jobs.running[doomed].kill()
    while jobs.running:
        jobs.reap()
    assert "ended with code -9" in json.loads((doomed / RESULT).read_text())["error"]
    assert json.loads((other / RESULT).read_text())["error"] is None


def test_a_worker_that_ends_in_mid_attack_leaves_it_where_it_is_and_the_next_one_goes_on(tmp_path: Path) -> None:
    settings = {"iterations": 400, "patience": 400, "tolerance": 0.0, "labels-tried": 1}
    whole, stopped = job(tmp_path / "one", "a", **settings), job(tmp_path / "two", "a", **settings)
    assert work(whole).error is None
    jobs = Jobs(1)
    jobs.start([stopped])
    while not list(stopped.glob(f"{DESCENTS}/*.safetensors")):
        assert jobs.running[stopped].exitcode is None
        time.sleep(0.01)
    jobs.stop()
    jobs.running[stopped].join()
    assert open_jobs(tmp_path / "two") == [stopped] and not (stopped / REBUILT).exists()
    kept = read_tree(next(stopped.glob(f"{DESCENTS}/*.safetensors")))[1]
    assert json.loads(kept["descent"])["iteration"] >= 50
    assert work(stopped).error is None and not (stopped / DESCENTS).exists()
    one, two = (read_tree(folder / REBUILT)[0] for folder in (whole, stopped))
    assert torch.equal(one["x"], two["x"]) and torch.equal(one["y"], two["y"])


def test_no_more_jobs_run_at_once_than_allowed(tmp_path: Path) -> None:
    for name in "abc":
        job(tmp_path, name, iterations=10**9, patience=10**9, tolerance=0.0)
    jobs = Jobs(2)
    try:
        jobs.start(open_jobs(tmp_path))
        jobs.start(open_jobs(tmp_path))
        assert [folder.name for folder in jobs.running] == ["a", "b"]
    finally:
        jobs.stop()


def test_open_jobs_are_those_without_an_answer_in_order(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        job(tmp_path, name)
    (tmp_path / "a" / RESULT).write_text("{}")
    assert [folder.name for folder in open_jobs(tmp_path)] == ["c", "b"]


def test_it_works_all_jobs_and_stops_when_told(tmp_path: Path) -> None:
    job(tmp_path, "a", iterations=2)
    job(tmp_path, "b", iterations=2)
    (tmp_path / STOP).touch()
    serve(tmp_path, os.getppid(), 2)
    assert open_jobs(tmp_path) == []


def test_a_killed_worker_takes_its_attack_along_and_the_next_one_does_the_job(tmp_path: Path) -> None:
    folder = job(tmp_path, "a", iterations=10**9, patience=10**9, tolerance=0.0)
    process = multiprocessing.get_context("fork").Process(target=serve, args=(tmp_path, os.getpid(), 1))
    process.start()
    worker = psutil.Process(process.pid)
    try:
        until(worker.children)
        (attack,) = worker.children()
    finally:
        process.kill()
        process.join()
    try:
        until(lambda: not attack.is_running() or attack.status() == psutil.STATUS_ZOMBIE)
    finally:
        with suppress(psutil.NoSuchProcess):
            attack.kill()
    assert open_jobs(tmp_path) == [folder]
    job(tmp_path, "a", iterations=2)  # the same job, shorter
    (tmp_path / STOP).touch()
    serve(tmp_path, os.getppid(), 1)
    assert json.loads((folder / RESULT).read_text())["error"] is None


def test_the_process_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys;"
        "p = subprocess.Popen([sys.executable, '-m', 'prunella.server.audit.worker',"
        " sys.argv[1], str(os.getpid()), '1']);"
        "print(p.pid, flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    worker = int(done.stdout)
    until(lambda: not Path(f"/proc/{worker}").exists())
