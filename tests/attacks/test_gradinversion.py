import dataclasses

import pytest
import torch
from torch import nn
from torch.func import functional_call

from prunella.attacks import ATTACKS
from prunella.attacks.engine.matching import target_of
from prunella.attacks.gradinversion import batch_statistics, statistics_gap
from prunella.attacks.score.control import PSNR_FLOOR, undefended_view
from prunella.attacks.score.leakage import score
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

ATTACK = ATTACKS["gradinversion"]


def small(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions with batch norm."""
    features = [nn.Conv2d(shape[0], 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 8, 3, 1, 1)]
    rest = [nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(8 * (shape[1] // 2) ** 2, classes)]
    return nn.Sequential(*features, *rest)


NORMED = Task("tests.attacks.test_gradinversion:small", (1, 8, 8), 10)


def run(view: ServerView, task: Task, **changes: object) -> Reconstruction:
    settings = dataclasses.replace(ATTACK.settings(), **changes)
    return ATTACK.reconstruct(view, task, settings, stream(0, purpose="attack"))


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


def test_rebuilds_an_undefended_image_and_not_another(task, fresh, same_label) -> None:
    truth, other = same_label
    found = run(undefended_view(task, *fresh, truth), task)
    right, wrong = score(found, truth), score(found, other)
    assert right.psnr.mean >= PSNR_FLOOR and right.label_accuracy == 1.0
    assert right.psnr.mean > wrong.psnr.mean + 6


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


def test_batch_norm_statistics_help(batch) -> None:
    """Over three batches of two, with a short descent."""
    gained = []
    for i in range(3):
        truth = batch(2 * i, 2)
        with_prior, without = (run(normed_view(truth), NORMED, bn=bn, iterations=50, restarts=1) for bn in (1.0, 0.0))
        gained.append(score(with_prior, truth).psnr.mean - score(without, truth).psnr.mean)
    assert sum(gained) > 0


def test_a_group_holds_together(task, fresh, batch, monkeypatch) -> None:
    """With an overwhelming weight all members are one image; without one they differ."""
    from prunella.attacks import gradinversion

    ends: list[list[torch.Tensor]] = []
    whole = gradinversion.descend_group

    def spy(attack, target, wanted, guesses, saved):  # noqa: ANN001, ANN202
        result = whole(attack, target, wanted, guesses, saved)
        ends.append([guess.x.detach().clone() for guess in guesses])
        return result

    monkeypatch.setattr(gradinversion, "descend_group", spy)
    view = undefended_view(task, *fresh, batch(0, 1))
    for weight in (1e6, 0.0):
        run(view, task, group=weight, iterations=40, learning_rate=0.02, labels_tried=1)
    assert (ends[0][0] - ends[0][1]).abs().mean() < 0.5 * (ends[1][0] - ends[1][1]).abs().mean()


def test_the_group_has_as_many_members_as_restarts(task, fresh, batch, monkeypatch) -> None:
    from prunella.attacks import gradinversion

    sizes: list[int] = []
    whole = gradinversion.descend_group
    monkeypatch.setattr(
        gradinversion,
        "descend_group",
        lambda a, t, w, guesses, s: sizes.append(len(guesses)) or whole(a, t, w, guesses, s),
    )
    run(undefended_view(task, *fresh, batch(0, 1)), task, restarts=3, iterations=1, labels_tried=2)
    assert sizes == [3, 3]
