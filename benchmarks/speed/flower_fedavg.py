"""Flower's own ``FedAvg`` with a plain PyTorch client beside this project's ``fedavg``, on the same examples.

Ours runs first, ServerApp and ClientApp as in a real run but in one process, without a defense; the batches that each
client draws in each round are noted. Then ``flwr.serverapp.strategy.FedAvg`` starts from the same weights, over an
ordinary ClientApp: ``load_state_dict``, ``torch.optim.SGD`` over those same batches, ``state_dict`` and the number of
examples in the reply. Nothing of ours trains or averages there. Both models are tested by the same function on the same
examples after every round.

Bits may differ: Flower adds weighted float32 models, we add float64 differences and round once, and an optimiser may
round a step otherwise. ``apart`` is the largest difference of two weights after the last round, ``of_largest`` that
over the largest weight; ``ours`` and ``flower`` are accuracies by round, and ``equal`` says which rounds end in equal
bits. ``examples`` is the number of test examples whose label differs after the last round, of ``tested``.

    python -m prunella.benchmarks.speed.flower_fedavg [--dataset digits] [--model cnn] [--seeds 3] [--rounds 10]
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.func import functional_call

from prunella.benchmarks.engine.inprocess import InProcessGrid, accuracies, quiet, run_in_process
from prunella.benchmarks.speed.bench import command, show_table
from prunella.client.session import Session
from prunella.core.trees import Tree
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import Federation
from prunella.tasks.examples import Examples
from prunella.tasks.task import initial
from prunella.tasks.training import evaluate

CLIENTS, TESTED = 4, 1000
Weights = list[Tree]  # of the global model after each round


@dataclass(frozen=True)
class Noted:
    """What every client trained on, by client: the batches of each round, and how many examples it says it has."""

    batches: dict[int, list[list[Examples]]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)


@contextmanager
def noting() -> Iterator[Noted]:
    """Within, every client's batches are noted as it draws them."""
    noted, before = Noted(), Session.batches

    def batches(session: Session, *asked: Any) -> Iterator[Examples]:
        drawn, client = list(before(session, *asked)), session.node.client
        noted.batches.setdefault(client, []).append(drawn)
        noted.sizes[client] = len(session.data.examples.y)
        return iter(drawn)

    with patch.object(Session, "batches", batches):
        yield noted


def ours(folder: Path, seed: int, **run: Any) -> tuple[Federation, Weights, Noted]:
    """A run of ours, the global weights by round, and what the clients trained on."""
    seen: Weights = []
    run |= {"strategy": "fedavg", "defenses": "none", "audit_every": 0, "device": "cpu", "seed": seed, "tested": TESTED}
    with noting() as noted:
        look = lambda _, params, buffers: seen.append({**params, **buffers})  # noqa: E731
        return run_in_process(folder, CLIENTS, look=look, **run), seen, noted


def plain_client(federation: Federation, noted: Noted) -> ClientApp:
    """A ClientApp as Flower's tutorials write it."""
    app, run = ClientApp(), federation.run

    @app.train()
    def train(message: Message, context: Context) -> Message:
        given: Any = message.content
        client, number = int(context.node_config["partition-id"]), given["config"]["server-round"]
        model = federation.task.build().train()
        model.load_state_dict(given["arrays"].to_torch_state_dict(), strict=True)
        sgd = torch.optim.SGD(model.parameters(), float(run.learning_rate), run.momentum, weight_decay=run.weight_decay)
        for batch in noted.batches[client][number - 1]:
            sgd.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
            sgd.step()
        told = MetricRecord({"num-examples": noted.sizes[client]})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told}), reply_to=message)

    return app


def flowers(folder: Path, federation: Federation, noted: Noted) -> Weights:
    """The global weights of Flower's FedAvg after each round."""
    seen: Weights = []

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round:
            seen.append(dict(arrays.to_torch_state_dict()))
        return None

    params, buffers = initial(federation.task, federation.run.seed)
    grid = InProcessGrid(plain_client(federation, noted), CLIENTS, {}, folder)
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    with quiet():
        strategy.start(
            OrderedGrid(grid, 0.0),
            ArrayRecord({**params, **buffers}),
            num_rounds=federation.run.rounds,
            evaluate_fn=evaluate_fn,
        )
    return seen


def _tested(federation: Federation, tree: Tree) -> float:
    assert federation.test is not None
    params, buffers = federation.model.split(tree)
    return evaluate(federation.model.module, params, buffers, federation.test.x, federation.test.y).accuracy


@torch.no_grad()
def _labels(federation: Federation, tree: Tree) -> torch.Tensor:
    assert federation.test is not None
    found: torch.Tensor = functional_call(federation.model.module.eval(), tree, (federation.test.x,))
    return found.argmax(1)


def compare(seed: int, **run: Any) -> dict[str, Any]:
    """Both runs of one seed."""
    with tempfile.TemporaryDirectory() as folder:
        federation, mine, noted = ours(Path(folder) / "ours", seed, **run)
        theirs = flowers(Path(folder) / "flower", federation, noted)
        one, other = mine[-1], theirs[-1]
        apart = max(float((one[name] - other[name]).abs().max()) for name in one)
        labels = _labels(federation, one) != _labels(federation, other)
        return {
            "ours": list(accuracies(federation).values())[-len(mine) :],
            "flower": [_tested(federation, tree) for tree in theirs],
            "equal": [all(torch.equal(a[n], b[n]) for n in a) for a, b in zip(mine, theirs, strict=True)],
            "apart": apart,
            "of_largest": apart / max(float(t.abs().max()) for t in one.values()),
            "examples": int(labels.sum()),
            "tested": len(labels),
        }


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    torch.set_num_threads(1)
    asked = {"dataset": options.dataset, "model": options.model, "rounds": options.rounds}
    return {**asked, "seeds": [compare(seed, **asked) for seed in range(options.seeds)]}


def show(result: dict[str, Any]) -> None:
    rows = [
        (
            str(seed),
            f"{one['ours'][-1]:.4f} / {one['flower'][-1]:.4f}",
            f"{max(abs(a - b) for a, b in zip(one['ours'], one['flower'], strict=True)):.4f}",
            f"{sum(one['equal'])} of {len(one['equal'])}",
            f"{one['apart']:.1e} ({one['of_largest']:.1e})",
            f"{one['examples']} of {one['tested']}",
        )
        for seed, one in enumerate(result["seeds"])
    ]
    heads = (
        "seed, accuracy: ours / Flower, largest gap in a round, rounds bit for bit, weights apart, labels that differ"
    )
    show_table(f"{result['dataset']}, {result['model']}", heads, rows)


if __name__ == "__main__":
    options = {"--dataset": "digits", "--model": "cnn", "--seeds": 3, "--rounds": 10}
    command(__doc__, measure, show, options)
