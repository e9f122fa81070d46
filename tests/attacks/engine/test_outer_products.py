import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.outer_products import (
    by_agreement,
    first_linear,
    front_gradient,
    input_of,
    most_frequent,
    read,
    span_of,
)
from prunella.attacks.score.control import undefended_view
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import full_mask
from prunella.tasks.task import Task, initial

MODELS = ("cnn", "lenet-zhu")


def problem(model: str, truth):
    task = Task(model, (1, 8, 8), 10)
    view = undefended_view(task, *initial(task, 0), truth)
    target = target_of(view, task.build(), True, 16)
    return view, target, first_linear(target.module, task.shape)[0]


@pytest.mark.parametrize("model", MODELS)
def test_one_image_s_input_and_the_gradient_before_it_are_read_exactly(model: str, batch) -> None:
    truth, other = batch(0, 1), batch(1, 1)
    view, target, layer = problem(model, truth)
    reading = read(target, layer, full_mask(view.update))
    assert not reading.mixed and reading.scaled and bool((reading.known == 1).all())
    found = reading.rows.float()
    torch.testing.assert_close(found, input_of(target, layer, truth.x).detach(), rtol=1e-3, atol=1e-5)
    assert float((found - input_of(target, layer, other.x)).detach().norm() / found.norm()) > 0.02
    own = front_gradient(target, layer, input_of(target, layer, truth.x.requires_grad_()), reading.slope)
    assert own and not {name for name in own if name.startswith(layer)}
    for name, gradient in own.items():
        torch.testing.assert_close(gradient.detach(), view.update[name] / -0.1, rtol=1e-3, atol=1e-5)


def test_of_a_batch_the_span_of_the_inputs_is_read(batch) -> None:
    truth, other = batch(0, 3), batch(3, 3)
    view, target, layer = problem("cnn", truth)
    reading = read(target, layer, full_mask(view.update))
    assert reading.mixed and len(reading.rows) == 3
    own = span_of(input_of(target, layer, truth.x).detach(), reading)
    foreign = span_of(input_of(target, layer, other.x).detach(), reading)
    assert float((own - reading.rows).norm()) < 0.01 < 0.1 < float((foreign - reading.rows).norm())


def test_what_a_filling_left_true_is_told_by_agreement_and_noise_has_none() -> None:
    generator = stream(0, purpose="x")
    slope, row = torch.randn(10, generator=generator).double(), torch.randn(2000, generator=generator).double()
    true = torch.rand((10, 2000), generator=generator) < 0.3
    noise = torch.randn((10, 2000), generator=generator).double()
    seen = torch.where(true, torch.outer(slope, row), noise)
    bias = slope.clone()
    bias[3:] = -bias[3:].flip(0)  # most of the bias is made up, too
    found = by_agreement(seen, bias, torch.ones_like(true))
    assert found is not None and found.filled and found.scaled and found.slope is not None
    exact = found.known == 1
    wrong = (found.rows[0] - row).abs() > 1e-3 * row.abs()
    assert 0.6 < float(exact.double().mean()) < 0.95 and float(wrong[exact].double().mean()) < 0.03
    torch.testing.assert_close(found.slope, slope, rtol=1e-3, atol=1e-6)
    assert by_agreement(noise, None, torch.ones_like(true)) is None


@pytest.mark.parametrize(("share", "columns"), [(0.3, 200), (0.2, 200), (0.2, 3000), (0.15, 500)])
def test_of_few_values_that_were_drawn_the_rows_tell_each_other_s_ratios(share: float, columns: int) -> None:
    """No two rows need have many columns in common, and a column that only one has is as exact as any other."""
    generator = stream(0, purpose="x")
    slope, row = torch.randn(64, generator=generator).double(), torch.randn(columns, generator=generator).double()
    sent = torch.rand((64, columns), generator=generator) < share
    bias = torch.where(torch.rand(64, generator=generator) < share, slope, 0.0)
    found = by_agreement(torch.outer(slope, row) * sent, bias, sent)
    assert found is not None and found.scaled and not found.filled
    assert bool((found.known == 1).all()) and torch.allclose(found.rows[0], row, rtol=1e-4)
    noise = torch.randn((64, columns), generator=generator).double() * sent
    assert by_agreement(noise, bias, sent) is None


def test_the_most_frequent_figure_is_found_of_either_sign() -> None:
    noise = torch.linspace(0.1, 9, 50)
    assert most_frequent(torch.cat([noise, torch.full((4,), -3.0)])) == (pytest.approx(-3.0), 4)


class HeadFirst(nn.Module):
    """Declares its last layer before its first, as no rule forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body, self.norm = nn.Linear(5, 10), nn.Linear(64, 5), nn.BatchNorm1d(5).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x.flatten(1))))


def test_the_first_linear_layer_is_the_one_that_is_called_first() -> None:
    module = HeadFirst().train()
    module.norm.eval()
    assert first_linear(module, (1, 8, 8)) == ("body", (64, 1, 1))
    assert module.training and not module.norm.training and not module.body._forward_pre_hooks


def test_a_model_or_view_without_such_a_layer_is_refused(batch) -> None:
    with pytest.raises(AttackError, match="no linear layer"):
        first_linear(nn.Conv2d(1, 1, 3), (1, 8, 8))
    view, target, layer = problem("cnn", batch(0, 1))
    nothing = dataclasses.replace(target, flat=torch.zeros_like(target.flat))
    with pytest.raises(AttackError, match="nothing of the linear layer"):
        read(nothing, layer, None)
