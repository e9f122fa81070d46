import subprocess
import sys
from pathlib import Path

import pytest

from prunella.server.audit.process import MAX_STARTS, WorkerProcess


def test_a_worker_that_does_not_end_is_killed(tmp_path: Path) -> None:
    did: list[str] = []

    class Stubborn:
        def terminate(self) -> None:
            did.append("terminate")

        def kill(self) -> None:
            did.append("kill")

        def wait(self, timeout: float | None = None) -> None:
            if "kill" not in did:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            did.append("wait")

    worker = WorkerProcess(tmp_path, 1)
    worker._process = Stubborn()  # type: ignore[assignment]
    worker.close()
    assert did == ["terminate", "kill", "wait"]


def test_a_worker_that_cannot_start_is_given_up_unless_an_answer_came_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    worker = WorkerProcess(tmp_path, 1)

    def starts() -> int:
        count = 0
        while worker.ensure():
            assert worker._process is not None
            worker._process.wait(10)
            count += 1
        return count

    assert starts() == MAX_STARTS
    worker.answered()
    assert starts() == MAX_STARTS


@pytest.mark.parametrize(
    ("cluster", "expected"), [("", ["worker", "{}", "1"]), ("ray://[::1]:9", ["cluster", "{}", "1", "ray://[::1]:9"])]
)
def test_jobs_are_attacked_here_or_handed_to_the_cluster_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, expected: list[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    assert WorkerProcess(tmp_path, 1, cluster).ensure()
    module, *arguments = started[0][2:]
    arguments[1] = "{}"  # the number of this process
    assert [module, *arguments] == [f"prunella.server.audit.{expected[0]}", str(tmp_path), *expected[1:]]
