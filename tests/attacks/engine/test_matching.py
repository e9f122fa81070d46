import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks.engine.inversion import Guess, Inversion, evaluator
from prunella.attacks.engine.matching import dummy_gradient, plan_of, recovered_support, target_gradient, target_of
from prunella.attacks.engine.objectives import flatten
from prunella.core.errors import AttackError, KeyMismatch
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, scale, subtract
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step


def local_training(
    task: Task, params: Tree, buffers: Tree, truth: PrivateBatch, steps: int, sgd: Sgd, mask: Mask | None
) -> Tree:
    """The update of a client that sees its images in order."""
    module, size, velocity = task.build(), len(truth.y) // steps, Tree()
    start = params
    for step in range(steps):
        rows = slice(step * size, (step + 1) * size)
        _, gradient, buffers = loss_and_gradient(module, params, buffers, truth.x[rows], truth.y[rows])
        params, velocity = sgd_step(params, gradient, velocity, sgd, mask)
    return subtract(params, start)


def federated_view(
    task: Task, state: tuple[Tree, Tree], truth: PrivateBatch, steps: int, sgd: Sgd, mask: Mask | None
) -> ServerView:
    update = local_training(task, *state, truth, steps, sgd, mask)
    return ServerView(
        state[0], update, mask=mask, buffers=state[1], num_examples=len(truth.y), labels=truth.y, steps=steps,
        batch_size=len(truth.y) // steps, learning_rate=sgd.learning_rate, momentum=sgd.momentum,
        weight_decay=sgd.weight_decay,
    )  # fmt: skip


def random_mask(params: Tree) -> Mask:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.rand(t.shape, generator=generator) > 0.3 for name, t in params.items()}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("sgd", [Sgd(0.1), Sgd(0.05, 0.9, 0.01)])
@pytest.mark.parametrize("pruned", [False, True])
def test_the_true_batch_matches_exactly(steps, sgd, pruned, task, fresh, batch) -> None:
    params, buffers = fresh
    mask = random_mask(params) if pruned else None
    state = (apply_mask(params, mask) if mask else params, buffers)
    view = federated_view(task, state, batch(0, 6), steps, sgd, mask)
    target = target_of(view, task.build(), True, 64)
    truth = batch(0, 6)
    value = evaluator(
        target, Inversion(objective="euclidean"), Guess(truth.x.clone().requires_grad_(), truth.y, False)
    )()
    other = batch(20, 6)
    wrong = evaluator(
        target, Inversion(objective="euclidean"), Guess(other.x.clone().requires_grad_(), truth.y, False)
    )()
    assert float(value) < 1e-6 < 0.01 < float(wrong)


@pytest.mark.parametrize("objective", ["cosine", "euclidean"])
def test_the_unrolled_gradient_is_that_of_finite_differences(objective, fresh, task, batch) -> None:
    double = tuple({name: tensor.double() for name, tensor in tree.items()} for tree in fresh)
    truth = PrivateBatch(batch(0, 4).x.double(), batch(0, 4).y)
    view = federated_view(task, double, truth, 2, Sgd(0.1, 0.5, 0.01), None)
    target = target_of(view, task.build(), True, 64)
    target = dataclasses.replace(target, flat=target.flat.double())
    x = batch(20, 4).x.double().requires_grad_()
    attack = Inversion(objective=objective, tv=0.1)
    evaluator(target, attack, guess := Guess(x, truth.y, False))()
    assert guess.x.grad is not None
    for pixel in [(0, 0, 3, 3), (1, 0, 4, 2), (3, 0, 2, 5)]:
        values = []
        for sign in (1, -1):
            moved = x.detach().clone()
            moved[pixel] += sign * 1e-5
            values.append(float(evaluator(target, attack, Guess(moved.requires_grad_(), truth.y, False))()))
        assert float(guess.x.grad[pixel]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-3, abs=1e-6)


def test_one_step_gives_back_the_gradient(task, fresh, batch) -> None:
    truth = batch(0, 3)
    _, gradient, _ = loss_and_gradient(task.build(), *fresh, truth.x, truth.y)
    view = federated_view(task, fresh, truth, 1, Sgd(0.1, 0.9, 0.01), None)
    torch.testing.assert_close(
        flatten(target_gradient(view).values()), flatten(gradient.values()), atol=1e-5, rtol=1e-4
    )


