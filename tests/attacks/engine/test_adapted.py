import torch

from prunella.attacks.engine.adapted import AdaptedTarget, evaluator, solve
from prunella.attacks.engine.inversion import Inversion, first_guess
from prunella.attacks.engine.inversion import evaluator as plain_evaluator
from prunella.attacks.engine.matching import dummy_gradient, target_of
from prunella.attacks.engine.objectives import flatten
from prunella.core.randomness import stream


def test_with_the_engine_s_own_dummy_it_is_the_engine(view, task) -> None:
    for soft in (False, True):
        attack = Inversion(tv=0.1)
        target = target_of(view, task.build(), True, 16)
        adapted = AdaptedTarget(
            lambda x, y, t=target: flatten(dummy_gradient(t, x, y)), target.flat, target.support, target
        )
        labels = None if soft else torch.tensor([3])
        ours, theirs = (first_guess(target, task, labels, stream(0, purpose="guess")) for _ in range(2))
        values = evaluator(adapted, attack, ours)(), plain_evaluator(target, attack, theirs)()
        torch.testing.assert_close(values[0], values[1])
        for mine, other in zip(ours.variables(), theirs.variables(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_the_label_that_explains_the_update_is_found_among_many(task, trained, batch) -> None:
    """A dummy that hides the label's evidence from the first guess: only descent tells the classes apart."""
    from prunella.attacks.score.control import undefended_view

    truth = batch(0, 1)
    view = undefended_view(task, *trained, truth)
    target = target_of(view, task.build(), True, 16)
    shuffled = target_of(undefended_view(task, *trained, batch(5, 1)), task.build(), True, 16)
    adapted = AdaptedTarget(lambda x, y: flatten(dummy_gradient(target, x, y)), target.flat, target.support, shuffled)
    found = solve(adapted, view, task, Inversion(iterations=150), stream(0, purpose="attack"))
    assert torch.equal(found.y, truth.y)
