"""What may move a guarded model; whole loops that are refused are in tests/flower/test_loop.py."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from prunella.core.errors import ConfigError, DefenseError, PrunellaError
from prunella.flower.moved import MovedBy


class Work:
    refused = ""

    def refuse(self, error: PrunellaError) -> PrunellaError:
        self.refused = str(error)
        return error


@pytest.fixture
def watch() -> Iterator[Callable[..., tuple[nn.Module, MovedBy, list[Any]]]]:
    made: list[MovedBy] = []

    def begin(hides_images: bool = False) -> tuple[nn.Module, MovedBy, list[Any]]:
        model, steps = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), list[Any]()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        made.append(MovedBy(Work(), model, dict(model.named_parameters()), hides_images, steps.append))  # type: ignore[arg-type]
        return model, made[-1], steps

    yield begin
    for each in made:
        each.release()


def test_an_optimiser_steps_once_on_defended_gradients_and_others_are_left_alone(watch: Any) -> None:
    model, moved, steps = watch()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DefenseError, match=r"without guard.gradients.*of several: an object whose step"):
        sgd.step()
    moved.require_unmoved()
    moved.takes_gradients()
    moved.defended()
    sgd.step()
    assert steps == [sgd] and moved.used()
    with pytest.raises(DefenseError, match="without guard.gradients"):
        sgd.step()
    other = nn.Linear(1, 1)
    other.weight.grad = torch.ones(1, 1)
    torch.optim.SGD([other.weight], lr=0.1).step()
    assert steps == [sgd]
    moved.release()
    sgd.step()


def test_a_closure_takes_gradients_that_no_defense_sees(watch: Any) -> None:
    model, moved, _ = watch()
    moved.defended()
    with pytest.raises(ConfigError, match="gradients of its own"):
        torch.optim.SGD(model.parameters(), lr=0.1).step(lambda: 0.0)


def test_what_moves_the_parameters_otherwise_shows(watch: Any) -> None:
    model, moved, _ = watch()
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-6
    with pytest.raises(DefenseError, match="moved outside"):
        moved.require_unmoved()
    moved.settled()
    moved.require_unmoved()
    moved.defended()
    assert not moved.used(), "no optimiser has used the gradients"


def test_a_buffer_that_is_no_batch_norm_s_is_named() -> None:
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    moved = MovedBy(Work(), model, dict(model.named_parameters()), True, lambda _: None)  # type: ignore[arg-type]
    model(torch.randn(4, 3))
    with pytest.raises(DefenseError, match=r"the buffer parametrizations.weight.0._[uv] moved .*eval\(\)"):
        moved.require_statistics()
    moved.settled()
    model.eval()(torch.randn(4, 3))
    moved.require_statistics()
    moved.release()


def test_statistics_move_by_shown_images_only_where_a_defense_hides_images(watch: Any) -> None:
    for hides_images in (False, True):
        model, moved, _ = watch(hides_images)
        moved.shows_images()
        model(torch.randn(4, 2))
        moved.require_statistics()
        moved.settled()
        model(torch.randn(4, 2))
        if hides_images:
            with pytest.raises(DefenseError, match="batch norm has seen images"):
                moved.shows_images()
        else:
            moved.shows_images()
