"""What a scheme may prune, and what a server may call prunable."""

import pytest
import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.flower.prunable import may_be_asked, prunable_names
from tests.flower.foreign import Net


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 3)


def test_a_server_gets_no_bias_by_calling_it_prunable() -> None:
    model = Net()
    state = dict(model.state_dict())
    asked = tuple(state) + ("nothing.weight",)
    assert may_be_asked(state, model, asked) == {"conv.weight", "fc1.weight", "fc2.weight"}
    assert may_be_asked(state, model, ("fc2.bias",)) == frozenset()


def test_what_is_prunable_by_name_alone_may_be_asked_too() -> None:
    """The server may not have the module."""
    model = Attends()
    state = {name: t + torch.rand(()) for name, t in model.state_dict().items()}
    by_name = prunable_names(state, None)
    assert "attention.in_proj_weight" in by_name and "attention.in_proj_weight" not in prunable_names(state, model)
    assert may_be_asked(state, model, tuple(by_name)) == by_name


def test_a_name_is_told_by_its_parts_and_not_by_letters_within_them() -> None:
    names = ("emb.weight", "token_embedding.weight", "wte.weight", "bn1.weight", "layer_norm.weight", "ln_f.weight")
    kept = ("subnet.0.weight", "member.weight", "fc.weight")
    assert prunable_names({name: torch.rand(2, 3) for name in names + kept}, None) == frozenset(kept)


def test_where_nothing_is_prunable_the_reason_is_not_a_model_that_was_given() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    state = dict(tied.state_dict())
    with pytest.raises(ConfigError, match="every weight of Sequential is tied to another, frozen"):
        prunable_names(state, tied)
    with pytest.raises(ConfigError, match=r"give it the model, as model=Net\(\)"):
        prunable_names(state, None)


def test_arrays_without_names_take_layers_of_their_shapes() -> None:
    """As scikit-learn's coef_ and intercept_ do."""
    state = {"0": torch.rand(10, 64), "1": torch.rand(10)}
    with pytest.raises(ConfigError, match=r"model=nn.Linear\(64, 10\)"):
        prunable_names(state, None)
    assert prunable_names(state, nn.Linear(64, 10)) == {"0"}
