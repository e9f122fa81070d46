import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.label import GREY, Label
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import label_accuracy, score
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView

ATTACK = ATTACKS["label"]


def run(view: ServerView, task, attack: Label | None = None) -> Reconstruction:
    return ATTACK.reconstruct(view, task, attack or Label(), stream(0, purpose="attack"))


@pytest.mark.parametrize("which, floor", [("fresh", 0.9), ("trained", 0.7)])
def test_names_the_labels_of_batches_better_than_chance_does(which, floor, task, batch, request) -> None:
    state, right, chance = request.getfixturevalue(which), [], []
    for i in range(8):
        truth = batch(16 * i, 16)
        found = run(undefended_view(task, *state, truth), task)
        right.append(label_accuracy(truth.y, found.y))
        chance.append(label_accuracy(truth.y, torch.randint(10, (16,), generator=stream(i, purpose="chance"))))
    assert sum(right) / 8 > max(floor, sum(chance) / 8 + 0.1)


def test_a_wrong_view_names_other_labels(task, fresh, batch) -> None:
    truth = batch(0, 1)
    other = PrivateBatch(truth.x, (truth.y + 3) % 10)
    assert torch.equal(run(undefended_view(task, *fresh, truth), task).y, truth.y)
    assert torch.equal(run(undefended_view(task, *fresh, other), task).y, other.y)


def test_says_nothing_of_the_pixels_and_can_be_scored(task, fresh, batch) -> None:
    truth = batch(0, 8)
    found = run(undefended_view(task, *fresh, truth), task)
    assert found.x.shape == (8, *task.shape) and bool((found.x == GREY).all()) and found.objective < 0.05
    leakage = score(found, truth)
    assert leakage.psnr.mean < leakage.psnr.other + 6 and leakage.label_accuracy == label_accuracy(truth.y, found.y)


def test_without_the_learning_rate_the_impact_rule_is_used(task, fresh, batch) -> None:
    view = undefended_view(task, *fresh, batch(0, 8))
    blind = dataclasses.replace(view, learning_rate=None)
    assert torch.equal(run(blind, task).y, run(view, task, Label(rule="impact")).y)


def test_grey_images_take_no_memory_by_their_number(task, fresh, batch) -> None:
    view = dataclasses.replace(undefended_view(task, *fresh, batch(0, 8)), num_examples=1000, batch_size=1000)
    found = run(view, task)
    assert found.x.shape == (1000, *task.shape) and found.x.untyped_storage().nbytes() < 100
