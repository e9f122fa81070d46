import dataclasses
from collections.abc import Sequence

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.engine.label_inference import label_candidates
from prunella.attacks.engine.matching import target_of
from prunella.attacks.every_round import EveryRound, problems
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.attacks.unrolling import Unrolling, merged_view, problem, walk
from prunella.core.errors import AttackError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask, size, subtract
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.defense import Outgoing
from prunella.privacy.dgp import DualPruning, dgp
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

ATTACK = ATTACKS["unrolling"]
RATE = 0.1


def rounds_of(task: Task, truth: PrivateBatch, rates: Sequence[float], decay: float = 0.0) -> list[ServerView]:
    """A client under DGP with error feedback, on the same images in rounds of these learning rates; the model follows
    what it sends."""
    params, buffers = initial(task, 0)
    defense, draw, views = dgp(DualPruning()), rehearsal(0, purpose="defense"), []
    state = defense.init(params)
    for rate in rates:
        _, gradient, _ = loss_and_gradient(task.build(), params, buffers, truth.x, truth.y)
        whole = full_mask(params)
        update = subtract(sgd_step(params, gradient, {}, Sgd(rate, 0.0, decay), None)[0], params)
        sent, state = defense.apply(Outgoing(update, whole, whole, params), state, draw)
        known = {"num_examples": 1, "batch_size": 1, "steps": 1, "learning_rate": rate, "weight_decay": decay}
        views.append(ServerView(params, sent.update, shared=sent.shared, buffers=buffers, **known))
        params = {name: params[name] + sent.update[name] for name in params}
    return views


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("rates", [(0.1, 0.1, 0.1), (0.1, 0.05, 0.01)])
def test_the_true_image_explains_rounds_of_unequal_rates(task, batch, rates: tuple[float, ...], decay: float) -> None:
    """What a client owes are updates, each of its own round's learning rate and weight decay."""
    truth = batch(0, 1)
    views = [dataclasses.replace(view, labels=truth.y) for view in rounds_of(task, truth, rates, decay)]
    asked = [problem(views, task, Unrolling()), problems(views, task, EveryRound())[-1]]
    for each in asked:
        assert float(each.measure(Unrolling())(truth.x.clone(), truth.y)[0]) < 1e-6


@pytest.mark.parametrize("rates", [(RATE, RATE, RATE), (RATE, RATE / 2, RATE / 10)])
def test_error_feedback_hides_a_late_round_from_one_view_and_not_from_all(
    task, batch, rates: tuple[float, ...]
) -> None:
    truth = batch(0, 1)
    views = rounds_of(task, truth, rates)
    settings = {"labels_tried": 1, "iterations": 120}
    draw = lambda: stream(0, purpose="attack")  # noqa: E731
    alone = ATTACKS["sgi"].reconstruct(
        views[-1], task, dataclasses.replace(ATTACKS["sgi"].settings(), **settings), draw()
    )
    attack = Unrolling(**settings)
    unrolled = ATTACK.reconstruct(views[-1], task, attack, draw(), views[:-1])
    assert psnr(truth.x, unrolled.x)[0] > 20 and psnr(truth.x, unrolled.x)[0] > psnr(truth.x, alone.x)[0] + 5
    elsewhere = [dataclasses.replace(view, params=initial(task, 3)[0]) for view in views]
    wrong = ATTACK.reconstruct(elsewhere[-1], task, attack, draw(), elsewhere[:-1])
    assert psnr(truth.x, wrong.x)[0] < 20


def test_the_walk_sends_what_dgp_sends(task) -> None:
    draw = stream(0, purpose="x")
    params = initial(task, 0)[0]
    defense, whole = dgp(DualPruning()), full_mask(params)
    state, sent, arrived, gradients = defense.init(params), [], [], []
    for _ in range(5):
        update = {name: torch.randn(p.shape, generator=draw) for name, p in params.items()}
        out, state = defense.apply(Outgoing(update, whole, whole, params), state, rehearsal(0, purpose="x"))
        flat = lambda tree: torch.cat([t.reshape(-1) for t in tree.values()])  # noqa: E731
        gradients.append(flat(update))
        arrived.append(flat(out.shared).float())
        sent.append(flat(out.update))
    for ours, theirs in zip(walk(gradients, arrived), sent, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(sent[0]) == size(params)


def test_of_one_view_it_is_sgi(view, task) -> None:
    settings = {"labels_tried": 1, "iterations": 40}
    sgi = dataclasses.replace(ATTACKS["sgi"].settings(), **settings)
    own = ATTACK.reconstruct(view, task, Unrolling(**settings), stream(0, purpose="attack"))
    other = ATTACKS["sgi"].reconstruct(view, task, sgi, stream(0, purpose="attack"))
    assert own.objective == pytest.approx(other.objective, rel=0.2) and torch.equal(own.y, other.y)


def test_labels_are_read_from_the_mean_of_the_rounds(task, batch) -> None:
    """The sum of three updates over one round's learning rate would be three times a gradient, and miscount labels."""
    for seed in range(4):
        truth = batch(seed, 8)
        views = [undefended_view(task, *initial(task, 10 * seed + turn), truth) for turn in range(3)]
        target = target_of(merged_view(views), task.build(), False, 8)
        likeliest = label_candidates(target, task, True, stream(0, purpose="attack"))[0]
        assert likeliest is not None and sorted(likeliest.tolist()) == sorted(truth.y.tolist())


def test_what_arrived_in_any_round_counts_and_views_must_match(view, task) -> None:
    double = merged_view([view, view])
    assert all(torch.equal(double.update[name], 2 * view.update[name]) for name in view.update)
    with pytest.raises(AttackError, match="different numbers"):
        ATTACK.reconstruct(
            view, task, Unrolling(), stream(0, purpose="attack"), [dataclasses.replace(view, batch_size=2)]
        )
