"""Somebody else's Flower app with Prunella's pieces in it, over Flower's own SuperLink and SuperNodes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from prunella.client.state import ClientStore
from prunella.deploy.ports import free_ports
from tests.federation.foreign_app import LOOP, PRUNEFL, UPDATE, write, written
from tests.federation.running import ROOT, end, wait_for


@pytest.mark.parametrize(
    ("changes", "most"), [(UPDATE, 5), (UPDATE[:3] + LOOP, 6), (PRUNEFL + LOOP, 8)], ids=["pruned", "loop", "both"]
)
def test_the_lines_that_a_user_writes(changes: list[tuple[str, str, str]], most: int, tmp_path: Path) -> None:
    added, _ = written(changes, tmp_path)
    assert added == most


@contextmanager
def flower(folder: Path) -> Iterator[dict[str, str]]:
    """Flower's own SuperLink and two SuperNodes; the environment in which ``flwr`` finds them."""
    control, fleet, *runtime = free_ports(4)
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{control}"\ninsecure = true\n'
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FLWR_HOME": str(home)}
    env |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    env |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}
    with ExitStack() as stack:

        def start(name: str, *command: str, **own: str) -> None:
            out = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(command, cwd=folder, env={**env, **own}, stdout=out, stderr=out, text=True)
            stack.callback(end, process)

        address = f"127.0.0.1:{fleet}"
        link = ("--host", "127.0.0.1", "--port", str(control), "--fleet-api-address", address)
        start("link", "flower-superlink", "--insecure", *link, "--disable-runtime-dependency-installation")
        wait_for(lambda: "gRPC" in (folder / "link.log").read_text(), "the SuperLink")
        for number, port in enumerate(runtime):
            config = f"partition-id={number} num-partitions=2 state-dir='{folder / 'state' / str(number)}'"
            where = ("--superlink", address, "--host", "127.0.0.1", "--port", str(port), "--node-config", config)
            start(f"node-{number}", "flower-supernode", "--insecure", *where, FLWR_HOME=str(folder / f"home-{number}"))
        yield env


def run(
    folder: Path, env: dict[str, str], changes: list[tuple[str, str, str]], defenses: str
) -> dict[str, torch.Tensor]:
    """One run of the app with these changes to its end: the model it saved."""
    result = folder / f"{defenses}.pt"
    write(folder / f"app-{defenses}", changes, result, defenses)
    done = subprocess.run(
        ["flwr", "run", str(folder / f"app-{defenses}"), "here"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for _ in range(600):
        if result.exists():
            time.sleep(0.5)
            return dict(torch.load(result))
        time.sleep(0.5)
    raise AssertionError("\n".join(path.read_text()[-3000:] for path in folder.glob("*.log")))


@pytest.mark.federation
@pytest.mark.timeout(600)
def test_an_app_of_somebody_else_is_defended_and_pruned(tmp_path: Path) -> None:
    """DGP by the Mod, noise in the loop, magnitude by the layer; coded messages in the second round."""
    with flower(tmp_path) as env:
        model = run(tmp_path, env, UPDATE + LOOP, "gaussian,dgp")
    weights = [tensor for name, tensor in model.items() if tensor.dim() > 1]
    zeros = sum(int((t == 0).sum()) for t in weights) / sum(t.numel() for t in weights)
    assert abs(zeros - 0.5) < 0.01
    homes = sorted((tmp_path / "state").glob("*/flower"))
    assert len(homes) == 2
    for home in homes:
        (run_name,) = [path.name for path in (home / "runs").glob("*-train")]
        memory = ClientStore(home, run_name).load(99)
        assert (memory.tally.rounds, memory.tally.steps) == (2, 8) and bool(memory.state["dgp"]["error"])
        mask = ClientStore(home, run_name.removesuffix("-train")).mask()
        assert mask is not None and not bool(mask["fc1.weight"].all()), "it was sent a coded message"
    assert "Traceback" not in (tmp_path / "node-0.log").read_text()
