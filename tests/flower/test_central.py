"""Flower's central differential privacy beside layers: what one client can move, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping as OlderClipping
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.core.errors import ConfigError
from prunella.flower.central import wrapper_inside
from prunella.flower.defend import Defend
from prunella.flower.loop import protected
from prunella.flower.prune import Prune
from prunella.flower.record import Record, Training
from prunella.flower.robust import Robust
from prunella.tasks.task import Task
from tests.flower.foreign import RATE, Net, load, make, run, tree

CLIENTS, NORM = 4, 0.01
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}
TASK = Task("tests.flower.foreign:Net", (1, 8, 8), 10)
SERVER = [DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyServerSideAdaptiveClipping]


def clipped(inner: Strategy) -> Strategy:
    """Flower's wrapper, with next to no noise."""
    return DifferentialPrivacyServerSideFixedClipping(inner, 1e-9, NORM, CLIENTS)


def plain() -> Strategy:
    return FedAvg(**QUIET)


def moved_by_one(strategy: Callable[[], Strategy], folder: Path) -> float:
    """How far the model of a round moves where one client has other data."""

    def train(other: bool) -> Callable[[nn.Module, Message, Context], None]:
        def loop(model: nn.Module, message: Message, context: Context) -> None:
            client = int(context.node_config["partition-id"])
            guard, optimizer = protected(message, context, model), torch.optim.SGD(model.parameters(), lr=RATE)
            x, y = load(client)
            if other and not client:
                x, y = 30 * x, 0 * y
            for images, labels in zip(x.split(8), y.split(8), strict=True):
                guard.step(images, labels, cross_entropy, optimizer)

        return loop

    found = [
        tree(run(make([Defend()], train(other)), folder / str(other), {"defenses": "none"}, strategy(), 1, 4).arrays)
        for other in (False, True)
    ]
    return sum(float((t.double() - found[1][n].double()).square().sum()) for n, t in found[0].items()) ** 0.5


def test_one_client_moves_no_more_than_the_noise_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clipped answers are at most twice the norm apart: so it is under a mask that nobody's data chose. What is
    refused moves further, if it is let."""
    bound = 2 * NORM / CLIENTS
    assert moved_by_one(lambda: clipped(plain()), tmp_path / "bare") < bound
    assert moved_by_one(lambda: Prune(clipped(plain()), "random", rate=0.5), tmp_path / "random") < bound
    monkeypatch.setattr("prunella.flower.prune.wrapper_inside", lambda strategy: "")
    monkeypatch.setattr("prunella.flower.robust.wrapper_inside", lambda strategy: "")
    moving = {"adjust_interval": 1, "local_steps": 4, "train_first": 0.5}
    assert moved_by_one(lambda: Prune(clipped(plain()), "feddst", rate=0.5, **moving), tmp_path / "moving") > bound
    assert moved_by_one(lambda: Robust(clipped(plain())), tmp_path / "median") > bound


@pytest.mark.parametrize("wrap", SERVER, ids=lambda kind: kind.__name__)
def test_a_layer_that_makes_more_of_an_answer_refuses_the_wrapper_inside(wrap: type) -> None:
    def inner() -> Any:
        return wrap(plain(), noise_multiplier=0.1, num_sampled_clients=2, **fixed)

    fixed = {"clipping_norm": 1.0} if wrap is SERVER[0] else {}
    given: dict[str, Any] = {"public": load(9), "task": TASK}
    for scheme in ("prunefl", "feddst", "lotteryfl", "fed-ltp-iterative"):
        more = given if scheme == "fed-ltp-iterative" else {}
        with pytest.raises(ConfigError, match=f"{wrap.__name__} adds noise .* {scheme} lets one client"):
            Prune(inner(), scheme, rate=0.5, **more)
    with pytest.raises(ConfigError, match="adgp lets one client"):
        Prune(inner(), "random", rate=0.5, run_config={"defenses": "adgp"})
    with pytest.raises(ConfigError, match="Robust lets one client"):
        Robust(Prune(inner(), "random", rate=0.5))
    for scheme, rate in (("random", 0.5), ("magnitude", 0.5), ("prunefl", 0.0)):
        Prune(inner(), scheme, rate=rate)


def test_the_older_api_s_wrapper_is_known_too() -> None:
    inner: Any = OlderClipping(OlderFedAvg(), 1.0, 1.0, 2)
    with pytest.raises(ConfigError, match="Robust lets one client"):
        Robust(inner)
    with pytest.raises(ConfigError, match="prunefl lets one client"):
        Prune(inner, "prunefl", model=Net())
    assert wrapper_inside(FedAvg(**QUIET)) == wrapper_inside(Prune(plain(), "random")) == ""


@pytest.mark.parametrize("wrap", [*SERVER, DifferentialPrivacyClientSideAdaptiveClipping], ids=lambda k: k.__name__)
@pytest.mark.parametrize("layer", ["Prune", "Record(Prune)", "Robust"])
def test_a_wrapper_around_is_refused_before_a_client_is_asked(layer: str, wrap: type, tmp_path: Path) -> None:
    """Flower's wrappers read answers themselves, and those of Prune's clients are coded from the second round on."""
    fixed = {"clipping_norm": 1.0} if wrap is SERVER[0] else {}
    pruned = Robust(plain()) if layer == "Robust" else Prune(plain(), "magnitude", rate=0.5)
    inner = Record(pruned, tmp_path / "traces", TASK, Training(RATE, 8)) if layer == "Record(Prune)" else pruned
    asked: list[Message] = []
    app = make([Defend()], lambda model, message, context: asked.append(message))
    told = "leave one of the two out" if layer == "Robust" else rf"write Prune\({wrap.__name__}\(...\)\)"
    strategy = wrap(inner, noise_multiplier=0.1, num_sampled_clients=2, **fixed)
    with pytest.raises(ConfigError, match=told):
        run(app, tmp_path, {"defenses": "none"}, strategy)
    assert not asked
