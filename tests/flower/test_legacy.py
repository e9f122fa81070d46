"""An app of Flower's older API behind Defend: the bits of one of the Message API, under the names its server reads."""

import copy
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server, ServerApp, ServerAppComponents, ServerConfig, SimpleClientManager
from flwr.server.strategy import FedAvg
from torch import nn

from prunella.benchmarks.engine.inprocess import InProcessGrid
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.trees import Tree
from prunella.flower.defend import Defend
from prunella.flower.legacy import closed, opened, positions
from prunella.flower.loop import protected
from tests.flower import foreign
from tests.flower.foreign import RATE, Net, batches


class Older(InProcessGrid):
    """Flower's older server asks a grid for its run."""

    run = SimpleNamespace(run_id=1)  # type: ignore[assignment]


def weights(net: nn.Module) -> list[Any]:
    return [value.cpu().numpy() for value in net.state_dict().values()]


class Client(NumPyClient):
    """As tutorials write it; ``guarded`` trains inside ``protected``."""

    def __init__(self, partition: int, guarded: bool, net: nn.Module) -> None:
        self.partition, self.guarded, self.net = partition, guarded, net

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
        named = zip(self.net.state_dict().keys(), parameters, strict=True)
        self.net.load_state_dict(OrderedDict({name: torch.tensor(value) for name, value in named}))
        optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE)
        if self.guarded:
            with protected(None, None, self.net) as guard:
                for x, y in batches(self.partition):
                    guard.step(x, y, nn.functional.cross_entropy, optimizer)
        else:
            for x, y in batches(self.partition):
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.net.train()(x), y).backward()
                optimizer.step()
        return weights(self.net), 32, {"loss": 0.25, "secret": "path", "flag": True}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> Any:
        return 0.5, 32, {"accuracy": 0.75, "secret": 1.5}


def make(build: type[nn.Module] = Net, guarded: bool = False, mods: list[Any] | None = None) -> ClientApp:
    def client_fn(context: Context) -> Any:
        return Client(int(context.node_config["partition-id"]), guarded, build()).to_client()

    return ClientApp(client_fn, mods=mods)


class Kept(FedAvg):
    """What the server averages, and what it was told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.results: list[Any] = []
        self.losses: list[Any] = []
        self.failed: list[Any] = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        inorder = sorted(results, key=lambda each: int(each[0].node_id))  # Flower has them from a set
        self.results += [(res.parameters, res.num_examples, res.metrics) for _, res in inorder]
        self.failed += failures
        return super().aggregate_fit(server_round, results, failures)

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        self.losses += [(res.loss, res.num_examples, res.metrics) for _, res in results]
        self.failed += failures
        return super().aggregate_evaluate(server_round, results, failures)


def federate(
    app: ClientApp,
    folder: Path,
    config: dict[str, Any],
    evaluate: float = 0.0,
    build: type[nn.Module] = Net,
    **own: Any,
) -> tuple[Kept, list[str]]:
    """Two clients and one round of Flower's own older server: what it got, and the errors."""
    strategy = Kept(**{"initial_parameters": start(build), "fraction_evaluate": evaluate} | own)
    _, seen = serve(app, strategy, folder, config)
    return strategy, seen.errors


def start(build: type[nn.Module] = Net) -> Parameters:
    torch.manual_seed(0)
    return ndarrays_to_parameters(weights(build()))


def serve(
    app: ClientApp, strategy: Any, folder: Path, config: dict[str, Any], rounds: int = 1, spoil: Any = None
) -> tuple[Tree, foreign.Seen]:
    """Flower's own older server with two clients: the last model, by position, and the answers as they came."""
    server, seen = Server(client_manager=SimpleClientManager(), strategy=strategy), foreign.Seen()
    server.set_max_workers(1)  # the grid answers one message after the other

    def server_fn(context: Context) -> ServerAppComponents:
        return ServerAppComponents(server=server, config=ServerConfig(num_rounds=rounds))

    def look(reply: Any) -> Any:
        seen(copy.copy(reply))
        return reply if spoil is None else spoil(reply)

    grid = Older(app, 2, config, folder, look)
    ServerApp(server_fn=server_fn)(grid, Context(1, 0, {}, RecordDict(), config))
    found = map(torch.tensor, parameters_to_ndarrays(server.parameters))
    return {str(at): tensor for at, tensor in enumerate(found)}, seen


def sent(strategy: Kept, build: type[nn.Module] = Net) -> list[Tree]:
    return [
        dict(zip(build().state_dict(), map(torch.tensor, parameters_to_ndarrays(parameters)), strict=True))
        for parameters, _, _ in strategy.results
    ]


def modern(folder: Path, config: dict[str, Any], loop: Any = foreign.plain) -> list[Tree]:
    """The same clients as an app of the Message API: what left them."""
    seen = foreign.Seen()
    foreign.run(foreign.make([Defend()], loop), folder, config, tamper=seen)
    return [foreign.tree(seen.trained(node)[0]["arrays"]) for node in (100, 101)]


def guarded(model: nn.Module, message: Any, context: Context) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with protected(message, context, model) as guard:
        for x, y in batches(int(context.node_config["partition-id"])):
            guard.step(x, y, nn.functional.cross_entropy, optimizer)


