"""Flower apps of people who do not know Prunella, small enough for unit tests: digits, two clients."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.serverapp.strategy.result import Result
from sklearn.datasets import load_digits as read_digits
from torch import nn

from prunella.benchmarks.engine.inprocess import InProcessGrid, Tamper
from prunella.core.trees import Tree

BATCH, RATE = 8, 0.1
load_digits = functools.cache(read_digits)


class Net(nn.Module):
    """No batch norm, so that every defense works on it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(96, 20)
        self.fc2 = nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.sigmoid(self.fc1(torch.sigmoid(self.conv(x)).flatten(1))))


def load(partition: int, count: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    bunch = load_digits()
    at = slice(100 * partition, 100 * partition + count)
    return torch.tensor(bunch.images[at] / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(bunch.target[at])


def batches(partition: int, steps: int = 4) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y = load(partition)
    yield from list(zip(x.split(BATCH), y.split(BATCH), strict=True))[:steps]


def plain(model: nn.Module, message: Message, context: Context) -> Any:
    """The loop as everybody writes it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for images, labels in batches(int(context.node_config["partition-id"])):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def make(
    mods: list[Any],
    loop: Callable[[nn.Module, Message, Context], Any] = plain,
    build: Callable[[], nn.Module] = Net,
    arrays: Callable[[nn.Module], ArrayRecord] = lambda model: ArrayRecord(model.state_dict()),
) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = loop(model.train(), message, context)
        told = {"num-examples": 32, "train_loss": loss or 0.0, "secret": [1.0, 2.0]}
        content = RecordDict(
            {"arrays": arrays(model), "metrics": MetricRecord(told), "notes": ConfigRecord({"path": "/home/me"})}
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        told = {"num-examples": 32, "eval_loss": 0.5, "labels": [1, 2]}
        return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)

    return app


class Seen:
    """A grid's ``tamper`` that keeps every answer, and the messages that were errors."""

    def __init__(self) -> None:
        self.replies: list[Message] = []

    def __call__(self, reply: Message) -> Message:
        self.replies.append(reply)
        return reply

    @property
    def errors(self) -> list[str]:
        return [reply.error.reason for reply in self.replies if reply.has_error()]

    def trained(self, node: int = 100) -> list[RecordDict]:
        found = [r for r in self.replies if r.metadata.src_node_id == node and not r.has_error()]
        return [reply.content for reply in found if reply.content.array_records]


def run(
    app: ClientApp,
    folder: Path,
    config: dict[str, Any],
    strategy: Strategy | None = None,
    rounds: int = 1,
    clients: int = 2,
    tamper: Tamper | None = None,
    build: Callable[[], nn.Module] = Net,
    start: ArrayRecord | None = None,
    **node: Any,
) -> Result:
    torch.manual_seed(0)
    grid = InProcessGrid(app, clients, config, folder, tamper, **node)
    first = ArrayRecord(build().state_dict()) if start is None else start
    return (strategy or FedAvg(fraction_evaluate=0.0)).start(grid, first, num_rounds=rounds)


def tree(record: ArrayRecord) -> Tree:
    return dict(record.to_torch_state_dict())
