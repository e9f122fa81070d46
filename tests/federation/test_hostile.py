"""Clients that lie, crash, stall and flood over real gRPC, beside honest ones: the run goes on, counted by kind."""

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from prunella.server.store.read import read_run
from tests.federation.hostile_client import SECRET
from tests.federation.running import ROOT, failures, final, find, finish, rounds, series, start, wait_for

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]
COMMON = ["-c", "audit-every=0", "-c", "strategy=random", "-c", "defenses=none", "-c", "partition=iid"]
# By "client:round"; clients 0 to 2 are honest, and the last round is.
MISCHIEF = {
    "4:1": "shape", "5:1": "nan", "6:1": "bomb", "7:1": "wide-mask",
    "4:2": "replay", "5:2": "forged-mask", "6:2": "oversize", "7:2": "name",
    "4:3": "huge", "5:3": "quote", "6:3": "weight", "7:3": "claims", "3:3": "crash",
}  # fmt: skip
COUNTED = {
    1: {"shape": 1, "nan": 1, "length": 1, "mask": 1},
    2: {"stale": 2, "malformed": 1, "name": 1},
    3: {"client-error": 2, "metrics": 2},
}
ROUNDS = 4


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the app whose ClientApp is ``hostile_client``."""
    copy = tmp_path_factory.mktemp("app") / "prunella-app"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs", "tests", "docs", "__pycache__", "*.egg-info")
    )
    shutil.copy(Path(__file__).with_name("hostile_client.py"), copy / "client" / "hostile.py")
    text = (copy / "pyproject.toml").read_text()
    assert text.count("prunella.client.app:app") == 1
    (copy / "pyproject.toml").write_text(text.replace("prunella.client.app:app", "client.hostile:app"))
    return copy


def peak(process: psutil.Process) -> int:
    """The most memory a process ever had, bytes; 0 when it is gone."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def believed(run: Path, clients: int) -> list[int]:
    """Valid replies of each round, from the bytes they would take uncoded: one model each."""
    up, down = (series(run, "wire_dense_bytes_total", direction=direction) for direction in ("up", "down"))
    model = down[0] / clients
    return [round((now - before) / model) for before, now in pairwise([0.0, *up])]


def test_malicious_replies_are_counted_by_kind_and_nothing_of_them_is_believed(app: Path, tmp_path: Path) -> None:
    settings = [*COMMON, "-c", f"rounds={ROUNDS}", "-c", "robust=median", "-c", "min-clients=3", "--app", str(app)]
    process = start(tmp_path, *settings, "--supernodes", "8", MISCHIEF=json.dumps(MISCHIEF))
    wait_for(lambda: rounds(tmp_path) >= 1 or process.poll() is not None, "round 1")
    server = find(process, "flwr-serverapp")
    most = 0
    while process.poll() is None:
        most = max(most, peak(server))
    code, output = finish(process)
    assert code == 0, output
    run = tmp_path / "runs" / "latest"
    assert read_run(run)["status"] == "completed"
    assert failures(run) == COUNTED
    # Round 3 took the enormous update of client 4, which is well formed: the median of the others outvoted it.
    assert believed(run, clients=8) == [4, 4, 4, 8]
    # And a ClientApp was killed in it, which Flower notices after 60 s and we after 20.
    seconds = series(run, "round_seconds")
    assert seconds[2] - min(seconds) < 45
    saved = final(tmp_path)
    assert max(float(tensor.abs().max()) for tensor in saved.tree.values()) < 100
    accuracy = series(run, "accuracy_ratio")
    assert all(map(math.isfinite, accuracy)) and accuracy[-1] > 0.3
    # The bomb would have unfolded to a gigabyte above what a server of this model needs.
    assert 0 < most < 1 << 30
    # What failed in client 5 quoted a private value. Its own log has it; nothing that left the client does.
    quoted = {
        path.relative_to(run) for path in run.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    }
    assert quoted == {Path("logs/client-5.log")} and "PrunellaError" in (run / "logs" / "server.log").read_text()
    assert SECRET not in output


def test_a_slow_client_misses_its_deadline_skips_what_is_over_and_comes_back(app: Path, tmp_path: Path) -> None:
    settings = [*COMMON, "-c", "rounds=9", "-c", "round-seconds=10", "--supernodes", "3", "--app", str(app)]
    code, output = finish(start(tmp_path, *settings, MISCHIEF=json.dumps({"2:2": "sleep"})))
    assert code == 0, output
    run = tmp_path / "runs" / "latest"
    missed = failures(run)
    assert {2, 3} <= missed.keys() and all(reasons.keys() == {"timeout"} for reasons in missed.values())
    # Back after its sleep of three rounds; on a busy machine an honest client may miss a deadline of 10 s, too.
    assert series(run, "round") == [*range(1, 10)] and 3 in believed(run, clients=3)[3:]
    trained = json.loads(next((run / "nodes" / "2").glob("state/runs/*/rounds.json")).read_text())
    assert "2" in trained and "9" in trained, "it did what it was asked, late as it was"
    assert "3" not in trained, "the question of a round that is long over has expired: there is no backlog"
