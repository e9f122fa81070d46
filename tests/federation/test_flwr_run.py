"""``flwr run .`` as a Flower user types it: Flower's own command and simulation engine, nothing of our launcher."""

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from prunella.deploy.ports import free_ports
from prunella.deploy.runtime.processes import environment
from prunella.server.store.read import read_audits, read_metrics, read_run
from tests.federation.running import ROOT, end, wait_for

pytestmark = [pytest.mark.federation, pytest.mark.timeout(960)]
QUICK = "audit-every=2 audit-seconds=60.0 attack='sgi' sgi.iterations=20"


@dataclass(frozen=True)
class Flower:
    """A FLWR_HOME of its own, with the local SuperLink that ``flwr run`` would start if it were not there."""

    home: Path
    env: dict[str, str]

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "flwr"), *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=900)

    def asked(self, *arguments: str) -> dict[str, Any]:
        return dict(json.loads(self.flwr(*arguments, "--format", "json").stdout))

    def status(self, run: str) -> str:
        return str(self.asked("list", "--run-id", run)["runs"][0]["status"])

    def folder(self, run: str) -> Path:
        return self.home / "prunella" / "runs" / run


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    home, [port] = tmp_path_factory.mktemp("flower"), free_ports(1)
    env = {**environment(), "FLWR_HOME": str(home), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port)}
    # Flower gives its local SuperLink 15 s to start, which a busy machine exceeds: it finds this one, on the same port.
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "superlink.log").open("w") as log:
        link = subprocess.Popen(
            [*command, "--database", str(home / "state.db")], cwd=home, env=env, stdout=log, stderr=log, text=True
        )
    try:
        wait_for(lambda: answers(port), "Flower's local SuperLink")
        yield Flower(home, env | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"})
    finally:
        end(link)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False


def test_it_ends_with_a_report_whose_path_the_log_has(flower: Flower) -> None:
    done = flower.flwr("run", ".", "--stream", "--run-config", f"rounds=2 defenses='dgp' {QUICK}")
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = [each["run-id"] for each in flower.asked("list")["runs"]]
    folder = flower.folder(run)
    assert "round 2/2: accuracy" in done.stdout and f"report: {folder}/report.html" in done.stdout, done.stdout
    assert flower.status(run) == "finished:completed" and read_run(folder)["status"] == "completed"
    assert read_run(folder)["settings"]["defenses"] == "dgp" and read_run(folder)["id"] == run
    assert {audit["kind"] for audit in read_audits(folder)} >= {"control", "single"}, (
        "clients deny, controls are public"
    )
    assert f"report: {folder}/report.html" in flower.flwr("log", run, "--show").stdout
    private = [folder, folder / "report.html", *(flower.home / "prunella" / str(client) for client in (0, 1))]
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in private)
    for client in (0, 1):
        assert list((flower.home / "prunella" / str(client) / "runs" / run).iterdir()), "its memory of this run alone"


def test_an_unknown_setting_and_a_wrong_value_are_refused(flower: Flower) -> None:
    unknown = flower.flwr("run", ".", "--run-config", "round=2")
    assert unknown.returncode == 1 and "Invalid run configuration" in unknown.stdout + unknown.stderr
    wrong = flower.flwr("run", ".", "--stream", "--run-config", "strategy='prunfl'")
    assert "did you mean 'prunefl'" in wrong.stdout
    last = max(flower.asked("list")["runs"], key=lambda run: run["pending-at"])
    assert last["status"] == "finished:failed"


def test_flwr_stop_ends_it_and_the_run_says_so(flower: Flower) -> None:
    run = str(flower.asked("run", ".", "--run-config", "rounds=5000 audit-every=0")["run-id"])
    folder = flower.folder(run)
    wait_for(lambda: (folder / "run.json").exists() and read_metrics(folder), "a round")
    assert flower.asked("stop", run)["success"] and flower.status(run) == "finished:stopped"
    wait_for(lambda: read_run(folder)["status"] != "running", "the end of the ServerApp")
    assert read_run(folder)["status"] == "stopped" and (folder / "metrics.parquet").exists()
    assert not (folder / "report.html").exists() and "report:" not in flower.flwr("log", run, "--show").stdout
