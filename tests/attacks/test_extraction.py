"""Rows of the first layer that hold one image alone, and what is mistaken for them."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn

from prunella.attacks import ATTACKS, portfolio
from prunella.attacks.extraction import Extraction, grouped, pictures
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import assign, paired, psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task, initial

Batch = Callable[[int, int], PrivateBatch]


def wide(shape: Shape, classes: int) -> nn.Module:
    features = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, classes))


TASK = Task("tests.attacks.test_extraction:wide", (1, 8, 8), 10)


def seen(truth: PrivateBatch, seed: int = 0) -> ServerView:
    return undefended_view(TASK, *initial(TASK, seed), truth)


def run(view: ServerView, task: Task = TASK) -> Reconstruction:
    return ATTACKS["extraction"].reconstruct(view, task, Extraction(), stream(0, purpose="attack"))


def least(found: Reconstruction, truth: PrivateBatch) -> float:
    return min(psnr(*paired(truth.x, found.x, assign(truth.x, found.x))))


@pytest.fixture
def crowd(digits: PrivateBatch) -> Batch:
    """``crowd(first, count)``: noisy digits, no two of which are alike."""

    def draw(first: int, count: int) -> PrivateBatch:
        noise = 0.1 * torch.rand((count, 1, 8, 8), generator=stream(first, purpose="noise"))
        return PrivateBatch((digits.x[first:][:count] * 0.9 + noise), digits.y[first:][:count])

    return draw


def noisy(view: ServerView, size: float) -> ServerView:
    draw = stream(0, purpose="noise")
    return dataclasses.replace(
        view, update={n: u + size * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
    )


def test_images_that_stand_alone_come_back_exactly_and_with_their_labels(crowd: Batch) -> None:
    truth = crowd(0, 12)
    found = run(seen(truth))
    assert len(found.x) >= 3 and least(found, truth) > 50
    for t, g in assign(truth.x, found.x):
        assert truth.y[t] == found.y[g]
    if len(found.x) < 12:
        assert (found.explained, found.fit) == (False, None)


def test_all_images_of_a_batch_explain_its_update(crowd: Batch) -> None:
    truth = crowd(0, 4)
    found = run(seen(truth))
    assert len(found.x) == 4 and least(found, truth) > 50 and found.explained and found.objective < 1e-6


@pytest.mark.parametrize("wrong", ["weights", "noise", "number"])
def test_no_row_of_a_wrong_view_is_confirmed(crowd: Batch, wrong: str) -> None:
    """Rows of an update at other weights are images still; what confirms them is the model."""
    view = seen(crowd(0, 12))
    wrongs = {
        "weights": lambda: dataclasses.replace(view, params=initial(TASK, 1)[0]),
        "noise": lambda: noisy(view, 1.0),
        "number": lambda: dataclasses.replace(view, batch_size=7, num_examples=7),
    }
    with pytest.raises(AttackError, match="row"):
        run(wrongs[wrong]())


def test_it_refuses_what_it_cannot_read(crowd: Batch, view: ServerView, task: Task) -> None:
    with pytest.raises(AttackError, match="no layer before"):
        run(view, task)
    for change in ({"steps": 2}, {"learning_rate": None}, {"batch_size": None, "num_examples": None}):
        with pytest.raises(AttackError):
            run(dataclasses.replace(seen(crowd(0, 4)), **change))


def test_flat_rows_and_rows_out_of_range_are_no_images_and_each_is_given_once() -> None:
    image = torch.tensor([0.0, 0.5, 1.0])
    weight = torch.stack([image * 2, torch.full((3,), 0.5), image * -3, image + 1.0, image]).double()
    bias = torch.tensor([2.0, 1.0, -3.0, 1.0, 0.0]).double()
    rows, units = pictures(weight, bias, torch.ones(5, dtype=torch.bool), torch.zeros(5).double())
    assert units.tolist() == [2, 0] and grouped(rows).tolist() == [0, 0]


def test_where_no_row_arrived_there_are_no_pictures_and_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    rows, units = pictures(torch.rand(3, 4), torch.ones(3), torch.zeros(3, dtype=torch.bool), torch.zeros(3))
    assert rows.shape == (0, 4) and not len(units) and not len(recwarn)


def test_the_portfolio_reads_rows_of_more_images_than_are_in_memory(crowd: Batch) -> None:
    """Seventeen and more were merged into sixteen, and nobody that reads a layer was asked."""
    truth = crowd(0, 20)
    quick = portfolio.Portfolio(passes=400, label_passes=400, iterations=40, restarts=1)
    attack = ATTACKS["portfolio"].reconstruct
    found = attack(seen(truth), TASK, quick, stream(0, purpose="attack"))
    gain = psnr(*paired(truth.x, found.x, assign(truth.x, found.x)))
    assert found.found_by.split(";")[0] in ("extraction", "spear") and max(gain) > 50
    assert len(found.x) <= 20
    foreign = dataclasses.replace(seen(truth), params=initial(TASK, 1)[0])
    for wrong in (foreign, noisy(seen(truth), 1.0)):
        found = attack(wrong, TASK, quick, stream(0, purpose="attack"))
        assert "extraction" not in found.found_by and not found.explained
        assert max(psnr(*paired(truth.x, found.x, assign(truth.x, found.x)))) < 18
