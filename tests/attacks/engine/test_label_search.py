import dataclasses
from types import SimpleNamespace

import pytest
import torch

from prunella.attacks.engine import label_search
from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.label_search import (
    Budget,
    LabelSearch,
    Mixture,
    likeliest,
    made,
    mixed_plan,
    moves,
    search,
)
from prunella.attacks.engine.latent import PIXELS, Latent
from prunella.attacks.engine.matching import Target, TrainingPlan, target_of
from prunella.attacks.score.control import matched_view, undefended_view
from prunella.attacks.score.leakage import assign, paired, psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd


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


def mixture(target: Target, task: Task, latent: Latent = PIXELS) -> Mixture:
    return Mixture(target, task, latent, torch.arange(task.classes), stream(0, purpose="mixture"))


@pytest.mark.parametrize("steps", [1, 2])
def test_what_a_client_did_is_a_mixture_that_explains_the_update(task, fresh, digits, steps) -> None:
    """Images of classes that differ, in every step as many as one: their weights are a third each."""
    picked = [int((digits.y == label).nonzero()[place]) for place, label in enumerate((3, 1, 4, 3, 5, 9)[: 3 * steps])]
    truth = PrivateBatch(digits.x[picked], digits.y[picked])
    target = steps_of(task, fresh, truth, steps)
    mixed = mixture(target, task)
    with torch.no_grad():
        mixed.logits.fill_(-60.0)
        for image, label in enumerate(truth.y.tolist()):
            mixed.logits[image // 3, label] = 0.0
            mixed.z[image // 3 * task.classes + label] = truth.x[image] - 0.5
    mixed.evaluate()
    assert mixed.objective < 1e-6
    z, y = mixed.rounded(target.plan, stream(0, purpose="apart"))
    assert [sorted(each.tolist()) for each in y.split(3)] == [sorted(each.tolist()) for each in truth.y.split(3)]
    assert 0.01 < float((z + 0.5 - truth.x[[int(i) for i in order_of(truth.y, y)]]).std()) < 0.1


def order_of(truth: torch.Tensor, found: torch.Tensor) -> list[int]:
    """For every label found the place of that label, in the same group of three, in the truth."""
    return [start + truth[start : start + 3].tolist().index(label)
            for start in range(0, len(truth), 3) for label in found[start : start + 3].tolist()]  # fmt: skip


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_the_slopes_of_a_mixture_are_those_of_finite_differences(task, fresh, batch, weight: float) -> None:
    mixed = mixture(steps_of(task, fresh, batch(0, 4), 2), task, Latent(PIXELS.decode, weight, deviation=0.25))
    for variable in (mixed.z, mixed.logits):
        mixed.evaluate()
        direction = variable.grad.clone() / variable.grad.norm()
        slope = float((variable.grad * direction).sum())
        values = []
        for way in (0.02, -0.02):
            with torch.no_grad():
                variable += way * direction
            values.append(float(mixed.evaluate()))
            with torch.no_grad():
                variable -= way * direction
        assert slope > 0 and (values[0] - values[1]) / 0.04 == pytest.approx(slope, rel=0.05)


def test_images_that_come_again_share_one_mixture() -> None:
    again = mixed_plan(TrainingPlan(3, ((0, 1), (2, 0)), Sgd(0.1)), 10)
    assert again.images == 10 and again.batches == (tuple(range(10)),) * 2
    assert mixed_plan(TrainingPlan(4, ((0, 1), (2, 3)), Sgd(0.1)), 10).images == 20


def test_a_mixture_has_the_classes_that_the_update_tells_of(fresh, batch) -> None:
    """Of a hundred classes those of the images are in it."""
    many = Task("cnn", (1, 8, 8), 100)
    truth = PrivateBatch(batch(0, 4).x, torch.tensor([3, 41, 87, 99]))
    view = undefended_view(many, *initial(many, 0), truth)
    target = target_of(view, many.build(), True, 16)
    found = likeliest(target, many, stream(0, purpose="likeliest")).tolist()
    assert len(found) == 20 and found == sorted(found) and set(truth.y.tolist()) <= set(found)


def test_two_labels_in_each_others_steps_are_exchanged(task, fresh, batch) -> None:
    truth = batch(0, 4)
    wrong = truth.y[torch.tensor([2, 1, 0, 3])]
    assert wrong[0] != truth.y[0]
    work = LabelSearch(steps_of(task, fresh, truth, 2), task, Budget(600))
    start = 0.1 * torch.randn(truth.x.shape, generator=stream(0, purpose="start"))
    at = work.fixed(start, wrong, 60)
    assert at.objective > 10 * EXPLAINED
    best = [at, *work.improvements(at)][-1]
    assert best.objective <= EXPLAINED
    assert [sorted(each.tolist()) for each in best.y.split(2)] == [sorted(each.tolist()) for each in truth.y.split(2)]


def test_a_budget_ends_the_search_and_the_same_seed_gives_the_same_answer(task, fresh, batch) -> None:
    target = steps_of(task, fresh, batch(0, 4), 2)
    budgets = [Budget(100), Budget(100)]
    one, two = (search(target, task, stream(0, purpose="search"), budget).best for budget in budgets)
    assert torch.equal(one.z, two.z) and torch.equal(one.y, two.y)
    assert all(budget.left() < 100 and budget.evaluations > -100 for budget in budgets)
    assert Budget(5, stopped=lambda: True).left() == 0


def test_a_budget_is_what_the_time_that_is_left_is_enough_for_at_the_pace_of_what_was_timed(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(label_search, "time", SimpleNamespace(monotonic=lambda: now[0]))
    budget = Budget(1000, end=100.0)
    budget.spend(100)
    assert budget.left() == 900 and not budget.short, "whose time nobody took"
    now[0] = 20.0
    budget.spend(100, 20.0)
    assert budget.left() == 400 and budget.short, "80 seconds, five in each"
    budget.end = 1000.0
    assert budget.left() == 800, "time enough"
    now[0] = 90.0
    budget.spend(1, 70.0)
    assert budget.left() == 799, "one evaluation tells no pace"


def test_steps_of_digits_without_labels_are_rebuilt_and_a_wrong_view_shows_others(task, fresh, batch) -> None:
    """Two steps of two; the update of others has nothing of them."""
    truth, other = batch(0, 4), batch(6, 4)
    mine, wrong = (rebuilt(task, fresh, each) for each in (truth, other))
    assert mine.objective <= EXPLAINED and gain(truth.x, mine) > 25
    assert gain(truth.x, wrong) < gain(truth.x, mine) - 8


def rebuilt(task: Task, fresh, truth: PrivateBatch):  # noqa: ANN201
    return search(steps_of(task, fresh, truth, 2), task, stream(0, purpose="search"), Budget(1500)).best


def gain(truth: torch.Tensor, found) -> float:  # noqa: ANN001
    images = PIXELS.decode(found.z, found.y).clamp(0, 1)
    values = psnr(*paired(truth, images, assign(truth, images)))
    return sum(values) / len(values)


def test_a_search_ends_where_a_descent_goes_on_no_further(task, fresh, batch, monkeypatch) -> None:
    """What is left of the budget goes into the best, until that does not help."""
    target = steps_of(task, fresh, batch(0, 2), 1)
    work = LabelSearch(target, task, Budget(5000))
    z = 0.1 * torch.randn(batch(0, 2).x.shape, generator=stream(0, purpose="start"))
    first = work.fixed(z, batch(0, 2).y, 20)
    last = work.settled(first, 0.0)
    assert last.objective < first.objective and work.budget.left() > 0


def test_what_diverges_is_no_answer(task, fresh, batch) -> None:
    target = steps_of(task, fresh, batch(0, 2), 1)
    broken = Latent(lambda z, y: z * float("nan"), deviation=0.25)
    with pytest.raises(AttackError, match="diverged"):
        search(target, task, stream(0, purpose="search"), Budget(100), broken)
