import itertools

import pytest
import torch
from torch import nn

from prunella.pruning.prunefl import Reconfiguration, greedy_set, reconfigure, weight_cost


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
