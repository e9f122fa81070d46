"""What a defense costs: bytes, time, ε; a withheld run has no accuracy."""

from typing import Any

import pytest

import prunella.client.app
from prunella.benchmarks.papers.defended import TRAINING, behind, training
from prunella.benchmarks.scenarios import price as costing
from prunella.benchmarks.scenarios.price import price
from prunella.core.errors import DefenseError

RUN = training("cnn", clients=2, rounds=3, local_steps=1, batch_size=8, learning_rate=0.1)


def paid(chain: str) -> dict[str, float]:
    return price({**behind(RUN, "digits", chain), "draws": "board", "attack": "strongest"}, 0, None)[TRAINING]


def test_a_defense_is_priced_beside_none() -> None:
    plain, pruned = paid("none"), paid("dgp")
    assert pruned["megabytes_up"] < 0.6 * plain["megabytes_up"] and plain["failures"] == plain["withheld"] == 0
    assert pruned["time"] > 0 and "epsilon" not in pruned and "epsilon" in paid("dp-sgd")


def test_a_defense_that_withholds_while_it_is_timed_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def withheld(*arguments: Any) -> Any:
        raise DefenseError("withheld")

    monkeypatch.setattr(costing, "seconds_ratio", withheld)
    found = paid("dgp")
    assert found["accuracy"] > 0 and "time" not in found


def test_a_federation_in_which_every_client_withholds_has_no_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_finite(*arguments: Any) -> Any:
        raise DefenseError("chain: gradient is not finite")

    monkeypatch.setattr(prunella.client.app, "local_update", not_finite)
    found = paid("dgp")
    assert found["withheld"] == 1.0 and set(found) == {"withheld", "time"}
