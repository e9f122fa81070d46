"""What a round costs beyond its work: Flower's own processes beside those of ``prunella run``, same app and machine.

The app is as small as an app can be that trains: a model of 50 kB, one step of SGD on every client, so that what is
left is starting processes, importing, polling and moving messages. Stock means Flower's own commands, unpatched, and
its own Grid, which looks for replies every 3 s; ours is what ``prunella run`` does, with a Grid that looks every 0.1 s.
``first`` is from the command to the end of round 1, with all that starts late in it; a round is from sending to the
last reply, the median of those after the first; ``total`` is the whole command. Seconds.

    python -m prunella.benchmarks.speed.round [--rounds 3] [--supernodes 4] [--json]
"""

import statistics
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prunella.benchmarks.speed.bench import command, show_table
from prunella.deploy.console.progress import Line
from prunella.deploy.local.launcher import launch
from prunella.deploy.runtime.request import RunRequest

PYPROJECT = """\
[project]
name = "smallest-app"
version = "0.1.0"
[tool.flwr.app]
publisher = "prunella"
[tool.flwr.app.components]
serverapp = "smallest_server:app"
clientapp = "smallest_client:app"
[tool.flwr.app.config]
rounds = 3
clients = 2
poll-seconds = 0.1
misbehave = ""
run-dir = ""
resume = false
"""

SERVER = """\
import json, os, signal, subprocess, time
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
import torch
app = ServerApp()


def exchange(grid, messages, poll):
    if not poll:
        return list(grid.send_and_receive(messages))
    waiting, replies = set(grid.push_messages(messages)), []
    while waiting:
        new = list(grid.pull_messages(waiting))
        replies += new
        waiting -= {reply.metadata.reply_to_message_id for reply in new}
        time.sleep(poll)
    return replies


@app.main()
def main(grid, context):
    config = context.run_config
    run_dir = config["run-dir"]

    def note(round, metric, value):
        line = {"round": round, "time": time.time(), "metric": metric, "labels": {}, "value": value}
        with open(os.path.join(run_dir, "metrics.jsonl"), "a") as file:
            file.write(json.dumps(line) + "\\n")

    note(0, "rounds", config["rounds"])
    if config["misbehave"] == "unless-resumed" and not config["resume"]:
        raise RuntimeError("this app fails on purpose")
    if config["misbehave"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if config["misbehave"] == "orphan":
        subprocess.Popen(["sleep", "600"])
    while len(nodes := list(grid.get_node_ids())) < config["clients"]:
        time.sleep(0.1)
    weights = torch.zeros(12500)
    for round in range(1, config["rounds"] + 1):
        begin = time.time()
        records = {"w": ArrayRecord([weights.numpy()]), "c": ConfigRecord({"round": round})}
        messages = [Message(RecordDict(records), node, "train") for node in nodes]
        replies = exchange(grid, messages, config["poll-seconds"])
        failed = [r.error.reason for r in replies if r.has_error()]
        if failed:
            raise RuntimeError(failed[0])
        arrays = [r.content["w"].to_numpy_ndarrays()[0] for r in replies]
        weights = torch.stack([torch.from_numpy(a) for a in arrays]).mean(0)
        note(round, "round_seconds", time.time() - begin)
        note(round, "accuracy_ratio", float((weights < 0).float().mean()))
        note(round, "round", round)
"""

CLIENT = """\
import os
from pathlib import Path
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
import torch
app = ClientApp()


@app.train()
def train(message, context):
    weights = torch.from_numpy(message.content["w"].to_numpy_ndarrays()[0].copy()).requires_grad_()
    optimizer = torch.optim.SGD([weights], lr=0.1)
    weights.sum().backward()
    optimizer.step()
    if "state-dir" in context.node_config:
        witness = {"pid": os.getpid(), "node": dict(context.node_config), "noise": torch.rand(1).item()}
        Path(context.node_config["state-dir"], f"{message.content['c']['round']}.txt").write_text(repr(witness))
    return Message(RecordDict({"w": ArrayRecord([weights.detach().numpy()])}), reply_to=message)
"""


def write_files(directory: Path, texts: Mapping[str, str]) -> Path:
    """An app's files by name, in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text)
    return directory


def write_app(directory: Path) -> Path:
    """The smallest app that trains, as files in ``directory``."""
    texts = {"pyproject.toml": PYPROJECT, "smallest_server.py": SERVER, "smallest_client.py": CLIENT}
    return write_files(directory, texts)


class RecordingView:
    """A view that keeps the lines it is shown."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def say(self, text: str) -> None:
        return

    def show(self, lines: Iterable[Line]) -> None:
        self.lines += list(lines)

    def close(self) -> None:
        return


def measure(request: RunRequest) -> dict[str, Any]:
    """One federation: seconds until round 1 has ended, seconds of each later round, seconds in all."""
    begin, view = time.time(), RecordingView()
    outcome = launch(request, view)
    if outcome.status != "completed":
        raise RuntimeError(f"the federation failed: {outcome.error}; see {outcome.run.path}/logs")
    ended = [line for line in view.lines if line["metric"] == "round_seconds"]
    rounds = [float(line["value"]) for line in ended]
    return {"first": ended[0]["time"] - begin, "rounds": rounds[1:], "total": time.time() - begin}


def compare(ours: Mapping[str, Any], stock: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios of stock over ours; medians of rounds.

    >>> sides = ({"first": 4, "rounds": [1, 1], "total": 6}, {"first": 8, "rounds": [9, 12], "total": 29})
    >>> compare(*sides)["ratio"]["round"]
    10.5
    """

    def middle(side: Mapping[str, Any]) -> dict[str, float]:
        return {"first": side["first"], "round": statistics.median(side["rounds"]), "total": side["total"]}

    mine, theirs = middle(ours), middle(stock)
    return {"ours": mine, "stock": theirs, "ratio": {key: theirs[key] / mine[key] for key in mine}}


def show(result: Mapping[str, Any]) -> None:
    sides = {key: [result[side][key] for side in ("ours", "stock", "ratio")] for key in ("first", "round", "total")}
    rows = [(key, f"{ours:.2f}", f"{stock:.2f}", f"{ratio:.1f}x") for key, (ours, stock, ratio) in sides.items()]
    show_table("overhead of a round", "seconds, ours, stock, ratio", rows)


def both(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if options.rounds < 2:
        raise ArgumentTypeError("--rounds must be at least 2: the first one is counted apart")
    with tempfile.TemporaryDirectory() as scratch:
        app, runs = write_app(Path(scratch) / "smallest-app"), Path(scratch) / "runs"
        settings = {"rounds": options.rounds, "clients": options.supernodes}
        ours = measure(RunRequest(app, runs, settings, options.supernodes))
        slow = {**settings, "poll-seconds": 0.0}  # Flower's own Grid
        stock = measure(RunRequest(app, runs, slow, options.supernodes, stock=True))
    return {"supernodes": options.supernodes, "rounds": options.rounds, **compare(ours, stock)}


if __name__ == "__main__":
    command(__doc__, both, show, {"--rounds": 3, "--supernodes": 4})
