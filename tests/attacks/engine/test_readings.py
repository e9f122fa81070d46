"""Whatever loss a client has, and whatever part of the update it sends: its true image misses nothing of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.others import missed
from prunella.attacks.engine.readings import ANY_LOSS, MOVED, logit_bias, readings
from prunella.attacks.score.level import FITTED
from prunella.core.randomness import stream
from prunella.core.types import ServerView
from prunella.tasks.task import ModuleTask, Task, initial

Loss = Callable[[Tensor, Tensor], Tensor]


def several_labels(logits: Tensor, y: Tensor) -> Tensor:
    labels = one_hot(torch.stack([y, (y + 3) % 10, (y + 5) % 10]), 10).sum(0).float()
    return binary_cross_entropy_with_logits(logits, labels)


def focal(logits: Tensor, y: Tensor) -> Tensor:
    right = cross_entropy(logits, y)
    return (1 - (-right).exp()) ** 2 * right


def mixup(logits: Tensor, y: Tensor) -> Tensor:
    return 0.6 * cross_entropy(logits, y) + 0.4 * cross_entropy(logits, (y + 3) % 10)


def smoothing(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits, y, label_smoothing=0.1)


def taught(logits: Tensor, y: Tensor) -> Tensor:
    """Distillation at a temperature of 4, as of a teacher that is not sure."""
    return cross_entropy(logits / 4, torch.softmax(one_hot(y, 10) * 2.0, 1))


def squares(logits: Tensor, y: Tensor) -> Tensor:
    return (logits - one_hot(y, 10)).square().mean()


UNLIKE: list[Loss] = [several_labels, mixup, squares]
LOSSES: list[Loss] = [*UNLIKE, focal, smoothing, taught]


def view_of(task: Task, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> ServerView:
    """What a server sees of one step of SGD on one image under ``loss``."""
    params, buffers = initial(task, 0)
    weights = {name: p.clone().requires_grad_() for name, p in params.items()}
    value = loss(functional_call(task.build(), (weights, buffers), (x,)), y)
    found = torch.autograd.grad(value, list(weights.values()))
    update = {name: -0.1 * g for name, g in zip(weights, found, strict=True)}
    return ServerView(params, update, buffers=buffers, num_examples=1, steps=1, batch_size=1, learning_rate=0.1)


def largest(view: ServerView) -> ServerView:
    """``view`` of an app that sends the largest fifth of each tensor, and says nothing of it."""
    few = {}
    for name, values in view.update.items():
        least = values.abs().flatten().quantile(0.8)
        few[name] = torch.where(values.abs() >= least, values, 0.0)
    return replace(view, update=few, shared={name: torch.ones_like(t, dtype=torch.bool) for name, t in few.items()})


@pytest.mark.parametrize("loss", LOSSES)
def test_the_true_image_misses_nothing_under_any_loss(task: Task, batch, loss: Loss) -> None:  # noqa: ANN001
    own, other = batch(0, 1), batch(1, 1)
    target = target_of(view_of(task, own.x, own.y, loss), task.build(), True, 1)
    read = readings(target, own.x)[ANY_LOSS]
    assert missed(read, own.x, own.y) < 1e-9 < 1e-3 < missed(read, other.x, own.y)
    if loss in UNLIKE:  # the others of one image are nearly a multiple of cross-entropy's
        assert missed(target, own.x, own.y) > FITTED


def test_a_descent_under_any_loss_has_the_slope_on_the_image_that_differences_have(task: Task, batch) -> None:  # noqa: ANN001
    """The logits' bias has a gradient that no image moves: the descents ended there in an error that nobody saw."""
    own, at = batch(0, 1), torch.full((1, *task.shape), 0.4)
    read = readings(target_of(view_of(task, own.x, own.y, several_labels), task.build(), True, 1), own.x)[ANY_LOSS]
    doubled = {name: p.double() for name, p in read.params.items()}
    target = replace(
        read, params=doubled, flat=read.flat.double(), slope=read.slope.double(), module=read.module.double()
    )  # type: ignore[union-attr]
    flat, pullback = linearised(target, at.double(), own.y)
    draw = torch.randn(flat.shape, generator=stream(0, purpose="slope"), dtype=torch.double)
    found, step = pullback(draw)[0], torch.zeros_like(at, dtype=torch.double)
    step[0, 0, 3, 4] = 1e-5
    either = (linearised(target, at.double() + way * step, own.y)[0] @ draw for way in (1, -1))
    assert float(found[0, 0, 3, 4]) == pytest.approx(float(next(either) - next(either)) / 2e-5, rel=1e-4, abs=1e-9)


def test_signs_are_the_gradient_of_no_loss(batch) -> None:  # noqa: ANN001
    torch.manual_seed(0)
    task, own = ModuleTask("linear", (1, 8, 8), 10, nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), batch(0, 1)
    view = view_of(task, own.x, own.y)
    signs = replace(view, update={name: 1e-3 * t.sign() for name, t in view.update.items()})
    assert ANY_LOSS in readings(target_of(view, task.build(), True, 1), own.x)
    assert readings(target_of(signs, task.build(), True, 1), own.x) == {}


def test_what_an_app_does_not_send_is_not_taken_for_zero(task: Task, batch) -> None:  # noqa: ANN001
    own = batch(0, 1)
    view = largest(view_of(task, own.x, own.y))
    target = target_of(view, task.build(), True, 1)
    assert missed(readings(target, own.x)[MOVED], own.x, own.y) < 1e-9 < FITTED < missed(target, own.x, own.y)
    assert ANY_LOSS not in readings(target, own.x), "a slope of zero may not have been sent"


class Added(nn.Module):
    """Logits to which a parameter without a layer is added; a hidden layer has as many units as there are classes."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 10)
        self.out = nn.Linear(10, 10, bias=False)
        self.beta = nn.Parameter(torch.zeros(10)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        logits = self.out(torch.tanh(self.hidden(x.flatten(1))))
        return logits if self.beta is None else logits + self.beta


@pytest.mark.parametrize("bias", [True, False])
def test_the_bias_is_told_by_its_gradient_and_not_by_its_name(batch, bias: bool) -> None:  # noqa: ANN001
    torch.manual_seed(0)
    task, own = ModuleTask("added", (1, 8, 8), 10, Added(bias)), batch(0, 1)
    target = target_of(view_of(task, own.x, own.y, several_labels), task.build(), True, 1)
    assert logit_bias(target, own.x) == ("beta" if bias else None)
    assert (ANY_LOSS in readings(target, own.x)) is bias
