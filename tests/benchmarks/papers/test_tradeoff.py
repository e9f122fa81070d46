"""A cell that weighs accuracy against leakage: its attacks meet the client's own state, and its control succeeds."""

from typing import Any

import pytest
import torch

from prunella.benchmarks.papers import tradeoff
from prunella.core.trees import full_mask
from prunella.tasks.data import make_task

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 2, "rounds": 2, "local_steps": 2}
TINY |= {"batch_size": 8, "learning_rate": 0.1, "images": 1, "iterations": 120, "scheme": "snip", "rate": 0.3}
TINY |= {"defenses": "largest", "options": {"largest.rate": 0.4}, "arm": "largest 40 %"}


@pytest.fixture(scope="module")
def defended() -> tradeoff.AfterTraining:
    return tradeoff.federation(TINY, 0, None)


def test_the_state_is_what_the_client_kept_and_the_mask_the_schemes(defended: tradeoff.AfterTraining) -> None:
    share = tradeoff.withheld(defended.state, defended.saved.mask)["withheld"]
    assert 0.39 < share < 0.41 and defended.mib_up > 0 and 0 <= defended.accuracy <= 1
    task = make_task("cnn", "digits", None)
    own = tradeoff.examples_of(TINY, 0, 0, None)
    one = tradeoff.next_sender(TINY, task, defended, own)
    held = defended.state["largest"]["held"]
    assert all(torch.equal(one.state["largest"]["held"][name], held[name]) for name in held)
    assert one.received.mask.keys() == defended.saved.mask.keys()


def test_a_control_is_dense_undefended_and_rebuilt() -> None:
    settings = tradeoff.TRADEOFF.control_of({**TINY, "kappa": 50})
    assert (settings["scheme"], settings["defenses"], settings["options"]) == ("fedavg", "none", {})
    found = tradeoff.tradeoff(settings, 0, None)
    assert tradeoff.TRADEOFF.works(found) and "withheld" not in found["control"] and "kappa" not in settings


def test_nothing_is_withheld_without_a_defense_that_keeps_it() -> None:
    assert tradeoff.withheld({}, full_mask({"w": torch.zeros(3)})) == {}
    assert tradeoff.withheld({"x": {"held": {"w": torch.tensor([True, False])}}}, {"w": torch.ones(2).bool()}) == {
        "withheld": 0.5
    }
