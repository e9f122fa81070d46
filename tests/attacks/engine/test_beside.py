"""Batch norm's statistics beside an update that tells nothing by itself; squares are in ``test_squares``."""

import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks.engine.beside import STATISTICS
from prunella.attacks.portfolio import Portfolio, reconstruct
from prunella.attacks.score.leakage import psnr
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.datasets.digits import everything
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task, initial
from prunella.tasks.training import loss_and_gradient

QUICK = Portfolio(passes=40_000, label_passes=0, seconds=600, restarts=1)


def wide(shape: Shape, classes: int) -> nn.Module:
    """160 statistics for the 64 pixels of a digit."""
    features = [nn.Conv2d(shape[0], 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 48, 3, 2, 1)]
    return nn.Sequential(*features, nn.BatchNorm2d(48), nn.ReLU(), nn.Flatten(), nn.Linear(768, classes))


TASK = Task("tests.attacks.engine.test_beside:wide", (1, 8, 8), 10)


@dataclasses.dataclass(frozen=True)
class Public:
    """Only its images are asked for."""

    public: PrivateBatch

    def send(self, *_: object, **__: object) -> ServerView:
        raise AssertionError("nothing is rehearsed where statistics tell the image")


def sent(truth: PrivateBatch, **changes: object) -> ServerView:
    """An update that is noise, beside the statistics that training left."""
    params, buffers = initial(TASK, 0)
    _, gradient, moved = loss_and_gradient(TASK.build(), params, buffers, truth.x, truth.y)
    noise = {name: 0.1 * torch.randn(t.shape, generator=stream(1, purpose=name)) for name, t in gradient.items()}
    sizes = {"num_examples": len(truth.y), "batch_size": len(truth.y), "steps": 1, "learning_rate": 0.1}
    view = ServerView(params, noise, buffers=buffers, received_buffers=moved, defenses=("gaussian",), **sizes)
    return dataclasses.replace(view, **changes)


def found(view: ServerView) -> Reconstruction:
    digits = everything()
    public = PrivateBatch(digits.x[600:1500], digits.y[600:1500])
    return reconstruct(view, TASK, QUICK, stream(0, purpose="attack"), shadow=Public(public))


def test_the_label_is_read_out_of_the_update(batch) -> None:
    truth = batch(0, 1)
    params, buffers = initial(TASK, 0)
    _, gradient, _ = loss_and_gradient(TASK.build(), params, buffers, truth.x, truth.y)
    plain = sent(truth, update={name: -0.1 * g for name, g in gradient.items()}, defenses=("none",))
    told = found(plain)
    assert told.found_by == STATISTICS and told.y.tolist() == truth.y.tolist()


def test_an_image_that_noise_hides_comes_back_by_its_statistics_and_not_another(batch) -> None:
    truth, other = batch(0, 1), batch(1, 1)
    told = found(sent(truth))
    assert told.found_by == STATISTICS and told.explained and told.compared
    assert psnr(truth.x, told.x)[0] > 40 > 25 > psnr(other.x, told.x)[0]


@pytest.mark.parametrize("why", ["nothing came back", "several steps", "more images", "noisy images"])
def test_statistics_are_asked_only_where_they_are_one_batch_s_and_enough(batch, why: str) -> None:
    from prunella.attacks.engine.beside import told
    from prunella.attacks.engine.case import Case

    view = {
        "nothing came back": lambda: sent(batch(0, 1), received_buffers={}),
        "several steps": lambda: sent(batch(0, 1), steps=2, num_examples=1),
        "more images": lambda: sent(batch(0, 2)),
        "noisy images": lambda: sent(batch(0, 1), defenses=("channel-natural", "gaussian")),
    }[why]()
    case = Case(view, TASK, QUICK, stream(0, purpose="attack"), float("inf"))
    before = case.budget.left()
    assert told(case, None) is None and case.budget.left() == before
