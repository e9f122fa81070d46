import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks import ATTACKS
from prunella.attacks.score.control import matched_view, undefended_view
from prunella.attacks.score.leakage import psnr, score
from prunella.attacks.spear import Spear, agreement
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.privacy.dgp import dual_mask
from prunella.tasks.models.layers import Shape, dense, with_head
from prunella.tasks.task import Task, initial
from tests.attacks.conftest import SHAPES

ATTACK = ATTACKS["spear"]


def mlp(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), dense([shape[0] * shape[1] * shape[2], 512, 128, classes]))


def smooth(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 64), nn.Tanh(), nn.Linear(64, classes))


def unbiased(shape: Shape, classes: int) -> nn.Module:
    first = nn.Linear(shape[0] * shape[1] * shape[2], 64, bias=False)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(64, classes))


def small_lenet(shape: Shape, classes: int) -> nn.Module:
    """A convolution whose output is larger than the image, and a hidden layer under a ReLU."""
    front = nn.Sequential(nn.Conv2d(shape[0], 12, 3, stride=2, padding=1), nn.Tanh())
    return with_head(front, shape, [256], classes)


def run(view: ServerView, task: Task, attack: Spear | None = None) -> Reconstruction:
    return ATTACK.reconstruct(view, task, attack or Spear(), stream(0, purpose="attack"))


def least(found: Reconstruction, truth: PrivateBatch) -> float:
    """PSNR of the image that was rebuilt worst."""
    pairs = score(found, truth).assignment
    assert len(pairs) == len(truth.y)
    return min(psnr(truth.x[[t for t, _ in pairs]], found.x[[g for _, g in pairs]]))


def named(model: str, shape: Shape) -> Task:
    return Task(f"tests.attacks.test_spear:{model}", shape, 10)


def view_of(task: Task, *batches: PrivateBatch) -> ServerView:
    """What arrives of one step on each batch: a difference of rounded weights, and nothing about labels."""
    params, buffers = initial(task, 0)
    size = len(batches[0].y)
    empty = {name: torch.zeros_like(p) for name, p in params.items()}
    view = ServerView(params, empty, buffers=buffers, steps=len(batches), batch_size=size, learning_rate=0.1)
    return dataclasses.replace(matched_view(task, view, batches), num_examples=size * len(batches))


@pytest.mark.parametrize(
    "data, size", [("mnist", 8), ("cifar10", 4), pytest.param("cifar10", 8, marks=pytest.mark.slow)]
)
def test_every_image_of_a_batch_is_rebuilt_with_its_label_and_is_none_of_another_batch(
    data: str, size: int, photographs
) -> None:
    both, task = photographs(data, 2 * size), named("mlp", SHAPES[data])
    truth, other = PrivateBatch(both.x[:size], both.y[:size]), PrivateBatch(both.x[size:], both.y[size:])
    found = run(view_of(task, truth), task)
    right, wrong = score(found, truth), score(found, other)
    assert least(found, truth) > 60 and right.label_accuracy == 1.0 and found.explained
    assert wrong.psnr.mean < 20
    assert score(run(view_of(task, other), task), truth).psnr.mean < 20


@pytest.mark.slow
@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_sixteen_photographs(data: str, photographs) -> None:
    truth, task = photographs(data, 16), named("mlp", SHAPES[data])
    found = run(view_of(task, truth), task)
    assert least(found, truth) > 40 and score(found, truth).label_accuracy == 1.0


def test_several_steps_are_one_sum_of_all_their_images(photographs) -> None:
    both, task = photographs("mnist", 8), named("mlp", SHAPES["mnist"])
    batches = [PrivateBatch(both.x[i : i + 4], both.y[i : i + 4]) for i in (0, 4)]
    found = run(view_of(task, *batches), task)
    assert least(found, both) > 40 and score(found, both).label_accuracy == 1.0


def test_without_a_number_of_images_the_rank_tells_it(photographs) -> None:
    truth, task = photographs("mnist", 5), named("mlp", SHAPES["mnist"])
    view = dataclasses.replace(view_of(task, truth), batch_size=None, num_examples=None)
    found = run(view, task)
    assert found.x.shape == truth.x.shape and least(found, truth) > 60


@pytest.mark.parametrize("kept", ["mask", "dgp"])
def test_what_did_not_arrive_is_filled_in(kept: str, photographs) -> None:
    """A random mask of 0.7 of the weights, known; DGP's middle fifth, of which only the values arrive."""
    truth, task = photographs("mnist", 4), named("mlp", SHAPES["mnist"])
    view, g = view_of(task, truth), stream(1, purpose="mask")
    some = {n: torch.rand(u.shape, generator=g) < 0.7 if u.dim() > 1 else u == u for n, u in view.update.items()}
    mask = some if kept == "mask" else {n: dual_mask(u, u == u, 0.05, 0.75) for n, u in view.update.items()}
    sent = {n: u * mask[n] for n, u in view.update.items()}
    view = dataclasses.replace(view, update=sent, shared=mask if kept == "mask" else None)
    assert least(run(view, task), truth) > 60


@pytest.mark.slow
def test_inputs_behind_a_convolution_are_matched_image_by_image(photographs) -> None:
    truth, task = photographs("mnist", 4), named("small_lenet", SHAPES["mnist"])
    found = run(view_of(task, truth), task, Spear(restarts=1))
    assert least(found, truth) > 40 and score(found, truth).label_accuracy == 1.0


@pytest.mark.parametrize(
    "model, words", [("smooth", "needs a ReLU"), ("unbiased", "needs a bias"), ("cnn", "needs a ReLU")]
)
def test_what_it_cannot_take_apart_is_refused(model: str, words: str, batch) -> None:
    task = Task("cnn", (1, 8, 8), 10) if model == "cnn" else named(model, (1, 8, 8))
    view = undefended_view(task, *initial(task, 0), batch(0, 2))
    with pytest.raises(AttackError, match=words):
        run(view, task)


def test_more_images_than_pixels_several_steps_behind_a_convolution_and_decay_are_refused(batch) -> None:
    task = named("mlp", (1, 8, 8))
    with pytest.raises(AttackError, match="cannot be told apart"):
        run(view_of(task, batch(0, 70)), task, Spear(max_images=128))
    view = view_of(task, batch(0, 2), batch(2, 2))
    with pytest.raises(AttackError, match="weight decay"):
        run(dataclasses.replace(view, weight_decay=0.1), task)
    task = named("small_lenet", (1, 8, 8))
    with pytest.raises(AttackError, match="one step"):
        run(view_of(task, batch(0, 2), batch(2, 2)), task)


def test_on_other_weights_the_zeros_do_not_agree(photographs) -> None:
    """The images come out of the update alone; what they would do on these weights shows that something is wrong."""
    truth, task = photographs("mnist", 4), named("mlp", SHAPES["mnist"])
    view = view_of(task, truth)
    assert not run(dataclasses.replace(view, params=initial(task, 1)[0]), task).explained


def test_the_score_counts_units_that_are_off_in_both() -> None:
    weight, bias = torch.eye(3), torch.zeros(3)
    inputs = torch.tensor([[1.0, -1.0, 2.0], [-1.0, 1.0, 1.0]])
    zeros = torch.tensor([[False, True], [True, False], [False, True]])
    assert agreement(weight, bias, inputs, zeros).tolist() == pytest.approx([1.0, 2 / 3])
