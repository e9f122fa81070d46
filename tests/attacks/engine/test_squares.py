"""Squared gradients of pruned weights beside an update that a defense has emptied."""

import dataclasses

import pytest
import torch

from prunella.attacks.engine.beside import SQUARES, told
from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.squares import beside, mean_squares, squares_target
from prunella.attacks.portfolio import Portfolio, reconstruct
from prunella.attacks.score.leakage import psnr
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import apply_mask
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial, prunable
from prunella.tasks.training import Sgd

RATE = 0.25
QUICK = Portfolio(passes=2500, label_passes=0, seconds=600, iterations=150, restarts=1)


def sent(task: Task, truth: PrivateBatch, steps: int = 1, defenses: str = "top-k") -> ServerView:
    """What a PruneFL client sends of batches of one image, behind a DGP that lets one value of a hundred through."""
    params, _ = initial(task, 0)
    names, g = prunable(task.build()), torch.Generator().manual_seed(0)
    mask = {
        n: (torch.rand(t.shape, generator=g) > 0.3) if n in names else torch.ones_like(t) > 0 for n, t in params.items()
    }
    params = apply_mask(params, mask)
    chain, draws = build_chain(defenses.split(","), {"top-k.keep": 0.001}), rehearsal(0, purpose="x")
    state = start(chain, truth.x, params, {}, draws)
    batches = iter([Examples(truth.x[i : i + 1], truth.y[i : i + 1]) for i in range(steps)])
    done = local_update(Procedure(task.build(), Sgd(RATE), chain), Received(params, mask, {}), batches, state, draws)
    importance = {n: done.importance[n] for n in sorted(names)}
    return ServerView(
        params=params, update=done.outgoing.update, mask=mask, shared=done.outgoing.shared, importance=importance,
        num_examples=steps, steps=steps, batch_size=1, learning_rate=RATE, defenses=(defenses,),
    )  # fmt: skip


def found(view: ServerView, task: Task) -> Reconstruction:
    return reconstruct(view, task, QUICK, stream(0, purpose="attack"))


def test_an_image_that_the_update_hides_comes_back_and_not_another_one(task, batch) -> None:
    truth, other = batch(0, 1), batch(1, 1)
    view = sent(task, truth)
    seen = found(view, task)
    assert seen.found_by == SQUARES and seen.explained and seen.y.tolist() == truth.y.tolist()
    assert psnr(truth.x, seen.x)[0] > 35 > 25 > psnr(other.x, seen.x)[0]
    hidden = found(dataclasses.replace(view, importance=None), task)
    assert hidden.found_by != SQUARES and psnr(truth.x, hidden.x)[0] < 20
    wrong = dataclasses.replace(view, importance=sent(task, other).importance)
    assert psnr(truth.x, found(wrong, task).x)[0] < 25


def test_squares_are_those_that_the_client_sends(task, batch) -> None:
    """Over two steps, the second from where the first led."""
    truth = batch(0, 2)
    view = sent(task, truth, steps=2, defenses="none")
    target = target_of(view, task.build(), True, 16)
    squares = mean_squares(target, truth.x, truth.y)
    at = beside(view)
    assert all(torch.allclose(squares[n][at[n]], view.importance[n][at[n]], rtol=1e-3, atol=1e-12) for n in at)
    assert all(not (at[n] & view.mask[n]).any() for n in at) and sum(int(t.sum()) for t in at.values()) > 1000


@pytest.mark.parametrize("why", ["none", "few", "noise", "images", "undefended"])
def test_where_squares_tell_nothing_more_nobody_is_asked(task, batch, why: str) -> None:
    from prunella.attacks.engine.case import Case

    view = sent(task, batch(0, 1))
    few = {n: torch.zeros_like(t) for n, t in view.importance.items()}
    few["0.0.weight"] = view.importance["0.0.weight"]
    changes = {
        "none": {"importance": None},
        "few": {"importance": few},
        "noise": {"importance": {n: t.mean().expand_as(t) * torch.rand(t.shape) for n, t in view.importance.items()}},
        "images": {"defenses": ("channel-natural", "top-k")},
        "undefended": {"defenses": ("none",)},
    }[why]
    attack = dataclasses.replace(QUICK, passes=600)
    case = Case(dataclasses.replace(view, **changes), task, attack, stream(0, purpose="attack"), float("inf"))
    assert told(case, None) is None
    posed = squares_target(dataclasses.replace(view, **changes), task, case.setting.target)
    assert (posed is None) == (why in ("none", "few"))
