"""Flower's own apps with Prunella's pieces in them, over Flower's own SuperLink and SuperNodes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import prunella
from prunella.client.state import ClientStore, Memory
from prunella.core.trees import Tree
from prunella.deploy.ports import free_ports
from prunella.flower.prune import prunable_names
from tests.federation.foreign_app import APPS, copy_app, take_offline, written
from tests.federation.running import ROOT, end, wait_for

PYTORCH, LEGACY, HUGGING = "quickstart-pytorch", "legacy-pytorch", "quickstart-huggingface"
UPDATE_LINES, LOOP_LINES = 5, 8
ONE = {"num-server-rounds": "1", "fraction-evaluate": "0.0"}


@pytest.mark.parametrize(
    ("app", "patch", "most", "moved"),
    [
        (PYTORCH, "update", 5, 0),
        (PYTORCH, "loop", 6, 0),
        (PYTORCH, "prunefl", 2, 0),
        (PYTORCH, "record", 3, 0),
        (LEGACY, "update", 3, 0),
        (LEGACY, "loop", 7, 0),
        (HUGGING, "update", 5, 0),
        (HUGGING, "loop", 7, 0),
    ],
)
def test_the_lines_that_a_user_writes(app: str, patch: str, most: int, moved: int) -> None:
    assert written(app, patch) == (most, moved)
    whole = most + (written(app, "loop")[0] if patch == "prunefl" else 0)
    assert whole <= (LOOP_LINES if patch in ("loop", "prunefl") else UPDATE_LINES)


def test_the_page_prints_each_patch_and_its_lines() -> None:
    page = (ROOT / "docs" / "your-flower-app.md").read_text()
    for path in sorted(APPS.glob("*.patch")):
        app, patch = path.name.split(".")[:2]
        (row,) = re.findall(rf"^\| `{app}` \|.*$", page, re.MULTILINE)
        assert f"{patch} {written(app, patch)[0]}" in row, "the table of lines is not that of the patches"
    for path in (APPS / f"{PYTORCH}.{patch}.patch" for patch in ("update", "loop")):
        lines = [line for line in path.read_text().splitlines() if re.match(r"[+-](?![+-]{2})", line)]
        assert not [line for line in lines if line not in page], path.name


class Flower(NamedTuple):
    """A SuperLink, two SuperNodes and where their files are."""

    folder: Path
    env: dict[str, str]

    def run(self, app: Path, **config: str) -> str:
        """One run of the app to its end: its log, in which each round says that both clients answered."""
        given = ["--run-config", " ".join(f"{key}={value}" for key, value in config.items())] if config else []
        command = ["flwr", "run", str(app), "here", "--stream", *given]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        answered = re.findall(r"aggregate_(?:train|fit): [Rr]eceived (\d) results and (\d) failures", done.stdout)
        assert answered and set(answered) == {("2", "0")}, done.stdout + self.logs()
        return done.stdout

    def homes(self) -> list[Path]:
        """Where the SuperNodes keep their state."""
        found = sorted((self.folder / "state").glob("*/flower"))
        assert len(found) == 2
        return found

    def newest(self, home: Path) -> str:
        return max((home / "runs").glob("*-train"), key=lambda path: path.stat().st_mtime_ns).name

    def memories(self) -> list[Memory]:
        """What the defenses of the newest run remember, of each SuperNode."""
        return [ClientStore(home, self.newest(home)).load(99) for home in self.homes()]

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log"))


@contextmanager
def started(folder: Path) -> Iterator[Flower]:
    control, fleet, *runtime = free_ports(4)
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{control}"\ninsecure = true\n'
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "FLWR_HOME": str(home)}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    env |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    env |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3", "HF_HUB_OFFLINE": "1"}
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
        yield Flower(folder, env)


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    with started(tmp_path_factory.mktemp("flower")) as found:
        yield found


def prepared(flower: Flower, name: str, *patches: str) -> Path:
    folder = flower.folder / f"{name}-{'-'.join(patches)}"
    return folder if folder.exists() else take_offline(name, copy_app(name, folder, *patches))


def saved(flower: Flower) -> Tree:
    """The weights of the model that the app saved after its last run: what a scheme may prune of it."""
    model = torch.load(flower.folder / "final_model.pt")
    return {name: model[name] for name in prunable_names(model, None)}


def zeros(weights: Tree) -> float:
    return sum(int((t == 0).sum()) for t in weights.values()) / sum(t.numel() for t in weights.values())


@pytest.mark.federation
@pytest.mark.timeout(600)
def test_the_quick_start_is_defended_pruned_recorded_and_attacked(
    flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DGP by the Mod and magnitude by the layer; coded messages in round 2; a trace that can be attacked."""
    app = prepared(flower, PYTORCH, "update", "record")
    flower.run(app, **ONE | {"num-server-rounds": "2"})
    weights = saved(flower)
    # The default ramp ends at rate 0.5 in a later round; no weight of a network that trains is zero by itself.
    assert 0.05 < zeros(weights) < 0.51
    for home, memory in zip(flower.homes(), flower.memories(), strict=True):
        assert memory.tally.rounds == 2 and bool(memory.state["dgp"]["error"])
        mask = ClientStore(home, flower.newest(home).removesuffix("-train")).mask()
        assert mask is not None and not all(bool(mask[name].all()) for name in weights), "it was sent a coded message"
    traces = sorted((flower.folder / "traces").iterdir())
    assert len(traces) == 4
    monkeypatch.syspath_prepend(str(app))
    task = prunella.Task("pytorchexample.task:Net", (3, 32, 32), 10)
    view, known, _ = prunella.load_trace(traces[-1], task)
    assert (view.steps, view.num_examples, view.learning_rate) == (2, 48, 0.1)
    result = prunella.attack((view, known), "ig", iterations=2, device="cpu")
    assert result.images is not None and result.images.shape[1:] == (3, 32, 32)


