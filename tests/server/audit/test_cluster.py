"""Jobs on a Ray cluster: with a stand-in for Ray where that is enough, else on a real one of one machine."""

import importlib.machinery
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prunella.core.errors import ConfigError
from prunella.server.audit import cluster
from prunella.server.audit.cluster import ClusterJobs, travelling, with_gpu
from prunella.server.audit.job import JOB, PUBLIC, REBUILT, RESULT
from prunella.server.audit.process import WorkerProcess
from prunella.server.audit.remote import release
from prunella.server.audit.worker import open_jobs, preload, work
from tests.ray_head import RayHead, ray_head
from tests.server.audit.test_queue import go, kinds
from tests.server.audit.test_worker import job

ADDRESS = "ray://127.0.0.1:9"
LONG = {"iterations": 1200, "patience": 1200, "tolerance": 0.0, "labels-tried": 1}
TOLD = ("outcome", "scores", "objective", "ok", "reason", "found_by")


class Stuck(Exception):
    """A task that Ray gave up."""


class StandIn(types.ModuleType):
    """Ray as far as ``ClusterJobs`` uses it; a task is what it will return, or the error it will raise."""

    def __init__(self, answer: Any = None, refusal: Exception | None = None, gpus: float = 0.0) -> None:
        super().__init__("ray")
        self.__spec__ = importlib.machinery.ModuleSpec("ray", None)
        self.answer, self.refusal, self.gpus = answer, refusal, gpus
        self.asked: list[dict[str, Any]] = []
        self.away: list[Exception] = []
        self.exceptions = types.SimpleNamespace(RayError=Stuck)

    def init(self, address: str, **_: Any) -> None:
        if self.refusal is not None:
            raise self.refusal

    def remote(self, **options: Any) -> Any:
        self.asked.append(options)
        return lambda function: types.SimpleNamespace(remote=lambda *arguments: len(self.asked))

    def get(self, task: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def put(self, content: bytes) -> bytes:
        if self.away:
            raise self.away.pop()
        return content

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": self.gpus} if self.gpus else {}

    def wait(self, tasks: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return tasks, []

    def shutdown(self) -> None:
        self.asked.clear()


def connected(monkeypatch: pytest.MonkeyPatch, ray: StandIn) -> ClusterJobs:
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(cluster, "require_answer", lambda address: None)
    return ClusterJobs(ADDRESS, 2)


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / RESULT).read_text())
    return found


def test_a_cluster_that_does_not_answer_is_waited_for_and_then_fails_its_jobs_and_the_next_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(cluster.time, "monotonic", lambda: clock[0])
    jobs, folders = ClusterJobs(ADDRESS, 1), [job(tmp_path, "a"), job(tmp_path, "b")]
    for clock[0] in (1000.0, 1000.5, 1000.0 + cluster.CONNECTING - 1):
        jobs.start(folders)
        assert open_jobs(tmp_path) == folders
    clock[0] = 1000.0 + cluster.CONNECTING
    jobs.start(folders)
    for folder in folders:
        assert result(folder)["scores"] is None and result(folder)["error"] is not None
        assert "cannot be reached (ConnectionError): the server's log" in result(folder)["reason"]
    late = job(tmp_path, "c")
    clock[0] += 5
    jobs.start([late])
    assert open_jobs(tmp_path) == [late]


def test_a_ray_of_another_release_or_without_our_certificate_fails_its_jobs_at_once_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = connected(monkeypatch, StandIn(refusal=RuntimeError("Version mismatch: gpu.example has\n Ray: 1.0")))
    folder = job(tmp_path, "a")
    jobs.start([folder])
    reason = "the Ray cluster of audit-cluster cannot be used (RuntimeError): the server's log says more"
    assert result(folder)["reason"] == reason and not jobs.running, "a report names no host"
    assert "Ray: 1.0" in result(folder)["error"]


