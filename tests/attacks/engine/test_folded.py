"""Many guesses in one batch against one at a time."""

import dataclasses
import math
from functools import partial

import pytest
import torch
from torch import nn

from prunella.attacks.engine.folded import evaluator, foldable
from prunella.attacks.engine.image_priors import total_variation, total_variation_each
from prunella.attacks.engine.inversion import (
    Guess,
    Inversion,
    descend_alone,
    descend_together,
    first_guess,
    reconstruct,
    reconstruct_each,
)
from prunella.attacks.engine.inversion import evaluator as one_evaluator
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.objectives import OBJECTIVES
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import Mask, Tree, full_mask
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task, initial
from tests.attacks.engine.test_matching import random_mask

SHAPE = (1, 12, 12)


def sided_mask(params: Tree, seed: int = 1) -> Mask:
    """Half of the rows and of the columns of every matrix; a full mask of what has none."""
    draw = stream(seed, purpose="sides")
    halves = {name: [torch.rand(n, generator=draw) < 0.5 for n in t.shape[:2]] for name, t in params.items()}
    return {
        name: torch.ones_like(t, dtype=torch.bool)
        if t.ndim < 2
        else torch.outer(*halves[name])[(...,) + (None,) * (t.ndim - 2)].expand(t.shape).clone()
        for name, t in params.items()
    }


MASKS = {"": full_mask, "masked": random_mask, "rows and columns": sided_mask, "other": partial(sided_mask, seed=2)}


def targets(model: str, masked: str, count: int) -> list[Target]:
    task, found = Task(model, SHAPE, 5), []
    params, buffers = initial(task, seed=0)
    shared = MASKS[masked](params)
    for i in range(count):
        x = torch.rand((1, *SHAPE), generator=stream(i, purpose="image"))
        view = undefended_view(task, params, buffers, PrivateBatch(x, torch.tensor([i])))
        update = {name: torch.where(shared[name], u, 0.0) for name, u in view.update.items()}
        target = target_of(dataclasses.replace(view, update=update, shared=shared), task.build().double(), True, 16)
        double = {name: tensor.detach().double() for name, tensor in target.params.items()}
        support = None if target.support is None else target.support.double()
        found.append(dataclasses.replace(target, params=double, flat=target.flat.double(), support=support))
    return found


SAME = ("", "masked", "rows and columns")
SMALL = [(model, masked, objective) for model in ("cnn", "lenet-zhu") for masked in SAME for objective in OBJECTIVES]


