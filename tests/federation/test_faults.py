"""Faults over real processes: what is killed, what goes on, what comes back."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from server.checkpoint import Checkpoint, load
from server.store import read_metrics, read_run

pytestmark = pytest.mark.federation
ROOT = Path(__file__).parents[2]
QUICK = ["-c", "audit-every=0", "--client-seed", "5", "--supernodes", "2"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", "from deploy.cli import app; app()", "run", *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=280)
    return process.returncode, output


def wait_for(condition: Callable[[], object], what: str) -> None:
    for _ in range(2400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"gave up waiting for {what}")


def rounds(folder: Path) -> int:
    path = folder / "runs" / "latest"
    return max((r["round"] for r in read_metrics(path)), default=0) if path.exists() else 0


def find(process: subprocess.Popen[str], needle: str) -> psutil.Process:
    family = psutil.Process(process.pid).children(recursive=True)
    (found,) = [p for p in family if needle in p.name() or needle in " ".join(p.cmdline())]
    return found


def final(folder: Path) -> Checkpoint:
    saved = load(folder / "runs" / "latest" / "checkpoint")
    assert saved is not None
    return saved


def test_a_server_killed_in_mid_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    code, output = finish(start(whole, "-c", "rounds=6", *QUICK))
    assert code == 0, output
    process = start(parts, "-c", "rounds=6", *QUICK)
    wait_for(lambda: rounds(parts) >= 3, "round 3")
    find(process, "flwr-serverapp").send_signal(signal.SIGKILL)
    code, output = finish(process)
    assert code == 1 and "failed" in output
    assert 3 <= final(parts).round < 6
    code, output = finish(start(parts, "--resume", "latest"))
    assert code == 0, output
    a, b = final(whole), final(parts)
    assert a.round == b.round == 6
    assert all(torch.equal(a.tree[n], b.tree[n]) for n in a.tree)
    assert all(torch.equal(a.mask[n], b.mask[n]) for n in a.mask)
    lines = [r["value"] for r in read_metrics(parts / "runs" / "latest") if r["metric"] == "round"]
    assert lines == [1, 2, 3, 4, 5, 6]


def test_a_supernode_killed_in_mid_run_is_counted_and_the_others_go_on(tmp_path: Path) -> None:
    process = start(tmp_path, "-c", "rounds=6", "-c", "audit-every=0", "-c", "strategy=random", "--supernodes", "3")
    wait_for(lambda: rounds(tmp_path) >= 2, "round 2")
    find(process, "supernode-1").send_signal(signal.SIGKILL)
    code, output = finish(process)
    assert code == 0, output
    path = tmp_path / "runs" / "latest"
    assert read_run(path)["status"] == "completed"
    rows = read_metrics(path)
    failures = [r for r in rows if r["metric"] == "client_failures_total"]
    assert {r["labels"]["reason"] for r in failures} == {"unreachable"}
    assert [r["value"] for r in rows if r["metric"] == "clients_selected"][-1] == 2.0
    assert [r["value"] for r in rows if r["metric"] == "round"] == [1, 2, 3, 4, 5, 6]


def test_a_wrong_setting_ends_before_anything_starts(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path, "-c", "defenses=pripune"))
    assert code == 2 and "did you mean 'priprune'" in output
    assert not list((tmp_path / "runs").glob("2*")) if (tmp_path / "runs").exists() else True
