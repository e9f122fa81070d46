"""An update that any image explains is explained by none: networks whose gradients hardly depend on the image."""

import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.matching import dummy_gradient, target_of
from prunella.attacks.engine.objectives import cosine, flatten
from prunella.attacks.engine.others import as_near, missed, missed_by_others
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.level import FITTED
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.public import digits
from prunella.tasks.task import ModuleTask, initial

DIGITS = digits()
SEVENS = torch.nonzero(DIGITS.y == 7).flatten()[:9]
OWN = PrivateBatch(DIGITS.x[SEVENS[:1]], DIGITS.y[SEVENS[:1]])


def task_of(activation: type[nn.Module]) -> ModuleTask:
    torch.manual_seed(0)
    sizes = ((1, 2), (12, 2), (12, 1))
    layers = [each for inputs, stride in sizes for each in (nn.Conv2d(inputs, 12, 5, stride, 2), activation())]
    return ModuleTask("net", (1, 8, 8), 10, nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 10)))


def view_of(task: ModuleTask) -> ServerView:
    return undefended_view(task, *initial(task, 0), OWN)


def found(x: torch.Tensor) -> Reconstruction:
    return Reconstruction(x, OWN.y, 0.0, 1)


@pytest.mark.parametrize(("activation", "most"), [(nn.Softplus, FITTED), (nn.Sigmoid, EXPLAINED), (nn.SiLU, FITTED)])
def test_what_another_digit_of_the_class_explains_as_well_is_no_explanation(
    activation: type[nn.Module], most: float
) -> None:
    task = task_of(activation)
    view = view_of(task)
    target = target_of(view, task.build(), True, 1)
    other = [missed(target, DIGITS.x[at : at + 1], OWN.y) for at in SEVENS[1:].tolist()]
    assert max(other) < most, "by its objective any of them explains the update"
    assert all(as_near(view, task, found(DIGITS.x[at : at + 1])) for at in SEVENS[1:].tolist())
    assert not as_near(view, task, found(OWN.x)), "the client's own image explains it far better"
    noise = torch.randn(OWN.x.shape, generator=torch.Generator().manual_seed(0))
    assert not as_near(view, task, found((OWN.x + 0.01 * noise).clamp(0, 1))), "and so does one that is 40 dB near"


def test_pictures_turned_miss_about_what_other_digits_miss() -> None:
    for activation in (nn.Softplus, nn.Tanh, nn.ReLU):
        task = task_of(activation)
        target = target_of(view_of(task), task.build(), True, 1)
        other = torch.tensor([missed(target, DIGITS.x[at : at + 1], OWN.y) for at in SEVENS[1:].tolist()])
        assert 1 / 4 < missed_by_others(target, OWN.x, OWN.y) / float(other.median()) < 4


def test_a_flat_picture_is_an_explanation_where_it_is_the_client_s_and_only_there() -> None:
    for level in (0.0, 0.5, 1.0):
        flat = torch.full((1, 1, 8, 8), level)
        for activation in (nn.ReLU, nn.Sigmoid):
            task = task_of(activation)
            own = undefended_view(task, *initial(task, 0), PrivateBatch(flat, OWN.y))
            assert not as_near(own, task, found(flat)) and as_near(view_of(task), task, found(flat))


def test_a_table_of_values_is_held_against_others() -> None:
    torch.manual_seed(0)
    x, other = torch.rand(2, 1, 12, 1, 1)
    for activation, hidden in ((nn.ReLU, nn.Identity), (nn.Sigmoid, nn.Sigmoid)):
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(12, 20), activation(), nn.Linear(20, 20), hidden(), nn.Linear(20, 10)
        )
        task = ModuleTask("net", (12, 1, 1), 10, net)
        view = undefended_view(task, *initial(task, 0), PrivateBatch(x, OWN.y))
        assert not as_near(view, task, found(x)) and as_near(view, task, found(other))


def test_what_cannot_be_held_against_the_update_is_not_asked() -> None:
    task = task_of(nn.Sigmoid)
    view, x = view_of(task), DIGITS.x[:1]
    assert not as_near(view, task, Reconstruction(x, None, 0.0, 1))
    assert not as_near(view, task, Reconstruction(DIGITS.x[:2], DIGITS.y[:2], 0.0, 1))


def test_somebody_s_own_answer_is_compared_or_left_but_never_an_error() -> None:
    task = task_of(nn.Sigmoid)
    view, own, x = view_of(task), OWN.y, DIGITS.x[1:2]

    def near(x: torch.Tensor, y: torch.Tensor) -> bool:
        return as_near(view, task, Reconstruction(x, y, 0.0, 1))

    assert near(x, own) and near(x.double(), own.int()) and near(x.clone().requires_grad_(), own)
    assert not near(OWN.x.double(), own)
    outside = [own + 10, own - 10, own[:0], own[:, None], torch.eye(10)[own]]
    assert not any(near(x, y) for y in outside) and not near(x[:0], own[:0])
    assert not near(x[..., :3, :3], own) and not near(x.repeat(1, 3, 1, 1), own) and not near(x[0], own)


@pytest.mark.parametrize("steps", [1, 2])
def test_without_a_graph_the_same_is_missed(steps: int) -> None:
    task, batch = task_of(nn.Tanh), PrivateBatch(DIGITS.x[:2], DIGITS.y[:2])
    view = dataclasses.replace(undefended_view(task, *initial(task, 0), batch), steps=steps, batch_size=2 // steps)
    target = dataclasses.replace(target_of(view, task.build(), True, 2), network=None)
    with_graph = flatten(dummy_gradient(target, batch.x, batch.y)).detach()
    assert torch.equal(flatten(dummy_gradient(target, batch.x, batch.y, graph=False)).detach(), with_graph)
    assert missed(target, batch.x, batch.y) == float(cosine(with_graph, target.flat, target.support)[0])
