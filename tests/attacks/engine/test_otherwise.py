"""The portfolio rebuilds one image whose client had another loss or sent less, and takes no reading that explains
nothing."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from prunella.attacks.engine.case import Case
from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.otherwise import read_otherwise
from prunella.attacks.engine.readings import ANY_LOSS, MOVED, NORMALISED, OPPOSITE, SCALES, SIGNS, WEIGHTS, at_once
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.portfolio import PLAIN, Portfolio, explore, reconstruct
from prunella.attacks.score.leakage import assign, psnr
from prunella.attacks.score.level import FITTED
from prunella.core.randomness import stream
from prunella.server.audit.attempt import Order, attempt
from prunella.tasks.normalisation import USUAL, Normal
from prunella.tasks.task import ModuleTask, Task
from tests.attacks.engine.test_readings import UNLIKE, Loss, clipped, largest, several_labels, view_of, wrongly

SHORT, LONGER = (Portfolio(passes=passes, seconds=60.0) for passes in (1000, 4000))


@pytest.mark.parametrize("loss", UNLIKE)
def test_the_portfolio_rebuilds_it_and_calls_it_explained(task: Task, batch, loss: Loss) -> None:  # noqa: ANN001
    own = batch(0, 1)
    order = Order("portfolio", SHORT, stream(0, purpose="attack"))
    found = attempt(view_of(task, own.x, own.y, loss), task, order, ResumeStore())
    assert psnr(own.x, found.rebuilt.x)[0] > 30 and found.explained
    assert found.rebuilt.fit is not None and found.rebuilt.fit <= FITTED
    assert str(found.rebuilt.found_by).endswith(ANY_LOSS)


def test_what_the_first_layer_tells_is_held_against_the_slope(batch) -> None:  # noqa: ANN001
    """Three labels at once, of an MLP some of whose units are silent and some of whose pixels are black."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    task, own = ModuleTask("wide", (1, 14, 14), 10, wide), batch(0, 1)
    x = interpolate(own.x, size=(14, 14), mode="bilinear")
    found = reconstruct(view_of(task, x, own.y, several_labels), task, SHORT, stream(0, purpose="attack"))
    assert psnr(x, found.x)[0] > 30 and str(found.found_by).endswith(ANY_LOSS), found.found_by


def test_what_an_app_did_not_send_is_no_zero_to_the_portfolio(task: Task, batch) -> None:  # noqa: ANN001
    own = batch(0, 1)
    found = reconstruct(largest(view_of(task, own.x, own.y)), task, SHORT, stream(0, purpose="attack"))
    assert psnr(own.x, found.x)[0] > 30 and str(found.found_by).endswith(MOVED)


