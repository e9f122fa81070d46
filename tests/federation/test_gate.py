"""A site's own rule over somebody else's app: ``prunella supernode --approve`` at Flower's own SuperLink.

One SuperNode, and a server that writes down what it received. First an approved app to its end; then four ways round,
which are those that cross processes: all ways round that an app itself can try are in ``tests/flower/test_gate.py``.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from prunella.deploy.ports import free_ports
from tests.federation.running import ROOT, end, wait_for
from tests.federation.small_app import LOOP, UPDATE, write

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]
Changes = list[tuple[str, str, str]]
PRIVATE = "patient 4711"
SERVER = """\
import json
import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from pytorchexample.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context) -> None:
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    torch.manual_seed(0)
    sent = ArrayRecord(Net().state_dict())
    content = RecordDict({"arrays": sent, "config": ConfigRecord({"lr": 0.1})})
    (reply,) = grid.send_and_receive([Message(content, nodes[0], "train")])
    heard = {"error": reply.error.reason} if reply.has_error() else {
        "records": {name: sorted(record) for name, record in reply.content.items()},
        "applied": list(reply.content["prunella"]["applied"]),
    }
    if not reply.has_error():
        torch.save([sent.to_torch_state_dict(), reply.content["arrays"].to_torch_state_dict()], "RESULT.pt")
    with open("RESULT.part", "w") as file:
        json.dump(heard, file)
    import os
    os.replace("RESULT.part", "RESULT")
"""
CLIENT = "pytorchexample/client_app.py"
GUARDED = UPDATE[:3] + LOOP
UNDOING = [
    (CLIENT, "    with protected(", "    import copy\n    other = copy.deepcopy(model)\n    with protected("),
    (
        CLIENT,
        "    model_record =",
        "    torch.optim.SGD(other.parameters(), lr=lr)\n"
        "    batch = next(iter(trainloader))\n"
        "    torch.nn.functional.cross_entropy(other(batch[0]), batch[1]).backward()\n"
        "    with torch.no_grad():\n"
        "        [p.sub_(lr * p.grad) for p in other.parameters()]\n"
        "    global RAW\n    RAW = ArrayRecord(other.state_dict())\n"
        "    model_record =",
    ),
    (
        CLIENT,
        "app = ClientApp(mods=[Defend()])",
        "def undo(msg, context, call_next):\n    reply = call_next(msg, context)\n"
        '    reply.content["arrays"] = RAW\n    return reply\n\n\napp = ClientApp(mods=[undo, Defend()])',
    ),
]
APPS: dict[str, Changes] = {
    "good": GUARDED,
    "other": GUARDED + [(CLIENT, "import torch\n", "import torch  # one byte more\n")],
    "undoing": GUARDED + UNDOING,
}


class Federation:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.control, self.fleet = free_ports(2)
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.control}"\ninsecure = true\n'
        )
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FLWR_HOME": str(home), "COLUMNS": "200"}
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        self.env = {**os.environ, **own, **quiet, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}
        for name, changes in APPS.items():
            self.write(name, changes)
        link = ("--host", "127.0.0.1", "--port", str(self.control), "--fleet-api-address", f"127.0.0.1:{self.fleet}")
        self.start("link", "flower-superlink", "--insecure", *link, "--disable-runtime-dependency-installation")
        wait_for(lambda: "gRPC" in (folder / "link.log").read_text(), "the SuperLink")

    def start(self, name: str, *command: str) -> None:
        out = self._stack.enter_context((self.folder / f"{name}.log").open("w"))
        process = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=out, stderr=out, text=True)
        self._stack.callback(end, process)

    def write(self, name: str, changes: Changes) -> None:
        app = self.folder / name
        write(app, changes, self.folder / f"{name}.json", "dp-sgd")
        (app / "pytorchexample/server_app.py").write_text(SERVER.replace("RESULT", str(self.folder / f"{name}.json")))

    def build(self, name: str) -> Path:
        """The app's bundle, by ``flwr build``."""
        done = subprocess.run(["flwr", "build", "--app", name], cwd=self.folder, env=self.env, capture_output=True)
        assert done.returncode == 0, done.stderr
        (fab,) = self.folder.glob("*.fab")
        return Path(shutil.move(fab, self.folder / f"{name}.bundle"))

    def supernode(self, *options: str) -> None:
        command = (sys.executable, "-c", "from prunella.deploy.cli import start; start()", "supernode", "--insecure")
        where = ("--superlink", f"127.0.0.1:{self.fleet}", "--client-id", "0", "--clients", "1", "--name", "site")
        self.start("node", *command, *where, *options)

    def run(self, name: str, *options: str) -> dict[str, object]:
        """What the server of this app heard."""
        heard = self.folder / f"{name}.json"
        heard.unlink(missing_ok=True)
        command = ["flwr", "run", str(self.folder / name), "here", *options]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        try:
            wait_for(heard.exists, "the server")
        except AssertionError:
            raise AssertionError("\n".join(p.read_text()[-3000:] for p in self.folder.rglob("*.log"))) from None
        return dict(json.loads(heard.read_text()))


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with ExitStack() as stack:
        yield Federation(tmp_path, stack)


def test_an_approved_app_is_defended_and_four_ways_round_are_refused(federation: Federation) -> None:
    approved = [part for name in ("good", "undoing") for part in ("--approve", str(federation.build(name)))]
    # The budget is that of two runs, and not of three.
    rule = ("--require", "dp-sgd, clip<=1, noise-multiplier>=8", "--epsilon-budget", "2.45")
    federation.supernode(*approved, *rule)

    heard = federation.run("good")
    assert heard.get("applied") == ["dp-sgd"], heard
    assert heard["records"] == {"arrays": sorted(heard["records"]["arrays"]), "metrics": ["num-examples"],
                                "prunella": ["applied", "wire"]}  # fmt: skip
    before, after = torch.load(federation.folder / "good.json.pt")
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    # Four steps at a rate of 0.1 with momentum 0.9: noise of 8 times the clip over a batch of 32 in every coordinate.
    assert 0.1 < float(moved.std()) < 0.15

    for name, options, words in (
        ("other", (), "approved bundles only"),
        ("good", ("--run-config", "defenses='none'"), "leave defenses = 'none' out"),
        ("undoing", (), "is not what protected() left"),
        ("good", (), "past privacy.epsilon-budget = 2.45"),
    ):
        error = str(federation.run(name, *options).get("error"))
        assert words in error and PRIVATE not in error, (name, error)
