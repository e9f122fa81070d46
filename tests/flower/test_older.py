"""Layers around strategies of Flower's older API: what they do around one of the Message API, to the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.server.strategy import FedAdam, FedAvg, FedAvgM, Strategy
from flwr.serverapp.strategy import FedAvg as NewFedAvg

from prunella.core.trees import Tree
from prunella.flower.defend import Defend
from prunella.flower.layer import Layer
from prunella.flower.older import Outer
from prunella.flower.prune import Prune
from prunella.tasks.task import Task
from tests.flower import foreign
from tests.flower.foreign import Net
from tests.flower.test_legacy import make, serve, start

NAMES = dict(enumerate(Net().state_dict()))
TASK = Task("tests.flower.foreign:Net", (1, 8, 8), 10)


def older(kind: type[Strategy] = FedAvg, build: Any = Net, **more: Any) -> Any:
    return kind(**{"initial_parameters": start(build), "fraction_evaluate": 0.0, "min_available_clients": 2} | more)


def named(tree: Tree) -> Tree:
    return {NAMES[int(at)]: tensor for at, tensor in tree.items()}


def equal(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def modern(folder: Path, layer: Any, config: dict[str, Any], rounds: int, loop: Any = foreign.plain) -> Tree:
    mods = [Defend()] if config else []
    return foreign.tree(foreign.run(foreign.make(mods, loop), folder, config, layer, rounds=rounds).arrays)


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedAvgM])
def test_at_rate_0_the_result_is_the_strategys_own(kind: type[Strategy], tmp_path: Path) -> None:
    more = {"server_momentum": 0.5} if kind is FedAvgM else {}
    bare, _ = serve(make(), older(kind, **more), tmp_path / "a", {}, rounds=3)
    layer = Layer(Prune(older(kind, **more), "magnitude", rate=0.0, model=Net()))
    found, _ = serve(make(), layer, tmp_path / "b", {}, rounds=3)
    assert equal(bare, found) and not equal(found, named(bare))


@pytest.mark.parametrize("scheme", ["magnitude", "synflow"])
@pytest.mark.parametrize("defenses", ["", "dgp"])
def test_it_prunes_as_around_a_strategy_of_the_message_api(scheme: str, defenses: str, tmp_path: Path) -> None:
    config, given = ({"defenses": defenses} if defenses else {}), {"model": Net(), "shape": (1, 8, 8)}
    layer: Any = Prune(older(), scheme, rate=0.5, **given)
    found, seen = serve(make(mods=[Defend()] if defenses else []), layer, tmp_path / "a", config, rounds=3)
    assert not seen.errors and isinstance(layer, Outer) and 0.49 < layer.density < 0.82
    assert layer.strategy.fraction_fit == 1.0, "settings of the inner strategy can be read"
    new = Prune(NewFedAvg(fraction_evaluate=0.0), scheme, rate=0.5, **given)
    want = modern(tmp_path / "b", new, config, 3)
    assert layer.density == new.density
    for name, tensor in named(found).items():
        torch.testing.assert_close(tensor, want[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(tensor == 0, want[name] == 0)
    assert abs(layer.bytes_down / new.bytes_down - 1) < 0.01 and abs(layer.bytes_up / new.bytes_up - 1) < 0.01
