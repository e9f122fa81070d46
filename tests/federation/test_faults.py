"""Faults over real processes: what is killed, what goes on, what comes back."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from prunella.server.checkpoint import LEDGERS, Checkpoint
from prunella.server.store.read import read_metrics, read_run
from tests.federation.running import final, find, finish, rounds, series, start, wait_for

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]
SIX = ["-c", "rounds=6", "-c", "audit-every=0", "--client-seed", "5", "--supernodes", "2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """What six rounds come to when nothing interrupts them."""
    folder = tmp_path_factory.mktemp("whole")
    code, output = finish(start(folder, *SIX))
    assert code == 0, output
    return final(folder)


def resume(folder: Path, whole: Checkpoint) -> None:
    """Go on to the end, which has the bits of a run that was never interrupted, each round written once."""
    code, output = finish(start(folder, "--resume", "latest"))
    assert code == 0, output
    saved = final(folder)
    assert saved.round == whole.round == 6
    assert all(torch.equal(saved.tree[n], whole.tree[n]) for n in whole.tree)
    assert all(torch.equal(saved.mask[n], whole.mask[n]) for n in whole.mask)
    assert series(folder / "runs" / "latest", "round") == [1, 2, 3, 4, 5, 6]


def test_a_server_killed_in_mid_run_resumes_to_the_same_bits(whole: Checkpoint, tmp_path: Path) -> None:
    process = start(tmp_path, *SIX)
    wait_for(lambda: rounds(tmp_path) >= 3, "round 3")
    find(process, "flwr-serverapp").send_signal(signal.SIGKILL)
    code, output = finish(process)
    assert code == 1 and "failed" in output
    assert 3 <= final(tmp_path).round < 6
    resume(tmp_path, whole)


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of two megabytes at ``place``."""
    place.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs root and the right to mount, to make a disk that fills up")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Write until nothing more fits."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return ballast


def test_a_full_disk_and_a_damaged_checkpoint_lose_nothing(whole: Checkpoint, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "full"
    process = start(tmp_path, *SIX, "--run-id", "full")
    wait_for(lambda: (run / "launch.json").exists() or process.poll() is not None, "the run's directory")
    with small_disk(run / "checkpoint") as disk:
        wait_for(lambda: rounds(tmp_path) >= 3 or process.poll() is not None, "round 3")
        ballast = fill(disk)
        code, output = finish(process)
        assert code == 1 and "No space left" in str(read_run(run)["error"]), output
        # Both checkpoints are whole, and nothing half-written lies beside them and what clients have spent.
        names = sorted(path.name for path in disk.iterdir() if path not in (ballast, disk / LEDGERS))
        assert len(names) == 2 and all(name.startswith("round-") for name in names)
        stopped = final(tmp_path).round
        assert 3 <= stopped < 6
        ballast.unlink()
        newest = disk / names[-1]
        data = bytearray(newest.read_bytes())
        data[-100] ^= 4
        newest.write_bytes(data)
        resume(tmp_path, whole)
        said = (run / "logs" / "server.log").read_text()
        assert f"{names[-1]} is damaged" in said and f"resuming after round {stopped - 1}" in said


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
    # Flower needs 60 s to notice; with our heartbeat it is about 20.
    seconds = series(path, "round_seconds")
    assert max(seconds) - min(seconds) < 40
    assert [r["value"] for r in rows if r["metric"] == "clients_selected"][-1] == 2.0
    assert [r["value"] for r in rows if r["metric"] == "round"] == [1, 2, 3, 4, 5, 6]


def test_a_wrong_setting_ends_before_anything_starts(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path, "-c", "defenses=pripune"))
    assert code == 2 and "did you mean 'priprune'" in output
    assert not list((tmp_path / "runs").glob("2*")) if (tmp_path / "runs").exists() else True
