"""A site with a few real digits as files, and what a server may send it: the client's own handlers, no stub."""

from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image
from torch import Tensor

from prunella.client.app import app
from prunella.client.session import Session
from prunella.core.trees import Tree, full_mask
from prunella.privacy.accounting import Charge
from prunella.tasks.datasets.digits import everything
from prunella.wire.records import from_coded, to_coded, to_dense
from tests.local_grid import settings

LINEAR = "tests.redteam.nets:linear"
CLASSES = ("a-dead", "b", "c")  # the first has no pictures, so that its row of a linear layer can be silenced
SIDE = 8
RATE = 1.0


class Site:
    """``count`` digits in folders below ``home``; every question goes through the real handlers."""

    def __init__(self, home: Path, count: int = 1, **node: Any) -> None:
        self.home = home
        self.images = everything().x[10 : 10 + count]
        for name in CLASSES:
            (home / "data" / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(self.images):
            pixels = (image[0] * 255).round().byte().numpy()
            Image.fromarray(pixels).save(home / "data" / CLASSES[1 + number % 2] / f"{number}.png")
        self.node = {"partition-id": 0, "num-partitions": 1, "data": str(home / "data"), **node}
        self.node["state-dir"] = str(home / "state")

    def context(self, **run: Any) -> Context:
        chosen = {"run_dir": "/x/run", "model": LINEAR, "dataset": f"imagefolder@1x{SIDE}x{SIDE}", **run}
        plain = {"local_steps": 1, "batch_size": 1, "learning_rate": RATE, "strategy": "fedavg", **chosen}
        return Context(1, 5, dict(self.node), RecordDict(), settings(**plain))

    def ask(self, kind: str, content: RecordDict, **run: Any) -> RecordDict:
        """The content of the reply; raises what the client's error says."""
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        message = Message(content, dst_node_id=5, message_type=kind)
        return app(message, self.context(**run)).content

    def update(self, params: Tree, round: int = 1, **run: Any) -> Tree:
        """What a round on these weights sends back."""
        told = self.ask("train", model(params, round), **run)["update"]
        return from_coded(told, params, full_mask(params))[0]

    def charges(self) -> tuple[Charge, ...]:
        """All that was ever written down for this site's pictures."""
        return Session(self.context()).accounts.ledger().charges


def model(params: Tree, round: int = 1) -> RecordDict:
    config = ConfigRecord({"round": round, "importance": []})
    return RecordDict({"model": to_coded(params, full_mask(params)), "config": config})


def weights(side: int = SIDE) -> Tree:
    """All zero, but for the first class, which no example has: its probability is 0, and so is its row's gradient."""
    bias = torch.zeros(len(CLASSES))
    bias[0] = -1e4
    return {"1.weight": torch.zeros(len(CLASSES), side * side), "1.bias": bias}


def guess(images: Tensor, round: int = 1) -> RecordDict:
    """An audit's question."""
    return RecordDict({"audit": ConfigRecord({"round": round}), "reconstruction": to_dense({"x": images})})


def psnr(found: Tensor, truth: Tensor) -> float:
    error = float((found.double() - truth.double()).square().mean())
    return -10 * torch.log10(torch.tensor(max(error, 1e-10))).item()
