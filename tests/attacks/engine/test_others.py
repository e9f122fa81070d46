"""An update that any image explains is explained by none: networks whose gradients hardly depend on the image."""

import pytest
import torch
from torch import nn

from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.matching import target_of
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
