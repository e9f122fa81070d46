import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from prunella.pruning.prunefl import Reconfiguration, greedy_set, reconfigure, weight_cost
from prunella.tasks.models import MODELS
from prunella.tasks.task import prunable


def best_by_enumeration(gain: torch.Tensor, cost: torch.Tensor, fixed: torch.Tensor, overhead: float) -> float:
    """max Γ over every subset of the candidates, the slow way."""
    free = [i for i in range(len(gain)) if not fixed[i]]
    best = 0.0
    for count in range(len(free) + 1):
        for chosen in itertools.combinations(free, count):
            inside = fixed.clone()
            inside[list(chosen)] = True
            best = max(best, float(gain[inside].sum() / (overhead + cost[inside].sum())))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_greedy_set_maximises_gain_over_time_on_ten_weights(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    gain = torch.rand(10, generator=g, dtype=torch.float64) ** 3
    cost = torch.rand(10, generator=g, dtype=torch.float64) + 0.1
    fixed = torch.rand(10, generator=g) < 0.3
    chosen = greedy_set(gain, cost, fixed, overhead=0.5)
    assert bool((chosen | ~fixed).all())
    found = float(gain[chosen].sum() / (0.5 + cost[chosen].sum()))
    assert found == pytest.approx(best_by_enumeration(gain, cost, fixed, 0.5), rel=1e-12)


def trees(gain: list[float], weights: list[float], kept: list[bool]):
    one = {"w": torch.tensor(weights), "b": torch.ones(2)}
    return one, {"w": torch.tensor(gain), "b": torch.ones(2)}, {"w": torch.tensor(kept), "b": torch.ones(2).bool()}


def test_small_useless_weights_leave_useful_ones_return_and_biases_stay() -> None:
    params, gain, mask = trees([0.0, 1.0, 9.0, 0.0], [0.01, 5.0, 0.0, 0.0], [True, True, False, False])
    settings = Reconfiguration(prunable_share=0.5, fixed_cost=0.1)
    new = reconfigure(params, gain, mask, {"w": 1.0}, settings)
    assert new["w"].tolist() == [False, True, True, False]
    assert new["b"].tolist() == [True, True]
    assert mask["w"].tolist() == [True, True, False, False]


def test_large_weights_stay_even_without_gain() -> None:
    params, gain, mask = trees([0.0, 0.0, 9.0, 9.0], [5.0, 4.0, 0.1, 0.1], [True] * 4)
    new = reconfigure(params, gain, mask, {"w": 1.0}, Reconfiguration(prunable_share=0.5))
    assert new["w"].tolist() == [True] * 4


@pytest.mark.parametrize(("limit", "kept"), [(0.25, [False, True, False, False]), (0.5, [False, True, True, False])])
def test_max_density_is_a_hard_limit_that_keeps_the_largest_first(limit: float, kept: list[bool]) -> None:
    params, gain, mask = trees([1.0, 1.0, 9.0, 2.0], [0.1, 5.0, 0.0, 0.0], [True, True, False, False])
    new = reconfigure(params, gain, mask, {"w": 1.0}, Reconfiguration(prunable_share=0.5, max_density=limit))
    assert new["w"].tolist() == kept


def test_the_share_that_may_leave_halves_every_half_life() -> None:
    weights = [float(i) for i in range(1, 101)]
    params, gain, mask = trees([0.0] * 99 + [1.0], weights, [True] * 100)
    settings = Reconfiguration(prunable_share=0.4, half_life=5, fixed_cost=0.0)
    gone = [100 - int(reconfigure(params, gain, mask, {"w": 1.0}, settings, r)["w"].sum()) for r in (0, 5, 10)]
    assert gone == [40, 20, 10]


def test_cost_counts_output_positions_relative_to_the_mean() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 16, 3))
    cost = weight_cost(net, (1, 4, 4), {"0.weight", "2.weight"}, "flops")
    assert cost["0.weight"] / cost["2.weight"] == 16.0
    assert sum(cost.values()) / 2 == pytest.approx(1.0)
    assert weight_cost(net, (1, 4, 4), {"0.weight"}, "uniform") == {"0.weight": 1.0}
    assert net.training


def test_no_layer_is_emptied_however_small_its_weights_and_gains() -> None:
    params = {"big": torch.arange(1.0, 11.0), "small": torch.full((4,), 1e-3)}
    gain = {"big": torch.ones(10), "small": torch.zeros(4)}
    mask = {n: torch.ones_like(t, dtype=torch.bool) for n, t in params.items()}
    settings = Reconfiguration(prunable_share=1.0, max_density=0.5, fixed_cost=0.0)
    new = reconfigure(params, gain, mask, {"big": 1.0, "small": 1.0}, settings)
    assert int(new["small"].sum()) == 1 and int(new["big"].sum() + new["small"].sum()) <= 7


class Tokens(nn.Module):
    """A transformer's layer on the 16 pixels of an image, of which attention calls a layer's weight by a function; a
    convolution that is used twice, a transposed one, and a layer that only training uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.last, self.aside = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(self.again(self.again(self.first(x))))[:, :, ::2, ::2]
        x = self.layer(x.flatten(2).transpose(1, 2)).mean(1)
        logits: torch.Tensor = self.last(x) + self.aside(x) if self.training else self.last(x)
        return logits


def test_cost_counts_every_use_of_a_weight_whoever_calls_it() -> None:
    net = Tokens()
    cost = weight_cost(net, (1, 4, 4), prunable(net), "flops")
    often = {"first": 16, "again": 32, "up": 16, "layer.self_attn.out_proj": 16, "layer.linear1": 16,
             "layer.linear2": 16, "last": 1, "aside": 1}  # fmt: skip
    assert {name: cost[name] / cost["last.weight"] for name in cost} == {f"{n}.weight": t for n, t in often.items()}


def test_cost_of_the_vision_transformer_is_that_of_a_library_that_counts() -> None:
    """By layer, its own operations alone: FLOPs of PyTorch's counter, which knows modules and no weights."""
    net = MODELS["vit"]((1, 8, 8), 10)
    cost = weight_cost(net, (1, 8, 8), prunable(net), "flops")
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, 1, 8, 8))
    counted = counter.get_flop_counts()
    layers = {name: net.get_submodule(name.removesuffix(".weight")) for name in cost}
    flops = {name: sum(counted[f"{type(net).__name__}.{name.removesuffix('.weight')}"].values()) for name in layers}
    each = {name: flops[name] / layer.weight.numel() for name, layer in layers.items()}
    mean = sum(each.values()) / len(each)
    assert cost == pytest.approx({name: value / mean for name, value in each.items()})


@pytest.mark.parametrize("made", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm, nn.utils.spectral_norm])
def test_cost_beside_a_weight_that_is_made_of_others_is_that_beside_a_plain_one(made: Any) -> None:
    def net(layer: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), layer, nn.ReLU(), nn.Linear(8, 3))

    normed = net(made(nn.Linear(32, 8)))
    assert prunable(normed) == {"0.weight", "4.weight"}
    expected = weight_cost(net(nn.Linear(32, 8)), (1, 4, 4), prunable(normed), "flops")
    assert weight_cost(normed, (1, 4, 4), prunable(normed), "flops") == expected
