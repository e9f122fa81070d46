"""Soteria prunes the columns it should, and makes the representation unreadable where it was readable."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import rehearsal
from prunella.core.trees import Tree
from prunella.privacy.soteria import Soteria, pruned_units, soteria
from tests.privacy.steps import make, step_of


def gradient_of(net: torch.nn.Module, params: Tree, x: torch.Tensor, y: torch.Tensor) -> Tree:
    net.load_state_dict(params)
    net.zero_grad()
    cross_entropy(net(x), y).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters()}  # type: ignore[union-attr]


def test_units_are_ranked_by_the_sum_of_ratios_against_a_loop() -> None:
    g = torch.Generator().manual_seed(0)
    r, norms = torch.randn(3, 7, generator=g), torch.rand(3, 7, generator=g)
    score = [sum(float(norms[b, f]) / abs(float(r[b, f])) for b in range(3)) for f in range(7)]
    lowest = sorted(range(7), key=lambda f: score[f])[:4]
    assert pruned_units(r, norms, 0.6).nonzero().flatten().tolist() == sorted(lowest)


def test_only_the_last_layer_changes_and_its_representation_is_gone() -> None:
    """Positive control: undefended, a row of the gradient is proportional to the representation."""
    net, params, x, y = make(batch=1)
    gradient = gradient_of(net, params, x, y)
    step = step_of(net, params, x, y)
    _, features, _ = step.representation()

    def likeness(weight: torch.Tensor) -> float:
        return abs(float(torch.cosine_similarity(weight[0], features[0], dim=0)))

    defended, _ = soteria(Soteria(0.8)).apply(gradient, step, {}, rehearsal(0, purpose="test"))
    assert likeness(gradient["two.weight"]) > 0.9999 and likeness(defended["two.weight"]) < 0.9
    assert int((defended["two.weight"].abs().sum(0) == 0).sum()) == 4
    assert all(torch.equal(defended[k], gradient[k]) for k in params if k != "two.weight")


def test_rate_zero_is_the_identity_and_dead_units_go_first() -> None:
    net, params, x, y = make()
    gradient = gradient_of(net, params, x, y)
    same, _ = soteria(Soteria(0.0)).apply(gradient, step_of(net, params, x, y), {}, rehearsal(0, purpose="test"))
    assert all(torch.equal(same[k], gradient[k]) for k in params)
    assert pruned_units(torch.tensor([[0.0, 1.0, 1.0]]), torch.tensor([[0.0, 2.0, 1.0]]), 0.34).tolist()[0]


def test_bad_settings_and_numbers_are_refused() -> None:
    for rate in (-0.1, 1.0):
        with pytest.raises(ConfigError):
            Soteria(rate)
    with pytest.raises(DefenseError, match="finite"):
        pruned_units(torch.tensor([[1.0, 2.0]]), torch.tensor([[torch.nan, 1.0]]), 0.5)
    net, params, x, y = make()
    with pytest.raises(DefenseError, match="weight"):
        soteria(Soteria()).apply(
            {"other": torch.zeros(2)}, step_of(net, params, x, y), {}, rehearsal(0, purpose="test")
        )
