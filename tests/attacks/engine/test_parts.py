"""One image that dominates the update of a batch, and when an answer of fewer images counts."""

import dataclasses
import math

import pytest
import torch

from prunella.attacks.engine.case import ASKED, Case, Found
from prunella.attacks.engine.parts import IN_PART, alone, only_part, part_of, with_parts
from prunella.attacks.portfolio import Portfolio
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.task import Task, initial

SETTINGS = Portfolio(iterations=200)


def found(x: torch.Tensor, missed: float, by: str = "all", compared: bool = True) -> Found:
    y = torch.zeros(len(x), dtype=torch.int64)
    return Found(by, Reconstruction(x, y, missed, 1, explained=False, compared=compared), None, missed)


def case_of(view: ServerView, task: Task) -> Case:
    return Case(view, task, SETTINGS, stream(0, purpose="attack"), math.inf)


@pytest.fixture
def dominated(digits: PrivateBatch, task: Task, trained: tuple[Tree, Tree], batch) -> tuple[ServerView, torch.Tensor]:
    """Seven digits that the model has learnt, and one of another label, whose loss is far above theirs."""
    params, buffers = trained
    module = task.build()
    with torch.no_grad():
        logits = torch.func.functional_call(module, (params, buffers), (digits.x[:500],))
    sure = torch.nn.functional.cross_entropy(logits, digits.y[:500], reduction="none").argsort()[:7]
    odd = batch(0, 1)
    truth = PrivateBatch(torch.cat([digits.x[sure], odd.x]), torch.cat([digits.y[sure], (odd.y + 3) % 10]))
    return undefended_view(task, params, buffers, truth), odd.x


def best(parts: list[Found]) -> Found:
    return min(parts, key=lambda each: each.missed)


def test_the_image_that_dominates_a_batch_is_found_alone(dominated, task: Task) -> None:
    view, odd = dominated
    part = best(alone(case_of(view, task), 0.5))
    assert part.missed < 0.01 and psnr(odd, part.answer.x)[0] > 25


@pytest.mark.parametrize("wrong", ["weights", "noise"])
def test_a_wrong_view_has_no_part_that_counts(dominated, task: Task, wrong: str) -> None:
    view, odd = dominated
    draw = stream(0, purpose="noise")
    noise = {n: u + 3 * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
    changes = {"weights": {"params": initial(task, 1)[0]}, "noise": {"update": noise}}
    parts = alone(case_of(dataclasses.replace(view, **changes[wrong]), task), 0.5)
    assert part_of(parts, 0.5) is None and psnr(odd, best(parts).answer.x)[0] < 18


def test_one_image_and_several_steps_have_no_part(view: ServerView, task: Task, fresh, batch) -> None:
    assert alone(case_of(view, task), 0.5) == []
    steps = dataclasses.replace(undefended_view(task, *fresh, batch(0, 4)), steps=2, batch_size=2)
    assert alone(case_of(steps, task), 0.5) == []


def test_a_part_counts_by_what_it_misses_beside_all() -> None:
    x = torch.rand(1, 1, 8, 8)
    for part, whole, counts in ((0.005, 1e-3, True), (0.03, 0.02, True), (0.03, 0.005, False), (0.2, math.inf, False)):
        assert (part_of([found(x, part)], whole) is not None) is counts
    exact, one = found(x.repeat(3, 1, 1, 1), 1e-9, compared=False), found(x, 1e-12, compared=False)
    assert part_of([one, exact], 0.5) is exact and part_of([], 0.5) is None


def test_a_part_takes_the_nearest_places_and_never_explains() -> None:
    whole = torch.rand(4, 1, 8, 8, generator=stream(0, purpose="images"))
    odd = (whole[2:3] * 0.5 + 0.2).clamp(0, 1)
    joined = with_parts(found(whole, 0.3), [found(odd, 0.004, "one")])
    assert joined.stage == IN_PART and joined.by == "one; all" and len(joined.answer.x) == 4
    assert torch.equal(joined.answer.x, torch.cat([odd, whole[[0, 1, 3]]]))
    kept = with_parts(found(whole, 0.001), [found(whole[2:3] + 0.001, 0.004, "one")])
    assert kept.stage == ASKED and kept.by == "all", "it is there already, and better"
    many = with_parts(found(whole, 0.3), [found(torch.rand(6, 1, 8, 8), 1e-9, "rows")])
    assert len(many.answer.x) == 6


def test_a_part_stands_alone_where_there_is_no_other_answer() -> None:
    x = torch.rand(1, 1, 8, 8)
    broken, part = found(torch.full((4, 1, 8, 8), torch.nan), math.inf), found(x, 1e-9, "rows")
    kept = with_parts(broken, [part])
    assert (kept.by, kept.stage) == ("rows", IN_PART) and torch.equal(kept.answer.x, x)
    alone = only_part([part])
    assert alone is not None and alone.stage == IN_PART and only_part([found(x, 0.2)]) is None
