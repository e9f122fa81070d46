"""Whatever loss and optimizer a client has, and whatever its app sends: the true image misses nothing of an update that
is read so, and others do."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.others import missed, others_of
from prunella.attacks.engine.readings import (
    ANY_LOSS,
    MOVED,
    OPPOSITE,
    SCALES,
    SIGNS,
    WEIGHTS,
    at_once,
    less_weights,
    logit_bias,
    readings,
    signs,
)
from prunella.attacks.score.control import made_by
from prunella.attacks.score.level import FITTED
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
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


def read(view: ServerView, task: Task, x: Tensor) -> dict[str, Target]:
    """What else the update may be, by how it is read."""
    return {how: target for how, _, target in readings(view, target_of(view, task.build(), True, len(x)), x[:1])}


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
    view = view_of(task, own.x, own.y, loss)
    target, told = target_of(view, task.build(), True, 1), read(view, task, own.x)[ANY_LOSS]
    assert missed(told, own.x, own.y) < 1e-9 < 1e-3 < missed(told, other.x, own.y)
    if loss in UNLIKE:  # the others of one image are nearly a multiple of cross-entropy's
        assert missed(target, own.x, own.y) > FITTED


def test_a_descent_under_any_loss_has_the_slope_on_the_image_that_differences_have(task: Task, batch) -> None:  # noqa: ANN001
    """The logits' bias has a gradient that no image moves: the descents ended there in an error that nobody saw."""
    own, at = batch(0, 1), torch.full((1, *task.shape), 0.4)
    told = read(view_of(task, own.x, own.y, several_labels), task, own.x)[ANY_LOSS]
    doubled = {name: p.double() for name, p in told.params.items()}
    target = replace(
        told, params=doubled, flat=told.flat.double(), slope=told.slope.double(), module=told.module.double()
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
    assert ANY_LOSS in read(view, task, own.x)
    assert SIGNS in read(signs, task, own.x) and SIGNS not in read(view, task, own.x)
    all_moved = replace(view, update={name: 2e-3 * (t >= 0) - 1e-3 for name, t in view.update.items()})
    assert list(read(all_moved, task, own.x)) == [SIGNS]


def stepped(task: Task, x: Tensor, y: Tensor, optimizer: Callable[..., torch.optim.Optimizer]) -> ServerView:
    """What a server sees of one step of an optimizer, taking it for SGD: the difference of float32 weights."""
    view, module = view_of(task, x, y), task.build()
    module.load_state_dict(view.params, strict=False)
    taker = optimizer(module.parameters())
    cross_entropy(module(x), y).backward()
    taker.step()
    after = dict(module.named_parameters())
    return replace(view, update={name: after[name].detach() - p for name, p in view.params.items()})


def clipped(view: ServerView) -> ServerView:
    """``view`` of an app that clips values one by one, at their usual size."""
    return replace(view, update={name: u.clamp(-u.abs().mean(), u.abs().mean()) for name, u in view.update.items()})


OPTIMIZERS = [partial(torch.optim.AdamW, lr=1e-3), partial(torch.optim.RMSprop, lr=1e-3), partial(torch.optim.Adagrad)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_of_a_step_of_another_optimizer_the_true_image_has_the_signs(task: Task, batch, optimizer) -> None:  # noqa: ANN001
    own, other = batch(0, 1), batch(1, 1)
    view = stepped(task, own.x, own.y, optimizer)
    plain, told = target_of(view, task.build(), True, 1), at_once(view, target_of(view, task.build(), True, 1))
    assert told is not None and told.how.endswith(SIGNS)
    assert missed(told.target, own.x, own.y) < 0.5 * missed(told.target, other.x, own.y)
    assert missed(told.target, own.x, own.y) < 0.2 * missed(plain, own.x, own.y)
    assert not others_of(told.view, told.target, own.x, own.y).beaten(0.0), "signs are fewer bits than an image"


def test_values_clipped_one_by_one_keep_their_signs_and_a_gradient_is_no_such_update(task: Task, batch) -> None:  # noqa: ANN001
    own, view = batch(0, 1), view_of(task, batch(0, 1).x, batch(0, 1).y)
    target = target_of(clipped(view), task.build(), True, 1)
    told = at_once(clipped(view), target)
    assert told is not None and told.how == SIGNS
    assert missed(told.target, own.x, own.y) < 0.2 * missed(target, own.x, own.y)
    assert at_once(view, target_of(view, task.build(), True, 1)) is None


def wrongly(view: ServerView, sent: Callable[[Tensor, Tensor], Tensor]) -> ServerView:
    """``view`` of an app that answers with what ``sent`` makes of weights and update: a recorder takes weights away."""
    return replace(view, update={name: sent(p, view.update[name]) - p for name, p in view.params.items()})


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    ("sent", "how"),
    [
        (lambda p, u: u, WEIGHTS),
        (lambda p, u: -10 * u, OPPOSITE),
        (lambda p, u: 600 * (p + u), WEIGHTS),
        (lambda p, u: 0.9 * p + u, WEIGHTS),
    ],
    ids=["differences", "gradients", "weighted weights", "decay"],
)
def test_a_multiple_of_the_weights_is_no_part_of_a_gradient(task: Task, batch, sent, how: str, images: int) -> None:  # noqa: ANN001
    own = batch(0, images)
    view = replace(view_of(task, own.x, own.y), num_examples=images, batch_size=images)
    seen = wrongly(view, sent)
    plain = target_of(seen, task.build(), True, images)
    assert missed(read(seen, task, own.x)[how], own.x, own.y) < 1e-4 < FITTED < missed(plain, own.x, own.y)
    told = at_once(seen, plain)
    assert told is not None and told.how == WEIGHTS


def test_a_client_that_prunes_its_weights_sends_no_differences(task: Task, batch) -> None:  # noqa: ANN001
    def pruned(p: Tensor, u: Tensor) -> Tensor:
        return (p + u) * (p.abs() > p.abs().flatten().quantile(0.9))

    view = view_of(task, batch(0, 1).x, batch(0, 1).y)
    assert less_weights(wrongly(view, lambda p, u: u)) is not None and less_weights(wrongly(view, pruned)) is None


def test_layers_at_scales_of_their_own_are_compared_on_the_support(task: Task, batch) -> None:  # noqa: ANN001
    own, other = batch(0, 1), batch(1, 1)
    view = view_of(task, own.x, own.y)
    mask = {name: torch.rand(u.shape) < (0.2 if u.dim() > 1 else 1.0) for name, u in view.update.items()}
    scaled = {name: u * mask[name] * (1 + i) for i, (name, u) in enumerate(view.update.items())}
    told = read(replace(view, update=scaled, shared=mask), task, own.x)[SCALES]
    assert missed(told, own.x, own.y) < 1e-9 < 1e-3 < missed(told, other.x, own.y)


def test_signs_of_tiny_gradients_are_signs() -> None:
    assert torch.equal(signs({"w": torch.tensor([-1e-25, 0.0, 2e-25])})["w"].sign(), torch.tensor([-1.0, 0.0, 1.0]))


def test_of_several_steps_signs_are_not_read_before_all_else(task: Task, batch) -> None:  # noqa: ANN001
    own = batch(0, 4)
    view = replace(view_of(task, own.x, own.y), num_examples=4, batch_size=4)
    even = replace(view, update={name: u.sign() for name, u in view.update.items()})
    four = replace(even, steps=4, batch_size=1)
    assert at_once(even, target_of(even, task.build(), True, 4)) is not None
    assert at_once(four, target_of(four, task.build(), True, 4)) is None


def test_weight_decay_that_the_view_tells_is_left_to_it(task: Task, batch) -> None:  # noqa: ANN001
    own = batch(0, 1)
    told = replace(wrongly(view_of(task, own.x, own.y), lambda p, u: 0.98 * p + u), weight_decay=0.2)
    assert less_weights(told) is None and missed(target_of(told, task.build(), True, 1), own.x, own.y) < 1e-6
    assert less_weights(replace(told, weight_decay=0.0)) is not None
    assert less_weights(view_of(task, own.x, own.y)) is None


def test_rates_by_layer_leave_each_tensor_its_direction(task: Task, batch) -> None:  # noqa: ANN001
    own, other = batch(0, 1), batch(1, 1)
    view = view_of(task, own.x, own.y)
    lars = replace(view, update={name: u * view.params[name].norm() / u.norm() for name, u in view.update.items()})
    told = read(lars, task, own.x)[SCALES]
    plain = target_of(lars, task.build(), True, 1)
    assert missed(told, own.x, own.y) < 1e-9 < FITTED < missed(plain, own.x, own.y)
    assert missed(told, other.x, own.y) > FITTED


def test_several_images_are_read_at_any_scale_of_each_tensor(task: Task, batch) -> None:  # noqa: ANN001
    """Their labels are counted without a size, which a rate would give. Of one loss only, and of all that was sent."""
    own, other = batch(0, 3), batch(3, 3)
    view = replace(view_of(task, own.x, own.y), num_examples=3, batch_size=3)
    lars = replace(view, update={name: u / u.norm() for name, u in view.update.items()})
    assert not readings(view, target_of(view, task.build(), True, 3), own.x[:1]), "it would cost images that are hard"
    (found,) = readings(lars, target_of(lars, task.build(), True, 3), own.x[:1])
    assert found.how == SCALES and found.view.learning_rate is None
    plain = target_of(lars, task.build(), True, 3)
    assert missed(found.target, own.x, own.y) < 1e-9 < FITTED < missed(plain, own.x, own.y)
    assert missed(found.target, other.x, own.y) > FITTED
    decays = replace(lars, weight_decay=1e-3)
    assert read(decays, task, own.x).keys() == {SCALES}
    (found,) = readings(decays, target_of(decays, task.build(), True, 3), own.x[:1])
    assert found.view.learning_rate == decays.learning_rate, "without it nobody knows what the decay is"
    assert made_by(task, lars, PrivateBatch(own.x, own.y)) is True
    assert made_by(task, lars, PrivateBatch(own.x.flip(-1), own.y)) is False


def test_what_an_app_does_not_send_is_not_taken_for_zero(task: Task, batch) -> None:  # noqa: ANN001
    own = batch(0, 1)
    view = largest(view_of(task, own.x, own.y))
    target = target_of(view, task.build(), True, 1)
    assert missed(read(view, task, own.x)[MOVED], own.x, own.y) < 1e-9 < FITTED < missed(target, own.x, own.y)
    assert ANY_LOSS not in read(view, task, own.x), "a slope of zero may not have been sent"


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
    view = view_of(task, own.x, own.y, several_labels)
    assert logit_bias(target_of(view, task.build(), True, 1), own.x) == ("beta" if bias else None)
    assert (ANY_LOSS in read(view, task, own.x)) is bias
