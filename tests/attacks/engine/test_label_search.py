import dataclasses

import pytest
import torch

from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.label_search import Budget, LabelSearch, made, moves, search
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.score.control import matched_view, undefended_view
from prunella.attacks.score.leakage import assign, paired, psnr
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task


def steps_of(task: Task, fresh, truth: PrivateBatch, steps: int) -> Target:
    """The problem of a client that trains on ``truth`` in so many steps, labels unknown."""
    size = len(truth.y) // steps
    like = dataclasses.replace(undefended_view(task, *fresh, truth), steps=steps, batch_size=size)
    parts = zip(torch.split(truth.x, size), torch.split(truth.y, size), strict=True)
    return target_of(matched_view(task, like, [PrivateBatch(x, y) for x, y in parts]), task.build(), True, 16)


def test_moves_are_those_that_lower_the_distance_the_largest_decrease_first() -> None:
    slope = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    y, steps = torch.tensor([0, 1, 2, 0]), [(0,), (0,), (1,), (1,)]

    def change(move) -> float:
        return sum(float(slope[i, c] - slope[i, y[i]]) for i, c in move)

    found = moves(slope, y, steps)
    every = [((i, c),) for i in range(4) for c in range(3) if c != y[i]]
    every += [((i, int(y[j])), (j, int(y[i]))) for i, j in ((0, 2), (1, 2), (1, 3))]  # (0, 3) share a label
    assert set(found) == {move for move in every if change(move) < 0}
    assert [change(move) for move in found] == sorted(change(move) for move in found)
    assert made(y, ((0, 1), (1, 0))).tolist() == [1, 0, 2, 0] and y.tolist() == [0, 1, 2, 0]


def test_two_labels_in_each_others_steps_are_exchanged(task, fresh, batch) -> None:
    truth = batch(0, 4)
    wrong = truth.y[torch.tensor([2, 1, 0, 3])]
    assert wrong[0] != truth.y[0]
    work = LabelSearch(steps_of(task, fresh, truth, 2), task, Budget(600))
    start = torch.full_like(truth.x, 0.5) + 0.1 * torch.randn(truth.x.shape, generator=stream(0, purpose="start"))
    at = work.fixed(start, wrong, 60)
    assert at.objective > 10 * EXPLAINED
    best = [at, *work.improvements(at)][-1]
    assert best.objective <= EXPLAINED
    assert [sorted(each.tolist()) for each in best.y.split(2)] == [sorted(each.tolist()) for each in truth.y.split(2)]


def test_a_budget_ends_the_search_and_the_same_seed_gives_the_same_answer(task, fresh, batch) -> None:
    target = steps_of(task, fresh, batch(0, 4), 2)
    budgets = [Budget(100), Budget(100)]
    one, two = (search(target, task, stream(0, purpose="search"), budget) for budget in budgets)
    assert torch.equal(one.x, two.x) and torch.equal(one.y, two.y)
    assert all(budget.left() == 0 and budget.evaluations > -100 for budget in budgets)
    assert Budget(5, late=lambda: True).left() == 0


@pytest.mark.slow
def test_two_steps_of_three_digits_without_labels_are_rebuilt(task, fresh, batch) -> None:
    truth = batch(0, 6)
    best = search(steps_of(task, fresh, truth, 2), task, stream(0, purpose="search"), Budget(1200))
    pairs = assign(truth.x, best.x.clamp(0, 1))
    gain = psnr(*paired(truth.x, best.x.clamp(0, 1), pairs))
    assert best.objective <= EXPLAINED and sum(gain) / len(gain) > 20
