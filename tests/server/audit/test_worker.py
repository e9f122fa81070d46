import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from prunella.attacks import ATTACKS, Attack
from prunella.attacks.score.control import undefended_view
from prunella.attacks.sgi import Sgi
from prunella.attacks.trace import load_trace, save_trace
from prunella.core.files import read_tree, write_json, write_tree
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.server.audit.canary import load_pool
from prunella.server.audit.job import DESCENTS, JOB, REBUILT, RESULT, STOP, TRUTH, VIEW
from prunella.server.audit.shadow import write_public
from prunella.server.audit.worker import Jobs, open_jobs, preload, serve, work
from prunella.tasks.data import load_test
from prunella.tasks.task import Task, initial

TASK = Task("cnn", (1, 8, 8), 10)
ROOT = Path(__file__).parents[3]


def job(
    queue: Path, name: str, with_truth: bool = True, attack: str = "sgi", seconds: float = 600.0, **settings: float
) -> Path:
    test = load_test("digits", None)
    assert test is not None
    batch = PrivateBatch(test.x[:1], test.y[:1])
    folder = queue / name
    save_trace(folder / VIEW, undefended_view(TASK, *initial(TASK, 0), batch), TASK, {})
    if with_truth:
        write_tree(folder / TRUTH, {"x": batch.x, "y": batch.y})
    write_json(
        folder / JOB,
        {"attack": attack, "settings": {f"{attack}.{k}": v for k, v in settings.items()}, "seed": 1, "device": "cpu"}
        | {"seconds": seconds},
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


def test_an_attack_that_descends_ends_in_time_with_the_best_it_has(tmp_path: Path) -> None:
    endless = {"iterations": 10**9, "patience": 10**9, "tolerance": 0.0}
    result = work(job(tmp_path, "a", seconds=0.5, **endless))
    assert result.error is None and result.reason == "cut short: 0.5 s are too few for all of it"
    assert result.objective is not None and tuple(read_tree(tmp_path / "a" / REBUILT)[0]["x"].shape) == (1, 1, 8, 8)
    own = work(job(tmp_path, "d", attack="portfolio", **{"seconds": 1e-3}))
    assert own.error is None and own.reason == "cut short: 0.001 s are too few for all of it"
    whole = work(job(tmp_path, "b"))
    assert whole.reason is None and whole.explained is True
    assert work(job(tmp_path, "c", iterations=1, **{"labels-tried": 1})).explained is False


def test_an_attack_that_does_not_end_in_time_is_killed_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.server.audit.worker.MARGIN", 0.0)
    endless = job(tmp_path, "a", attack="model-inversion", seconds=0.2, iterations=10**9)
    jobs = Jobs(1)
    jobs.start([endless])
    until(lambda: jobs.reap() or not jobs.running)
    result = json.loads((endless / RESULT).read_text())
    assert "killed" in result["error"] and result["reason"] == result["error"]


def test_the_text_of_a_foreign_error_stays_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("pixel 0.123 of the image")

    monkeypatch.setattr("prunella.server.audit.worker.score", fail)
    result = work(job(tmp_path, "a", iterations=2))
    assert "0.123" in str(result.error) and result.reason == "ValueError: the server's log has the details"


@dataclass(frozen=True)
class Learning(Sgi):
    iterations: int = 2


def learn(view, task, settings, generator, shadow=None):  # noqa: ANN001, ANN201
    """An attack that answers with what it is told of the shadow."""
    assert shadow is None or shadow.send(shadow.public.take(torch.arange(1)), 0).steps == 1
    return Reconstruction(torch.full((1, 1, 8, 8), 0.0 if shadow is None else 1.0), None, 1.0, 1)


LEARNING = Attack(Learning, learn, "learns")


def test_an_attack_that_takes_a_shadow_gets_the_run_s(tmp_path: Path) -> None:
    assert LEARNING.takes("shadow") and not ATTACKS["sgi"].takes("shadow")
    folder = job(tmp_path, "a", attack=f"{__name__}:LEARNING")
    view, _, _ = load_trace(folder / VIEW)
    save_trace(folder / VIEW, view, TASK, {"round": 1, "kind": "client"})
    assert work(folder).error is None and not read_tree(folder / REBUILT)[0]["x"].any()
    canaries, public = load_pool(TASK, load_test("digits", None), 0)
    write_public(tmp_path, public, canaries, {"strategy": "fedavg", "defenses": "none"})
    assert work(folder).error is None and bool(read_tree(folder / REBUILT)[0]["x"].all())


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
    serve(tmp_path, os.getppid(), Jobs(2))
    assert open_jobs(tmp_path) == []


def test_a_killed_worker_takes_its_attack_along_and_the_next_one_does_the_job(tmp_path: Path) -> None:
    endless = {"iterations": 10**9, "patience": 10**9, "tolerance": 0.0}
    folder = job(tmp_path, "a", **endless)
    process = multiprocessing.get_context("fork").Process(target=serve, args=(tmp_path, os.getpid(), Jobs(1)))
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
    job(tmp_path, "a", seconds=0.5, **endless)  # the same attack, which may have been saved, in less time
    (tmp_path / STOP).touch()
    serve(tmp_path, os.getppid(), Jobs(1))
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
