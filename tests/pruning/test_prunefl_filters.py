"""PruneFL by whole channels: the slow loop over channels, its limits, and that the mask is a smaller network."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunella.core.randomness import stream
from prunella.core.trees import Mask, Tree, apply_mask, full_mask
from prunella.pruning.channels import Group, channel_groups
from prunella.pruning.compact import living, places
from prunella.pruning.filters import LEAST, channel_mask, channels_within
from prunella.pruning.prunefl import Reconfiguration, reconfigure, weight_cost
from prunella.pruning.prunefl_filters import most_weights, of_channels, reconfigure_filters
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import density
from prunella.pruning.shrink import shrink
from prunella.tasks.task import Task, initial, prunable


class Summed(nn.Module):
    """A convolution that reads and writes the same channels, a depthwise one, batch norm and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.depth = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, groups=6)
        self.hidden, self.last = nn.Linear(6 * 16, 11), nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.norm(x + self.second(x)))
        logits: Tensor = self.last(torch.relu(self.hidden(self.depth(x).flatten(1))))
        return logits


NET = Summed()
GROUPS = channel_groups(NET, (2, 6, 6))
NAMES = prunable(NET)
COST = weight_cost(NET, (2, 6, 6), NAMES, "flops")


def drawn(seed: int, purpose: str, like: nn.Module = NET) -> Tree:
    return {n: torch.rand(p.shape, generator=stream(seed, purpose=purpose + n)) for n, p in like.named_parameters()}


def some_mask(seed: int) -> Mask:
    """A third of the weights is gone, by whole channels."""
    whole = sum(t.numel() for n, t in drawn(seed, "x").items() if n in NAMES)
    return channels_within(drawn(seed, "before"), GROUPS, NAMES, (int(whole * 0.6), whole), "global")


def slow(params: Tree, gain: Tree, mask: Mask, settings: Reconfiguration, round: int) -> Mask:
    """Every candidate's mask is built, and what it adds is summed up weight by weight."""
    held = sum(int(mask[n].sum()) for n in NAMES)
    whole = sum(mask[n].numel() for n in NAMES)
    limit = int(settings.max_density * whole) if settings.max_density else whole
    may_go = int(settings.prunable_share * 0.5 ** (round / settings.half_life) * held)
    fixed = channels_within(magnitude(params), GROUPS, NAMES, (min(held - may_go, limit), limit), "global", mask)
    alive = living(GROUPS, fixed)

    def sums(at: list[Tensor]) -> tuple[float, float, int]:
        inside = channel_mask(params, GROUPS, NAMES, at)
        g = t = k = 0.0
        for name in NAMES:
            g += sum(gain[name].double()[inside[name]].tolist())
            t += COST[name] * int(inside[name].sum())
            k += int(inside[name].sum())
        return g, t, int(k)

    overhead = settings.fixed_cost * sums([torch.ones(g.units, dtype=torch.bool) for g in GROUPS])[1]
    while True:
        now, found = sums(alive), []
        for number, group in enumerate(GROUPS):
            for unit in range(group.units):
                trial = [each.clone() for each in alive]
                trial[number][unit] = True
                after = sums(trial)
                if not alive[number][unit] and after[2] <= limit:
                    ratio = (after[0] - now[0]) / (after[1] - now[1])
                    found.append((-ratio, number, unit))
        if not found or -min(found)[0] < now[0] / (overhead + now[1]):
            return channel_mask(params, GROUPS, NAMES, alive)
        _, number, unit = min(found)
        alive[number][unit] = True


