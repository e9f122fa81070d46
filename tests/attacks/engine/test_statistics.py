"""What the buffers that come back tell of a client's own batch, and how far a guess's statistics are from these."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.func import functional_call

from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.statistics import batch_statistics, determined_by, statistics_gap
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step


def small(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions with batch norm."""
    features = [nn.Conv2d(shape[0], 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 8, 3, 1, 1)]
    rest = [nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(8 * (shape[1] // 2) ** 2, classes)]
    return nn.Sequential(*features, *rest)


NORMED = Task("tests.attacks.engine.test_statistics:small", (1, 8, 8), 10)


def normed_view(truth: PrivateBatch, steps: int = 1) -> ServerView:
    (params, buffers), module = initial(NORMED, 0), NORMED.build()
    after, moved = params, buffers
    for _ in range(steps):
        _, gradient, moved = loss_and_gradient(module, after, moved, truth.x, truth.y)
        after, _ = sgd_step(after, gradient, {}, Sgd(0.1), None)
    update = {name: after[name] - params[name] for name in params}
    size = len(truth.y)
    sizes = {"num_examples": size, "batch_size": size, "steps": steps, "learning_rate": 0.1}
    return ServerView(params, update, buffers=buffers, received_buffers=moved, labels=truth.y, **sizes)


def test_the_buffers_that_come_back_give_the_batch_s_own_statistics(batch) -> None:
    truth = batch(0, 8)
    view = normed_view(truth)
    first = functional_call(NORMED.build()[0], {k[2:]: v for k, v in view.params.items() if k[0] == "0"}, (truth.x,))
    mean, deviation = batch_statistics(NORMED.build(), view)["1"]
    torch.testing.assert_close(mean, first.mean(dim=(0, 2, 3)).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        deviation.square(), first.transpose(0, 1).flatten(1).var(dim=1).detach(), rtol=1e-4, atol=1e-5
    )
    silent = batch_statistics(NORMED.build(), dataclasses.replace(view, received_buffers={}))["1"]
    assert torch.equal(silent[0], torch.zeros(8)) and torch.equal(silent[1], torch.ones(8))


def test_the_prior_is_least_at_the_truth_and_its_gradient_is_a_difference_quotient(batch) -> None:
    truth = batch(0, 4)
    view = normed_view(truth)
    target = target_of(view, NORMED.build(), False, 64)
    wanted = batch_statistics(target.module, view)
    gap, _ = statistics_gap(target, wanted, truth.x)
    assert float(gap) < 1e-8 < 1e-3 < float(statistics_gap(target, wanted, batch(50, 4).x)[0])
    x, step = batch(50, 4).x, torch.randn(4, 1, 8, 8, generator=stream(0, purpose="step"))
    ahead, behind = (float(statistics_gap(target, wanted, x + s * 1e-2 * step)[0]) for s in (1, -1))
    slope = float((statistics_gap(target, wanted, x)[1] * step).sum())
    assert slope == pytest.approx((ahead - behind) / 2e-2, rel=0.02)


def test_half_as_many_statistics_again_as_pixels_determine_an_image(batch) -> None:
    view, module = normed_view(batch(0, 1)), NORMED.build()  # 32 statistics
    assert determined_by(module, view, (1, 4, 4), 1) and not determined_by(module, view, (1, 4, 4), 2)
    assert not determined_by(module, view, (1, 4, 6), 1)
    for back in ({}, view.buffers):  # nothing came back, or a model that trains in evaluation mode
        assert not determined_by(module, dataclasses.replace(view, received_buffers=back), (1, 4, 4), 1)


@pytest.mark.parametrize("before", [0, 3])
def test_a_mean_over_all_steps_is_solved_for_as_well(batch, before: int) -> None:
    layer, seen = nn.BatchNorm2d(1, momentum=None), [batch(number, 4).x for number in range(before + 1)]
    for x in seen[:before]:
        layer(x)
    sent = {name: buffer.clone() for name, buffer in layer.state_dict().items()}
    layer(seen[-1])
    view = ServerView(sent, {}, buffers=sent, received_buffers=layer.state_dict(), steps=1)
    mean, deviation = batch_statistics(layer, view)[""]
    assert float(mean) == pytest.approx(float(seen[-1].mean()), abs=1e-5)
    assert float(deviation) == pytest.approx(float(seen[-1].std()), abs=1e-5)