def test_of_many_images_a_gradient_in_place_of_weights_has_its_size(batch) -> None:  # noqa: ANN001
    """Readers of linear layers go by it."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 10))
    task, own = ModuleTask("wide", (1, 8, 8), 10, wide), batch(0, 8)
    view = replace(view_of(task, own.x, own.y), num_examples=8, batch_size=8)
    found = reconstruct(wrongly(view, lambda p, u: -10 * u), task, SHORT, stream(0, purpose="attack"))
    assert min(psnr(own.x, found.x[assigned(own.x, found.x)])) > 40 and str(found.found_by).endswith(OPPOSITE)


@pytest.mark.parametrize("images", [1, 2])
def test_what_an_app_sends_in_place_of_weights_is_rebuilt(task: Task, batch, images: int) -> None:  # noqa: ANN001
    """Differences, from which a recorder subtracts the weights once more."""
    own = batch(0, images)
    view = replace(view_of(task, own.x, own.y), num_examples=images, batch_size=images)
    order = Order("portfolio", SHORT, stream(0, purpose="attack"))
    found = attempt(wrongly(view, lambda p, u: u), task, order, ResumeStore())
    assert min(psnr(own.x, found.rebuilt.x[assigned(own.x, found.rebuilt.x)])) > 30 and found.explained
    assert str(found.rebuilt.found_by).endswith(WEIGHTS)


def test_two_images_of_layers_at_scales_of_their_own_are_rebuilt(task: Task, batch) -> None:  # noqa: ANN001
    own = batch(0, 2)
    view = replace(view_of(task, own.x, own.y), num_examples=2, batch_size=2)
    lars = replace(view, update={name: u / u.norm() for name, u in view.update.items()})
    found = reconstruct(lars, task, SHORT, stream(0, purpose="attack"))
    assert min(psnr(own.x, found.x[assigned(own.x, found.x)])) > 25 and str(found.found_by).endswith(SCALES)


@pytest.mark.parametrize("normal", [USUAL[0], USUAL[1]])
def test_an_image_that_an_app_normalises_is_rebuilt_in_its_own_range(task: Task, batch, normal: Normal) -> None:  # noqa: ANN001
    own, ((mean,), (std,)) = batch(0, 1), normal
    order = Order("portfolio", LONGER, stream(0, purpose="attack"))
    found = attempt(view_of(task, (own.x - mean) / std, own.y), task, order, ResumeStore())
    assert psnr(own.x, found.rebuilt.x)[0] > 30 and found.explained and found.rebuilt.compared
    assert str(found.rebuilt.found_by).endswith(f"{NORMALISED} as (x - {mean}) / {std}"), found.rebuilt.found_by


def test_a_gradient_that_looks_like_signs_is_rebuilt_as_the_view_says() -> None:
    """Of two classes one linear layer's gradient is the image, in either sign: of a pale one, nearly the same size
    everywhere."""
    torch.manual_seed(0)
    task = ModuleTask("linear", (1, 8, 8), 2, nn.Sequential(nn.Flatten(), nn.Linear(64, 2)))
    x, y = 0.6 + 0.3 * torch.rand(1, 1, 8, 8), torch.tensor([1])
    view = view_of(task, x, y)
    told = at_once(view, target_of(view, task.build(), True, 1))
    assert told is not None and told.how == SIGNS
    order = Order("portfolio", SHORT, stream(0, purpose="attack"))
    found = attempt(view, task, order, ResumeStore())
    assert psnr(x, found.rebuilt.x)[0] > 60 and found.explained and not str(found.rebuilt.found_by).endswith(SIGNS)


def test_of_values_clipped_one_by_one_an_image_is_rebuilt_and_never_explained(task: Task, batch) -> None:  # noqa: ANN001
    own = batch(0, 1)
    order = Order("portfolio", replace(SHORT, passes=600), stream(0, purpose="attack"))
    found = attempt(clipped(view_of(task, own.x, own.y)), task, order, ResumeStore())
    assert psnr(own.x, found.rebuilt.x)[0] > 20 and str(found.rebuilt.found_by).endswith(SIGNS)
    assert not found.explained and not found.rebuilt.compared, "signs are fewer bits than an image"


class Fickle(nn.Module):
    """A model that at some time finds no memory any more."""

    refuses = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        if Fickle.refuses:
            raise RuntimeError("out of memory")
        return self.layers(x) + 0  # no network of layers that are known one by one


def test_a_model_that_fails_beside_what_was_found_is_no_end_of_the_audit(batch, monkeypatch) -> None:  # noqa: ANN001
    own = batch(0, 1)
    task = ModuleTask("fickle", (1, 8, 8), 10, Fickle())
    view = view_of(task, own.x, own.y, several_labels)
    case = Case(view, task, SHORT, stream(0, purpose="attack"), math.inf)
    found = explore(case, [PLAIN], 0.1)
    monkeypatch.setattr(Fickle, "refuses", True)
    assert found and read_otherwise(case, found, lambda other, part: []) == found


def assigned(truth: Tensor, found: Tensor) -> list[int]:
    return [guess for _, guess in assign(truth, found)]


def test_an_update_that_no_image_made_is_not_explained_either_way(task: Task, batch) -> None:  # noqa: ANN001
    own = batch(0, 1)
    view = view_of(task, own.x, own.y, several_labels)
    drawn = {name: torch.randn(t.shape, generator=stream(1, purpose=name)) for name, t in view.update.items()}
    order = Order("portfolio", replace(SHORT, passes=400), stream(0, purpose="attack"))
    found = attempt(replace(view, update=drawn), task, order, ResumeStore())
    assert not found.explained and found.rebuilt.objective > FITTED
    several = replace(view_of(task, batch(0, 2).x, batch(0, 2).y), num_examples=2, batch_size=2)
    plain = reconstruct(several, task, replace(SHORT, passes=400), stream(0, purpose="attack"))
    assert not str(plain.found_by).endswith((ANY_LOSS, MOVED)), "of several images no slope is told"