@pytest.mark.parametrize("seed", range(24))
def test_it_is_the_slow_loop_over_channels(seed: int) -> None:
    params, gain, before = drawn(seed, "w"), drawn(seed, "g"), some_mask(seed)
    gain = {n: t ** (1 + seed % 6) for n, t in gain.items()}  # the higher, the fewer matter
    settings = Reconfiguration(
        prunable_share=[0.3, 0.6, 0.9][seed % 3], fixed_cost=[0.1, 0.3, 1.0, 3.0][seed // 6], half_life=4,
        max_density=[0.0, 0.5, 0.7, 0.9][seed % 4],
    )  # fmt: skip
    mask = full_mask(params) if seed % 2 else before
    found = reconfigure_filters(params, gain, mask, GROUPS, COST, settings, seed % 5)
    expected = slow(params, gain, mask, settings, seed % 5)
    assert all(torch.equal(found[n], expected[n]) for n in found)


def test_the_loop_above_was_one_in_which_channels_return_leave_and_are_passed_over() -> None:
    """The control of the test above."""
    seen = set()
    for seed in range(12):
        params, before = drawn(seed, "w"), some_mask(seed)
        gain = {n: t**6 for n, t in drawn(seed, "g").items()}
        settings = Reconfiguration(prunable_share=0.6, fixed_cost=0.1, max_density=0.9)
        found = reconfigure_filters(params, gain, before, GROUPS, COST, settings)
        seen |= {"returns"} if any(bool((found[n] & ~before[n]).any()) for n in NAMES) else set()
        seen |= {"leaves"} if any(bool((before[n] & ~found[n]).any()) for n in NAMES) else set()
    assert seen == {"returns", "leaves"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("max_density", [0.0, 0.3, 0.6])
def test_where_every_channel_is_one_weight_it_is_the_rule_of_single_weights(seed: int, max_density: float) -> None:
    net = nn.Sequential(nn.Linear(1, 10), nn.ReLU(), nn.Linear(10, 1))
    groups, cost = channel_groups(net, (1,)), {"0.weight": 1.0}  # the weights out of it are not for the scheme
    params, gain = drawn(seed, "w", net), drawn(seed, "g", net)
    settings = Reconfiguration(prunable_share=0.5, fixed_cost=0.1 * (seed % 3), max_density=max_density)
    mask = full_mask(params) | {"0.weight": (torch.arange(10) % (2 + seed % 3) > 0)[:, None]}
    params = apply_mask(params, mask)
    mask |= {"2.weight": mask["0.weight"].T}
    found = reconfigure_filters(params, gain, mask, groups, cost, settings)
    expected = reconfigure(params, gain, mask, cost, settings)
    assert torch.equal(found["0.weight"], expected["0.weight"])


TASK = Task("resnet10", (3, 16, 16), 10)
RESNET = TASK.build()
LAYERS, RESIDUAL = prunable(RESNET), channel_groups(RESNET, TASK.shape)
PRICES = weight_cost(RESNET, TASK.shape, LAYERS, "flops")


def moved(mask: Mask, limit: float, flat: bool = False, share: float = 0.3, **more: Any) -> Mask:
    """On a ResNet, whose gains are the same everywhere or drawn."""
    params, _ = initial(TASK, 0)
    gain = {n: torch.rand(t.shape, generator=stream(3, purpose=n)) ** 4 for n, t in params.items()}
    gain = {n: torch.ones_like(t) for n, t in gain.items()} if flat else gain
    settings = Reconfiguration(prunable_share=share, max_density=limit, **more)
    return reconfigure_filters(apply_mask(params, mask), gain, mask, RESIDUAL, PRICES, settings)


def least(groups: list[Group]) -> list[int]:
    return [math.ceil(LEAST * group.units) for group in groups]


@pytest.mark.parametrize("limit", [0.7, 0.5, 0.2])
def test_through_residual_sums_and_batch_norm_the_mask_is_a_smaller_network_within_the_limit(limit: float) -> None:
    params, buffers = initial(TASK, 0)
    first = moved(full_mask(params), limit)
    second = moved(first, limit)
    for mask in (first, second):
        assert of_channels(mask, RESIDUAL, LAYERS)
        assert 0.8 * limit < density(mask, LAYERS) <= limit
        assert all(bool(mask[n].all()) for n in mask if n not in LAYERS)
        alive = living(RESIDUAL, mask)
        cut = {n: len(at.flatten()) for n, at in places(RESIDUAL, alive, params).items()}
        assert all(cut[n] == int(mask[n].sum()) for n in LAYERS)
        small = shrink(RESNET, {**apply_mask(params, mask), **buffers}, TASK.shape)
        assert all(small[n].numel() == cut[n] for n in LAYERS)
    assert any(not torch.equal(first[n], second[n]) for n in first)


def test_a_tenth_of_every_group_stays_whatever_limit_and_gains_say() -> None:
    params, _ = initial(TASK, 0)
    mask = moved(full_mask(params), 0.001, share=1.0)
    assert [int(each.sum()) for each in living(RESIDUAL, mask)] == least(RESIDUAL)
    assert sum(int(mask[n].sum()) for n in LAYERS) == most_weights(params, RESIDUAL, LAYERS, 0.001)
    nothing = reconfigure_filters(params, {n: t * 0 for n, t in params.items()}, mask, RESIDUAL, PRICES,
                                  Reconfiguration(prunable_share=1.0, max_density=0.001))  # fmt: skip
    assert all(torch.equal(nothing[n], mask[n]) for n in mask)


def test_a_channel_that_is_out_returns_for_its_gain_and_its_weights_come_back_together() -> None:
    params = drawn(0, "w")
    out = [torch.ones(g.units, dtype=torch.bool) for g in GROUPS]
    for units in out:
        units[2] = False
    mask = channel_mask(params, GROUPS, NAMES, out)
    gain = {n: torch.full_like(t, 1e-3) for n, t in params.items()}
    gain["last.weight"][:, 2] = 5.0
    found = reconfigure_filters(params, gain, mask, GROUPS, COST, Reconfiguration(prunable_share=0.0))
    assert found["hidden.weight"][2].any() and found["last.weight"][:, 2].all()
    assert not found["first.weight"][2].any() and not found["depth.weight"][2].any()


def test_a_mask_of_single_weights_or_of_an_emptied_group_is_none_of_channels() -> None:
    params, mask = drawn(0, "w"), some_mask(0)
    assert of_channels(mask, GROUPS, NAMES) and of_channels(full_mask(params), GROUPS, NAMES)
    one = {n: m.clone() for n, m in mask.items()}
    one["hidden.weight"].view(-1)[int(mask["hidden.weight"].flatten().to(torch.uint8).argmax())] = False
    empty = channel_mask(params, GROUPS, NAMES, [torch.arange(g.units) < 1 for g in GROUPS])
    assert not of_channels(one, GROUPS, NAMES)
    assert not of_channels(empty, GROUPS, NAMES), "1 of 11 is less than a tenth"
