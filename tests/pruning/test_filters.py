"""Masks of whole channels: what stays is a network, of the size that was asked, and no layer is emptied."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from prunella.core.randomness import stream
from prunella.core.trees import Mask, Tree, apply_mask
from prunella.pruning.channels import Group, channel_groups
from prunella.pruning.filters import LEAST, keep_channels
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import density, kept_count
from prunella.pruning.shrink import shrink
from prunella.tasks.task import Task, initial, prunable

TASK = Task("resnet10", (3, 16, 16), 10)
NET = TASK.build()
NAMES, GROUPS = prunable(NET), channel_groups(NET, TASK.shape)
CHAIN = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(16, 5),
                      nn.ReLU(), nn.Linear(5, 3))  # fmt: skip
SMALL = channel_groups(CHAIN, (2, 6, 6))
INSIDE = prunable(CHAIN)


def drawn(seed: int) -> Tree:
    return {n: torch.rand(p.shape, generator=stream(seed, purpose=n)) for n, p in CHAIN.named_parameters()}


def alive(mask: Mask, groups: Sequence[Group]) -> list[int]:
    return [int(mask[f"{group.writers[0]}.weight"].flatten(1).any(1).sum()) for group in groups]


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("rate", [0.3, 0.7, 0.9])
def test_the_mask_is_a_smaller_network_of_the_rate_that_was_asked(scope: str, rate: float) -> None:
    """Of trained-like tensors, where a pruned filter has a constant to say: nobody reads it."""
    params, buffers = initial(TASK, 0)
    moved = {
        n: t + 0.3 * torch.rand(t.shape, generator=stream(1, purpose=n)) * (t.ndim == 1) for n, t in params.items()
    }
    mask = keep_channels(magnitude(moved), GROUPS, NAMES, rate, scope)
    small = shrink(NET, {**apply_mask(moved, mask), **buffers}, TASK.shape)
    assert sum(small[n].numel() for n in NAMES) == sum(int(mask[n].sum()) for n in NAMES)
    assert 0 <= density(mask, NAMES) - (1 - rate) < 0.005
    assert all(bool(mask[n].all()) for n in mask if n not in NAMES)
    assert [len(small[f"{g.writers[0]}.weight"]) for g in GROUPS] == alive(mask, GROUPS)


def test_all_layers_that_add_into_a_channel_decide_together() -> None:
    scores = {n: torch.ones(p.shape) for n, p in NET.named_parameters()}
    scores["0.0.weight"][5] = scores["2.body.2.0.weight"][9] = 0.0  # low in one of two layers of unequal size
    mask = keep_channels(scores, GROUPS, NAMES, 0.0006, "global")
    gone = [set((~mask[n].flatten(1).any(1)).nonzero().flatten().tolist()) for n in ("0.0.weight", "2.body.2.0.weight")]
    assert gone[0] == gone[1] == {9}  # 576 of its 603 weights
    assert not mask["2.body.0.0.weight"][:, 9].any() and not mask["3.shortcut.0.weight"][:, 9].any()


@given(st.floats(0, 0.999), st.integers(0, 2**31), st.sampled_from(["global", "layer"]))
def test_it_is_the_plain_loop_over_channels(rate: float, seed: int, scope: str) -> None:
    scores = drawn(seed)
    mask = keep_channels(scores, SMALL, INSIDE, rate, scope)
    expected = {n: torch.ones_like(scores[n], dtype=torch.bool) for n in scores}
    first = torch.cat([scores["0.weight"].flatten(1), scores["2.weight"].flatten(1)], 1).double().mean(1)
    second = scores["4.weight"].double().mean(1)
    ranked = []
    for number, means in enumerate((first, second)):
        for place, unit in enumerate(means.argsort(stable=True).tolist()[: len(means) - math.ceil(LEAST * len(means))]):
            key = float(means[unit] / means.mean()) if scope == "global" else place / len(means)
            ranked.append((key, number, unit))
    whole = sum(scores[n].numel() for n in INSIDE)
    for _, number, unit in sorted(ranked):
        trial = {n: m.clone() for n, m in expected.items()}
        if number == 0:
            trial["0.weight"][unit] = trial["2.weight"][unit] = False
            trial["4.weight"][:, 4 * unit : 4 * unit + 4] = False
        else:
            trial["4.weight"][unit] = trial["6.weight"][:, unit] = False
        if sum(int(trial[n].sum()) for n in INSIDE) < kept_count(whole, rate):
            break
        expected = trial
    assert all(torch.equal(mask[n], expected[n]) for n in mask)


@given(st.integers(0, 2**31), st.sampled_from(["global", "layer"]))
def test_what_is_out_stays_out_and_later_masks_lie_inside(seed: int, scope: str) -> None:
    mask = keep_channels(drawn(seed), SMALL, INSIDE, 0.2, scope)
    for step, rate in enumerate((0.5, 0.8)):
        scores = drawn(seed + step + 1)
        later = keep_channels(scores, SMALL, INSIDE, rate, scope, mask)
        assert not any(bool((later[n] & ~mask[n]).any()) for n in mask)
        again = keep_channels(scores, SMALL, INSIDE, rate, scope, later)
        assert scope == "global" or all(torch.equal(later[n], again[n]) for n in mask)
        mask = later


def test_no_group_is_emptied_even_where_its_scores_are_nothing() -> None:
    params, _ = initial(TASK, 0)
    scores = {
        n: t * 1e-9 if n in ("5.body.0.0.weight", "4.body.0.0.weight") else t for n, t in magnitude(params).items()
    }
    scores["5.body.0.0.weight"][:500] *= 1e-9
    for scope in ("global", "layer"):
        mask = keep_channels(scores, GROUPS, NAMES, 0.95, scope)
        assert all(left >= math.ceil(LEAST * g.units) for left, g in zip(alive(mask, GROUPS), GROUPS, strict=True))
    plain = keep_channels({n: torch.zeros_like(t) for n, t in scores.items()}, GROUPS, NAMES, 0.999, "global")
    assert alive(plain, GROUPS) == [math.ceil(LEAST * g.units) for g in GROUPS]


def test_layers_whose_weights_are_small_as_a_whole_are_not_emptied_first() -> None:
    params, _ = initial(TASK, 0)
    scores = magnitude(params)
    shrunk = {n: t * 1e-3 if n.startswith("5.") else t for n, t in scores.items()}
    kept = [keep_channels(each, GROUPS, NAMES, 0.7, "global") for each in (scores, shrunk)]
    assert all(torch.equal(kept[0][n], kept[1][n]) for n in scores)


def test_within_layers_all_groups_lose_the_same_share() -> None:
    mask = keep_channels(magnitude(initial(TASK, 0)[0]), GROUPS, NAMES, 0.7, "layer")
    shares = [left / g.units for left, g in zip(alive(mask, GROUPS), GROUPS, strict=True)]
    assert max(shares) - min(shares) <= 1 / 64


def test_scores_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="contain NaN"):
        keep_channels({**drawn(0), "4.weight": torch.full((5, 16), torch.nan)}, SMALL, INSIDE, 0.5, "global")