@pytest.mark.parametrize("direct", [0, 1 << 30], ids=["convolutions", "patches"])
@pytest.mark.parametrize("model, masked, objective", [*SMALL, ("conv-1", "", "cosine"), ("resnet10", "", "cosine")])
def test_a_batch_is_its_guesses_one_by_one(
    model: str, masked: str, objective: str, direct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.attacks.engine.folded._DIRECT", direct)
    many = targets(model, masked, 2)
    for given in (many, many[:1]):
        assert_alike(given, objective)


def assert_alike(given: list[Target], objective: str) -> None:
    x = torch.rand((2, *SHAPE), generator=stream(7, purpose="guess")).double()
    y = torch.tensor([3, 1])
    values, slopes = evaluator(given, objective)(x, y)
    for i in range(2):
        target = given[i % len(given)]
        flat, pullback = linearised(target, x[i : i + 1], y[i : i + 1])
        value, slope = OBJECTIVES[objective](flat, target.flat, target.support)
        torch.testing.assert_close(values[i], value, rtol=1e-5, atol=1e-6)
        expected = pullback(slope)[0]
        assert float((slopes[i] - expected[0]).norm()) <= 1e-5 * float(expected.norm())


@pytest.mark.parametrize("direct", [0, 1 << 30], ids=["convolutions", "patches"])
@pytest.mark.parametrize("model", ["cnn", "lenet-zhu", "resnet10"])
@pytest.mark.parametrize(
    "masks", [("masked", ""), ("masked", "rows and columns"), ("", "rows and columns"), ("other", "rows and columns")]
)
def test_views_behind_masks_of_their_own_share_a_batch(
    model: str, masks: tuple[str, str], direct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.attacks.engine.folded._DIRECT", direct)
    both = [targets(model, masked, 2)[i] for i, masked in enumerate(masks)]
    assert_alike(both, "euclidean")
    assert_alike(both[::-1], "cosine")


def test_descents_together_are_descents_alone() -> None:
    task, target = Task("cnn", SHAPE, 5), targets("cnn", "", 1)[0]
    attack = Inversion(iterations=12, tv=0.01, signed=False)
    labels = [torch.tensor([c]) for c in (0, 3)]
    generator = stream(0, purpose="starts")
    guesses = [first_guess(target, task, label, generator) for label in labels]
    x = torch.cat([guess.x.detach() for guess in guesses]).double()
    batch = descend_together(attack, x.clone(), torch.cat(labels), evaluator([target], "cosine"))
    for i, found in enumerate(batch):
        guess = Guess(x[i : i + 1].clone().requires_grad_(), labels[i], False)
        alone = descend_alone(attack, guess, one_evaluator(target, attack, guess), target.module)
        assert found.objective == pytest.approx(alone.objective, rel=1e-5)
        torch.testing.assert_close(found.x, alone.x, rtol=1e-4, atol=1e-5)
    assert batch[0].objective < batch[1].objective, "the right label explains the update better"


@pytest.mark.parametrize("masked", ["", "masked"])
def test_several_clients_are_attacked_together_as_each_alone(masked: str) -> None:
    task = Task("cnn", SHAPE, 5)
    params, buffers = initial(task, seed=0)
    truths = [
        PrivateBatch(torch.rand((1, *SHAPE), generator=stream(i, purpose="image")), torch.tensor([i])) for i in range(3)
    ]
    views = [dataclasses.replace(undefended_view(task, params, buffers, t), labels=t.y) for t in truths]
    if masked:  # all but one tell less
        shared = random_mask(params)
        update = {name: torch.where(shared[name], u, 0.0) for name, u in views[0].update.items()}
        views[0] = dataclasses.replace(views[0], update=update)
    attack = Inversion(iterations=150, max_images=2)

    def draws() -> list[torch.Generator]:
        return [stream(i, purpose="start") for i in range(3)]

    together = reconstruct_each(views, task, attack, draws())
    alone = [reconstruct(view, task, attack, draw) for view, draw in zip(views, draws(), strict=True)]
    for one, other, truth in zip(together, alone, truths, strict=True):
        assert psnr(truth.x, one.x)[0] > 30 and psnr(truth.x, other.x)[0] > 30
        assert torch.equal(one.y, truth.y) and one.objective == pytest.approx(other.objective, rel=0.5, abs=1e-5)
    assert psnr(truths[1].x, together[0].x)[0] < 20 and reconstruct_each([], task, attack, []) == []


def test_what_cannot_share_a_batch_is_attacked_one_after_the_other() -> None:
    task, draw = Task("lenet-zhu", SHAPE, 5), stream(0, purpose="image")
    truth = PrivateBatch(torch.rand((1, *SHAPE), generator=draw), torch.tensor([1]))
    view = undefended_view(task, *initial(task, 0), truth)
    known = dataclasses.replace(view, labels=truth.y)
    for views, attack in (
        ([known, known], Inversion(iterations=20)),
        ([view, known], Inversion(iterations=20, optimizer="adam")),
    ):
        starts = [[stream(i, purpose="start") for i in range(2)] for _ in range(2)]
        found = reconstruct_each(views, task, attack, starts[0])
        alone = [reconstruct(one, task, attack, start) for one, start in zip(views, starts[1], strict=True)]
        assert all(torch.equal(one.x, other.x) for one, other in zip(found, alone, strict=True))


def test_total_variation_of_each() -> None:
    x = torch.rand(3, 2, 4, 5, generator=stream(0, purpose="x"))
    values, slopes = total_variation_each(x)
    for i in range(3):
        value, slope = total_variation(x[i : i + 1])
        torch.testing.assert_close(values[i], value)
        torch.testing.assert_close(slopes[i], slope[0])


def depthwise(shape: tuple[int, ...], classes: int) -> nn.Module:
    """As a block of MobileNet."""
    spread, apart = nn.Conv2d(shape[0], 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
    flat = nn.Linear(8 * math.prod(shape[1:]), classes)
    return nn.Sequential(spread, nn.Sigmoid(), apart, nn.Sigmoid(), nn.Flatten(), flat)


def test_a_network_of_grouped_convolutions_is_attacked_guess_by_guess() -> None:
    """In one batch its weights were taken for those of all channels, and every attack that descends failed."""
    task = Task("tests.attacks.engine.test_folded:depthwise", SHAPE, 5)
    truth = PrivateBatch(torch.rand((1, *SHAPE), generator=stream(0, purpose="image")), torch.tensor([3]))
    view = dataclasses.replace(undefended_view(task, *initial(task, 0), truth), labels=truth.y)
    assert not foldable([target_of(view, task.build(), True, 16)])
    attack = Inversion(iterations=200, optimizer="adam", restarts=2)
    assert psnr(truth.x, reconstruct(view, task, attack, stream(0, purpose="attack")).x)[0] > 25


def test_what_does_not_belong_together_is_refused() -> None:
    one = targets("cnn", "", 1)[0]
    moved = dataclasses.replace(one, params={name: tensor + 1 for name, tensor in one.params.items()})
    for odd in (moved, dataclasses.replace(one, network=None)):
        assert not foldable([one, odd])
        with pytest.raises(AttackError, match="one batch"):
            evaluator([one, odd], "cosine")