def test_batch_norm_is_matched_in_training_mode_and_left_alone() -> None:
    task = Task("resnet10", (3, 8, 8), 4)
    state = initial(task, seed=0)
    before = {name: tensor.clone() for name, tensor in state[1].items()}
    truth = PrivateBatch(
        torch.rand((4, 3, 8, 8), generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3])
    )
    view = federated_view(task, state, truth, 2, Sgd(0.01), None)
    target = target_of(view, task.build(), True, 64)
    dummy = flatten(dummy_gradient(target, truth.x, truth.y)).detach()
    assert float((dummy - target.flat).norm() / target.flat.norm()) < 1e-2
    assert all(torch.equal(before[name], tensor) for name, tensor in view.buffers.items())


def test_the_support_is_what_was_shared_or_what_is_not_zero(view: ServerView) -> None:
    update = {name: torch.where(u.abs() > u.abs().median(), u, 0.0) for name, u in view.update.items()}
    bare = dataclasses.replace(view, update=update)
    assert all(torch.equal(m, update[n] != 0) for n, m in recovered_support(bare).items())
    shared = full_mask(update)
    assert recovered_support(dataclasses.replace(bare, shared=shared)) is shared


def test_the_order_of_names_does_not_matter(view: ServerView, task: Task) -> None:
    shared = {
        name: torch.rand(u.shape, generator=torch.Generator().manual_seed(1)) > 0.5 for name, u in view.update.items()
    }
    backwards = {name: shared[name] for name in reversed(shared)}
    a = target_of(dataclasses.replace(view, shared=shared), task.build(), True, 64)
    b = target_of(dataclasses.replace(view, shared=backwards), task.build(), True, 64)
    assert a.support is not None and b.support is not None
    assert torch.equal(a.support, b.support) and torch.equal(a.flat, b.flat)


def test_max_images_bounds_the_guess_and_keeps_the_length_of_the_walk() -> None:
    view = ServerView({}, {}, steps=10, batch_size=16, num_examples=500, learning_rate=0.1)
    for limit, images, steps in [(200, 160, 10), (64, 60, 10), (10, 10, 10), (5, 5, 5), (1, 1, 1)]:
        plan = plan_of(view, limit)
        assert (plan.images, len(plan.batches)) == (images, steps)
        assert plan.sgd.learning_rate * len(plan.batches) == pytest.approx(1.0)
        assert {row for rows in plan.batches for row in rows} == set(range(plan.images))


def test_a_client_with_few_examples_uses_them_again() -> None:
    plan = plan_of(ServerView({}, {}, steps=3, batch_size=16, num_examples=2, learning_rate=0.1), 64)
    assert plan.images == 2 and plan.batches == ((0, 1),) * 3


@pytest.mark.parametrize(
    "changed", [{"steps": 2, "learning_rate": None}, {"weight_decay": 0.1, "learning_rate": None},
                {"batch_size": None, "num_examples": None}, {"batch_size": 0}]
)  # fmt: skip
def test_what_a_view_lacks_is_said(changed: dict[str, object], view: ServerView, task: Task) -> None:
    with pytest.raises(AttackError):
        target_of(dataclasses.replace(view, **changed), task.build(), True, 64)


def test_wrong_views_are_refused_by_name_and_shape(view: ServerView, task: Task) -> None:
    name = next(iter(view.update))
    short = {key: value for key, value in view.update.items() if key != name}
    with pytest.raises(AttackError, match=f"missing.*{name}"):
        target_of(dataclasses.replace(view, update=short), task.build(), True, 64)
    with pytest.raises(AttackError, match="the model has"):
        target_of(dataclasses.replace(view, update=view.update | {name: torch.ones(3)}), task.build(), True, 64)
    with pytest.raises(AttackError, match="not finite"):
        target_of(dataclasses.replace(view, update=scale(view.update, float("nan"))), task.build(), True, 64)
    with pytest.raises(AttackError, match="nothing arrived"):
        target_of(dataclasses.replace(view, update=scale(view.update, 0.0)), task.build(), True, 64)
    with pytest.raises((AttackError, KeyMismatch), match="mask"):
        target_of(dataclasses.replace(view, mask={}), task.build(), True, 64)


def test_dropout_of_several_images_is_off() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    bare = {"1.weight": torch.ones(2, 4), "1.bias": torch.ones(2)}
    target = target_of(ServerView(bare, bare, batch_size=2, learning_rate=0.1), module, True, 64)
    assert not target.module[0].training and target.module[1].training