def test_without_tls_nothing_is_sent_to_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    ray = StandIn()
    connected(monkeypatch, ray)
    jobs, folder = ClusterJobs("ray://gpu.example:10001", 1), job(tmp_path, "a")
    jobs.start([folder])
    assert "RAY_USE_TLS=1" in result(folder)["reason"] and not ray.asked


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Stuck("with a traceback"), "the Ray task ended without an answer: Stuck"),
        ("a machine has another release", "a machine has another release"),
        ({}, "the answer of the Ray cluster cannot be read"),
    ],
)
def test_what_comes_back_and_is_no_answer_is_a_failed_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: object, reason: str
) -> None:
    jobs, folder = connected(monkeypatch, StandIn(answer)), job(tmp_path, "a")
    jobs.start([folder])
    jobs.reap()
    assert result(folder)["reason"] == reason and result(folder)["scores"] is None and not jobs.running


def test_no_more_jobs_than_allowed_and_each_asks_for_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = StandIn(gpus=1.0)
    jobs, folders = connected(monkeypatch, ray), [job(tmp_path, name) for name in "abc"]
    auto = json.loads((folders[1] / JOB).read_text()) | {"device": "auto"}
    (folders[1] / JOB).write_text(json.dumps(auto))
    jobs.start(folders)
    jobs.start(folders)
    assert list(jobs.running) == folders[:2]
    assert [(each["num_gpus"], each["max_retries"]) for each in ray.asked] == [(0, 3), (1, 3)]


def test_a_job_that_cannot_be_read_is_answered_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, folders = connected(monkeypatch, StandIn()), [job(tmp_path, "a"), job(tmp_path, "b")]
    (folders[0] / JOB).write_text("{")
    jobs.start(folders)
    assert "cannot be read" in result(folders[0])["reason"] and list(jobs.running) == folders[1:]


def test_without_a_gpu_there_the_job_for_one_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, folders = connected(monkeypatch, StandIn()), [job(tmp_path, "a"), job(tmp_path, "b")]
    (folders[0] / JOB).write_text(json.dumps(json.loads((folders[0] / JOB).read_text()) | {"device": "cuda"}))
    jobs.start(folders)
    assert "has a GPU" in result(folders[0])["reason"] and list(jobs.running) == folders[1:]


def test_a_connection_that_breaks_while_it_is_made_is_made_again_with_the_public_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PAUSE", 0.0)
    ray, folder = StandIn(), job(tmp_path, "a")
    (tmp_path / PUBLIC).write_bytes(b"public")
    jobs = connected(monkeypatch, ray)
    ray.away.append(ConnectionError("gone"))
    jobs.start([folder])
    assert not jobs.running and open_jobs(tmp_path) == [folder]
    jobs.start([folder])
    assert list(jobs.running) == [folder] and jobs._public == b"public"


def test_a_cluster_that_is_lost_while_jobs_are_sent_is_no_fault_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, folder = StandIn(), job(tmp_path, "a")
    jobs = connected(monkeypatch, ray)

    def lost() -> dict[str, float]:
        raise ConnectionError("gone")

    monkeypatch.setattr(ray, "cluster_resources", lost)
    with pytest.raises(ConnectionError):
        jobs.start([folder])
    assert open_jobs(tmp_path) == [folder]


def test_which_jobs_ask_for_a_gpu() -> None:
    asks = [with_gpu(device, gpus) for device, gpus in (("cpu", 1), ("auto", 0), ("auto", 1), ("cuda", 2))]
    assert asks == [False, False, True, True]
    with pytest.raises(ConfigError, match="no machine of the Ray cluster has a GPU"):
        with_gpu("cuda:0", 0)


def test_the_function_travels_as_code_and_says_where_there_is_no_prunella() -> None:
    """It is read by a Python that cannot import Prunella."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    code = (
        "import sys; sys.modules['prunella'] = None; from ray import cloudpickle;"
        "print(cloudpickle.loads(bytes.fromhex(sys.argv[1]))({}, None, {}))"
    )
    carried = cloudpickle.dumps(travelling()).hex()
    done = subprocess.run([sys.executable, "-c", code, carried], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a machine of the Ray cluster lacks") and done.stdout.count("\n") == 1


# on a real Ray --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    pytest.importorskip("ray")
    preload()
    with ray_head() as head:
        yield head


@pytest.fixture
def quick_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends the tasks of a driver that has gone after this many seconds instead of 30."""
    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "3")


