"""Layers stack and hand on."""

import pytest
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp.strategy import FedAdam, FedAvg

from prunella.core.errors import ConfigError
from prunella.flower.layer import Layer
from tests.flower.foreign import make, run, tree


def test_two_layers_that_do_nothing_change_nothing(tmp_path) -> None:
    bare = tree(run(make([]), tmp_path / "a", {}, FedAdam(eta=0.3), rounds=2).arrays)
    twice = Layer(Layer(FedAdam(eta=0.3)))
    assert twice.eta == 0.3
    found = tree(run(make([]), tmp_path / "b", {}, twice, rounds=2).arrays)
    assert all((bare[name] == found[name]).all() for name in bare)


def test_only_strategies_that_flower_starts_can_be_wrapped() -> None:
    class Own(FedAvg):
        def start(self, *args, **kwargs):
            raise AssertionError

    with pytest.raises(ConfigError, match="start"):
        Layer(Own())
    with pytest.raises(ConfigError, match="not str"):
        Layer("fedavg")  # type: ignore[arg-type]
    assert isinstance(Layer(OlderFedAvg()), OlderStrategy)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        Layer(FedAvg()).nothing  # noqa: B018