@pytest.mark.federation
@pytest.mark.timeout(600)
def test_an_app_is_pruned_by_its_clients_gradients(flower: Flower) -> None:
    """PruneFL: one client makes the first mask in its own loop, and both send importances in every round."""
    flower.run(
        prepared(flower, PYTORCH, "loop", "prunefl"), **ONE | {"num-server-rounds": "2", "local-epochs": "5"}
    )  # of two steps each; the mask moves after five
    assert 0.29 < zeros(saved(flower)) < 0.9, "the rate is the least that PruneFL removes"
    assert sorted(memory.tally.rounds for memory in flower.memories()) == [2, 3], "one of them made the first mask"
    assert all(bool(memory.state["dgp"]["error"]) for memory in flower.memories())


@pytest.mark.federation
@pytest.mark.timeout(600)
@pytest.mark.parametrize("app", [PYTORCH, LEGACY])
def test_loops_are_defended(flower: Flower, app: str) -> None:
    """A channel, PriPrune, and DP-SGD with DGP behind it, in the loops of both of Flower's interfaces."""
    config = ONE if app == PYTORCH else {}
    for names in ("channel-natural,priprune", "dp-sgd,dgp"):
        flower.run(prepared(flower, app, "loop"), **config, defenses=f"'{names}'")
        for memory in flower.memories():
            assert [claim.partition(":")[0] for claim in memory.tally.claims] == names.split(",")
            assert memory.tally.rounds == 1 and memory.tally.steps == (2 if app == PYTORCH else 3)


@pytest.mark.federation
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed: it is in prunella[dev]")
def test_a_hugging_face_model_is_defended_and_pruned(flower: Flower) -> None:
    flower.run(prepared(flower, HUGGING, "update"), **ONE)
    assert 0.05 < zeros(saved(flower)) < 0.31
    assert all(bool(memory.state["dgp"]["error"]) for memory in flower.memories())
    flower.run(prepared(flower, HUGGING, "loop"), **ONE, defenses="'priprune'")
    for memory in flower.memories():
        assert memory.tally.steps == 4 and bool(memory.state["priprune"]["withheld"])