def patiently(condition: Callable[[], object]) -> None:
    """Wait up to ten minutes, since a busy machine starts processes slowly."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("gave up waiting")


def wait_for(worker: WorkerProcess, folder: Path) -> dict[str, Any]:
    patiently(lambda: (folder / RESULT).exists() or not worker.ensure())
    return result(folder)


@pytest.mark.federation
@pytest.mark.timeout(1200)
def test_verdicts_of_a_cluster_are_those_of_this_machine_and_a_resumed_run_gets_what_was_open(
    head: RayHead, tmp_path: Path
) -> None:
    here, _ = go(tmp_path / "here", "scores")
    there, _ = go(tmp_path / "there", "scores", audit_cluster=head.address)
    expected = {kind: [audit[name] for name in TOLD] for kind, audit in kinds(here).items()}
    assert {kind: [audit[name] for name in TOLD] for kind, audit in kinds(there).items()} == expected
    assert expected["control"][0] == "scored" and expected["client"][0] == "scored"
    one, two = (tmp_path / name / "run" / "traces" for name in ("here", "there"))
    files = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
    assert files == sorted(path.relative_to(two) for path in two.rglob("*.safetensors"))
    assert all((one / file).read_bytes() == (two / file).read_bytes() for file in files if file.name == REBUILT)

    (tmp_path / "there" / "run" / "audits.jsonl").write_text("")
    (two / "round-000001-client-0" / RESULT).unlink()
    again, _ = go(tmp_path / "there", "scores", audit_cluster=head.address, resume=True)
    assert {kind: [audit[name] for name in TOLD] for kind, audit in kinds(again).items()} == expected


@pytest.mark.federation
@pytest.mark.timeout(1200)
def test_a_task_killed_in_mid_attack_and_then_the_server_s_own_process_cost_no_audit(
    head: RayHead, tmp_path: Path, quick_to_leave: None
) -> None:
    first, second, same = (job(tmp_path / where, "a", **LONG) for where in ("one", "two", "here"))
    work(same)
    worker = WorkerProcess(first.parent, 1, head.address)
    try:
        patiently(lambda: worker.ensure() and head.attacking())
        (attacker,) = head.attacking()
        attacker.kill()
        assert wait_for(worker, first)["error"] is None and not attacker.is_running()
    finally:
        worker.close()
    assert not list(head.scratch.glob("prunella-audit-*"))  # nor what the killed process left

    worker = WorkerProcess(second.parent, 1, head.address)
    try:
        patiently(lambda: worker.ensure() and head.attacking())
        assert worker._process is not None
        worker._process.kill()
        assert wait_for(worker, second)["error"] is None
    finally:
        worker.close()
    for folder in (first, second):
        assert (folder / REBUILT).read_bytes() == (same / REBUILT).read_bytes()
        assert result(folder)["scores"] == result(same)["scores"]


@pytest.mark.federation
@pytest.mark.timeout(1200)
def test_a_cluster_that_is_gone_in_mid_attack_is_a_failed_audit_with_a_reason(
    tmp_path: Path, quick_to_leave: None
) -> None:
    pytest.importorskip("ray")
    folder = job(tmp_path, "a", **LONG)
    with ray_head() as head:
        worker = WorkerProcess(tmp_path, 1, head.address)
        try:
            patiently(lambda: worker.ensure() and head.attacking())
            head.end()
            found = wait_for(worker, folder)
        finally:
            worker.close()
    assert found["scores"] is None and not (folder / REBUILT).exists()
    assert found["reason"].startswith("the Ray cluster of audit-cluster cannot be reached")


def test_the_release_is_told_by_its_code() -> None:
    assert release()["Python"].count(".") == 2 and len(release()["Prunella's code"]) == 12 and os.sep not in release()
