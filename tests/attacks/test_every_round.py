"""All rounds of a client, matched by one guess: more than the best round alone, and nothing of another client."""

import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.engine.inversion import EXPLAINED, Guess, evaluator
from prunella.attacks.engine.matching import target_of
from prunella.attacks.every_round import EveryRound, problems
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.attacks.unrolling import Feedback, walk, walk_back
from prunella.benchmarks.engine.views import after_rounds, seen, sender
from prunella.core.errors import AttackError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.strategies.round.local import Received
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from tests.attacks.test_unrolling import rounds_of

ATTACK = ATTACKS["every-round"]
QUICK = {"labels_tried": 1, "iterations": 50}


def noisy_rounds(task: Task, truth: PrivateBatch, rounds: int, level: float) -> list[ServerView]:
    """The same image at the weights of several rounds, with noise of ``level`` of each layer's deviation."""
    views = []
    for turn in range(rounds):
        view, draw = undefended_view(task, *initial(task, turn), truth), stream(turn, purpose="noise")
        noisy = {n: u + level * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
        views.append(dataclasses.replace(view, update=noisy, shared=full_mask(noisy), labels=truth.y))
    return views


def rebuilt(views: list[ServerView], task: Task, **changed: object):  # noqa: ANN201
    settings = EveryRound(**{**QUICK, **changed})  # type: ignore[arg-type]
    return ATTACK.reconstruct(views[-1], task, settings, stream(0, purpose="attack"), views[:-1])


def test_behind_noise_four_rounds_rebuild_more_than_the_best_alone(task: Task, batch) -> None:
    truth = batch(2, 1)
    views = noisy_rounds(task, truth, 4, 4.0)
    alone = max(psnr(truth.x, rebuilt([view], task).x)[0] for view in views)
    two, four = (psnr(truth.x, rebuilt(views[:many], task).x)[0] for many in (2, 4))
    assert four > alone + 2 and four > two


def test_rounds_of_other_clients_are_not_explained(task: Task, batch) -> None:
    """Undefended, the right rounds are explained, and a mixture is not called so: what comes back is of the oldest."""
    truth, other = batch(0, 1), batch(7, 1)
    own = noisy_rounds(task, truth, 2, 0.0)
    mixed = [own[0], *noisy_rounds(task, other, 2, 0.0)[1:]]
    right, wrong = (rebuilt(views, task, iterations=150) for views in (own, mixed))
    assert psnr(truth.x, right.x)[0] > 25 and right.objective < 1e-3 and right.found_by == "2 rounds"
    assert wrong.objective > 100 * max(right.objective, EXPLAINED)
    assert (
        wrong.found_by == "the oldest of 2 rounds" and psnr(truth.x, wrong.x)[0] > 25 > 20 > psnr(other.x, wrong.x)[0]
    )


def test_behind_a_defense_that_learns_the_first_round_gives_the_image_away(task: Task, batch) -> None:
    """PriPrune trains from weights of its own once it has withheld something, and has none in the first round."""
    truth = batch(0, 1)
    private, (params, buffers) = Examples(truth.x, truth.y), initial(task, 0)
    client, views = sender(task, Received(params, full_mask(params), buffers), "priprune", {}, truth.x, 1), []
    for turn in range(3):
        views.append(seen(client, private, lambda _, turn=turn: rehearsal(turn, purpose="draws")).view)
        client = after_rounds(client, [private], lambda _, turn=turn: rehearsal(turn, purpose="draws"))
    found = rebuilt(views, task, iterations=150)
    assert found.found_by == "the oldest of 3 rounds" and psnr(truth.x, found.x)[0] > 30
    assert found.objective > 0.01, "it does not explain what came later"


def test_error_feedback_is_found_out(task: Task, batch) -> None:
    """Nobody says whether the client owes: behind DGP with feedback the sums explain more, without it they do not."""
    truth = batch(0, 1)
    owing = [dataclasses.replace(view, labels=truth.y) for view in rounds_of(task, truth, [0.1] * 3)]
    free = noisy_rounds(task, truth, 3, 0.0)
    for turn, view in enumerate(free):
        draw = stream(turn, purpose="mask")
        masks = {n: torch.rand(u.shape, generator=draw) < 0.5 for n, u in view.update.items()}
        free[turn] = dataclasses.replace(view, shared=masks, update={n: u * masks[n] for n, u in view.update.items()})
    for views, place in ((owing, 1), (free, 0)):
        guess = Guess(truth.x.clone().requires_grad_(), truth.y, False)
        found = []
        for problem in problems(views, task, EveryRound()):
            value, *_ = problem.measure(EveryRound())(guess.x.detach(), guess.y)
            found.append(float(value))
        assert found[place] < 1e-6 < 1e-2 < found[1 - place]
    assert len(problems(noisy_rounds(task, truth, 2, 0.0), task, EveryRound())) == 1, "nothing was withheld"


def test_its_slopes_are_those_of_the_sums(task: Task, batch) -> None:
    """By hand as by autograd; of one round, those of SGI."""
    truth, draw = batch(0, 2), stream(0, purpose="x")
    arrived = [(torch.rand(6, generator=draw) < 0.5).float() for _ in range(4)]
    made = [torch.randn(6, generator=draw, requires_grad=True) for _ in range(4)]
    slopes = [torch.randn(6, generator=draw) for _ in range(4)]
    feedback = Feedback(arrived, [1.0, 0.5, 0.5, 0.1], [torch.randn(6, generator=draw) for _ in arrived])
    for rule, adjoint in (
        (lambda each: walk(each, arrived), lambda each: walk_back(each, arrived)),
        (feedback.sent, feedback.back),
    ):
        total = sum((s * sent).sum() for s, sent in zip(slopes, rule(made), strict=True))
        for ours, theirs in zip(adjoint(slopes), torch.autograd.grad(total, made), strict=True):
            torch.testing.assert_close(ours, theirs)
    view = dataclasses.replace(undefended_view(task, *initial(task, 0), truth), labels=truth.y)
    guess = Guess(torch.rand(2, 1, 8, 8, generator=draw).requires_grad_(), truth.y, False)
    value, on_x, _ = problems([view], task, EveryRound())[0].measure(EveryRound())(guess.x.detach(), guess.y)
    one = evaluator(target_of(view, task.build(), True, 16), EveryRound(), guess)()
    torch.testing.assert_close(value, one)
    torch.testing.assert_close(on_x, guess.x.grad)


def test_the_latest_rounds_are_used_and_must_be_alike(task: Task, batch) -> None:
    views = noisy_rounds(task, batch(0, 1), 3, 0.0)
    assert rebuilt(views, task, iterations=1, rounds=2).found_by == "2 rounds"
    assert rebuilt(views, task, iterations=1, rounds=1).found_by is None
    silent = dataclasses.replace(views[1], update={name: 0 * u for name, u in views[1].update.items()})
    assert rebuilt([views[0], silent, views[2]], task, iterations=1).found_by == "2 rounds"
    with pytest.raises(AttackError, match="nothing arrived"):
        rebuilt([silent, silent], task)
    with pytest.raises(AttackError, match="different numbers of images"):
        rebuilt([dataclasses.replace(views[0], batch_size=2, num_examples=2, labels=None), *views[1:]], task)
