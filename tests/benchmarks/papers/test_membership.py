"""A cell of C4: nobody is asked about who is known, clients have few examples, and the control needs both attacks."""

from typing import Any

import torch

from prunella.benchmarks.papers import membership, tradeoff

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 2, "rounds": 2, "local_steps": 2}
TINY |= {"batch_size": 8, "learning_rate": 0.1, "images": 1, "iterations": 60, "scheme": "fedavg", "rate": 0.0}
TINY |= {"examples": 40, "defenses": "dp-sgd", "options": {"dp-sgd.noise-multiplier": 1.0}, "strength": 1.0}
TINY |= {"arm": "dp-sgd"}


def test_members_are_those_that_were_trained_on_and_no_candidate_is_known() -> None:
    members, outsiders, candidates, inside = membership.split(TINY, 0, None)
    own = torch.cat([tradeoff.examples_of(TINY, client, 0, None).x for client in (0, 1)]).flatten(1)
    known = {tuple(row) for row in torch.cat([members.x, outsiders.x]).flatten(1).tolist()}
    trained = {tuple(row) for row in own.tolist()}
    asked = [tuple(row) for row in candidates.x.flatten(1).tolist()]
    assert len(own) == 80 and len(members.y) == len(outsiders.y) == 20 and inside == 60
    assert all(row in trained for row in asked[:inside]) and not known & set(asked)
    assert not trained & set(asked[inside:])


def test_a_cell_has_an_auc_beside_accuracy_and_error() -> None:
    found = membership.membership(TINY, 0, None)["dp-sgd"]
    assert 0 <= found["auc"] <= 1 and 0 <= found["accuracy"] <= 1 and found["mse_strongest"] > 0


def test_the_control_is_one_for_all_strengths_and_needs_both_attacks() -> None:
    measure = membership.MEMBERSHIP
    assert measure.control_of(TINY) == measure.control_of({**TINY, "strength": 0.2}) != TINY
    good = {"psnr": 30.0, "auc": 0.6}
    assert membership.works({"control": good})
    assert not membership.works({"control": {**good, "auc": 0.5}})
    assert not membership.works({"control": {**good, "psnr": 10.0}})