def equal(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("defenses", "inside"), [("dgp", False), ("priprune", True)])
def test_what_leaves_is_what_leaves_an_app_of_the_message_api(defenses: str, inside: bool, tmp_path: Path) -> None:
    config = {"defenses": defenses}
    strategy, errors = federate(make(guarded=inside, mods=[Defend()]), tmp_path / "a", config)
    assert not errors
    want = modern(tmp_path / "b", config, guarded if inside else foreign.plain)
    bare = sent(federate(make(), tmp_path / "c", {})[0])
    for found, expected, plain in zip(sent(strategy), want, bare, strict=True):
        assert equal(found, expected) and not equal(found, plain)


def test_each_example_is_clipped_and_the_noise_is_there(tmp_path: Path) -> None:
    """Defenses of single examples see the module's names: with a clip bound near zero only noise moves a weight."""
    config = {"defenses": "dp-sgd", "dp-sgd.clip": 1e-6, "dp-sgd.noise-multiplier": 1.0, "privacy.epsilon-budget": 1e9}
    strategy, errors = federate(make(guarded=True, mods=[Defend()]), tmp_path, config)
    assert not errors
    torch.manual_seed(0)
    start = dict(Net().state_dict())
    for tree in sent(strategy):
        moved = torch.cat([(tree[name] - start[name]).flatten() for name in start]).double()
        assert 0 < float(moved.std()) < 1e-6  # 4 steps x rate 0.1 x noise 1e-6 / 8 examples: 2.5e-8


def test_only_listed_numbers_leave(tmp_path: Path) -> None:
    strategy, errors = federate(
        make(mods=[Defend(metrics=("loss", "accuracy"))]), tmp_path, {"defenses": "none"}, evaluate=1.0
    )
    assert not errors
    assert [told[1:] for told in strategy.results] == [(32, {"loss": 0.25})] * 2
    assert strategy.losses == [(0.5, 32, {"accuracy": 0.75})] * 2


def test_an_evaluation_without_a_listed_loss_is_refused_and_says_what_to_write(tmp_path: Path) -> None:
    strategy, errors = federate(make(mods=[Defend()]), tmp_path, {"defenses": "dgp"}, evaluate=1.0)
    assert len(strategy.results) == 2 and len(errors) == 2 and not strategy.losses
    assert "Defend(metrics=('loss',))" in errors[0] and "fraction_evaluate=0.0" in errors[0]


def test_a_clients_own_parameters_stay(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="initial_parameters="):
        federate(make(mods=[Defend()]), tmp_path, {"defenses": "dgp"}, initial_parameters=None)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(x.flatten(1)))


def test_batch_norm_without_names_is_refused(tmp_path: Path) -> None:
    app = make(Normed, mods=[Defend()])
    strategy, errors = federate(app, tmp_path, {"defenses": "dgp"}, build=Normed)
    assert not strategy.results and len(errors) == 2 and "int64 and changed" in errors[0]


def test_training_beside_the_guard_is_refused(tmp_path: Path) -> None:
    strategy, errors = federate(make(mods=[Defend()]), tmp_path, {"defenses": "priprune"})
    assert not strategy.results and "guard = protected(" in errors[0]


def answer(code: int = 0, **metrics: Any) -> RecordDict:
    return RecordDict(
        {
            "fitres.parameters": ArrayRecord(),
            "fitres.num_examples": MetricRecord({"num_examples": 32}),
            "fitres.metrics": ConfigRecord(metrics),
            "fitres.status": ConfigRecord({"code": code, "message": "/home/me"}),
        }
    )


def test_there_and_back() -> None:
    found = opened(answer(loss=0.5, flag=True, path="/home"), "train")
    assert dict(found["metrics"]) == {"num-examples": 32, "loss": 0.5}
    back = closed(found, "train")
    assert dict(back["fitres.metrics"]) == {"loss": 0.5} and back["fitres.status"]["message"] == ""
    assert dict(back["fitres.num_examples"]) == {"num_examples": 32}


def test_an_answer_that_is_not_ok_tells_no_more_than_that() -> None:
    with pytest.raises(DefenseError, match="not OK") as caught:
        opened(answer(code=5), "train")
    assert "/home" not in str(caught.value)


def test_an_answer_without_a_count_does_not_leave() -> None:
    with pytest.raises(ConfigError, match="num-examples"):
        closed(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), "train")


def test_names_by_position_are_those_of_the_state_dict_or_of_the_parameters() -> None:
    model = Normed()
    state, params = list(model.state_dict()), [name for name, _ in model.named_parameters()]
    ones = torch.ones(1)
    assert positions(model, {str(i): ones for i in range(7)}) == {name: str(i) for i, name in enumerate(state)}
    assert positions(model, {str(i): ones for i in range(4)}) == {name: str(i) for i, name in enumerate(params)}
    assert positions(model, {"fc.weight": ones}) == {name: name for name in state}
    with pytest.raises(ConfigError, match="5 arrays without names"):
        positions(model, {str(i): ones for i in range(5)})
