"""Fixed-rate pruning: counts, ranking, pseudo and real."""

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.randomness import rehearsal
from prunella.core.trees import Tree, apply_mask, count, full_mask, size, subtract
from prunella.privacy.defense import Outgoing, State, UpdateDefense
from prunella.privacy.fixed_rate import FixedRate, MixedRate, choose, largest, mix, random

SHAPES = {"w": (6, 5), "b": (7,), "s": ()}


def tree(seed: int) -> Tree:
    g = torch.Generator().manual_seed(seed)
    return {k: torch.randn(s, generator=g) for k, s in SHAPES.items()}


def sent(defense: UpdateDefense, update: Tree, seed: int = 0) -> Outgoing:
    full = full_mask(update)
    g = rehearsal(seed, purpose="test")
    return defense.apply(Outgoing(update, full, full, update), defense.init(update), g)[0]


BUILDERS = {"largest": (largest, FixedRate), "random": (random, FixedRate), "mix": (mix, MixedRate)}


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("pseudo", [True, False])
def test_rate_zero_is_the_identity(name: str, pseudo: bool) -> None:
    build, cls = BUILDERS[name]
    update = tree(1)
    out = sent(build(cls(rate=0.0, pseudo=pseudo)), update)
    assert all(torch.equal(out.update[k], update[k]) and bool(out.shared[k].all()) for k in update)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6])
def test_counts_are_exact_globally_and_per_layer(name: str, rate: float) -> None:
    build, cls = BUILDERS[name]
    update = tree(2)
    out = sent(build(cls(rate=rate)), update)
    assert size(update) - count(out.shared) == -(-round(rate * 10) * size(update) // 10)
    layered = sent(build(cls(rate=rate, scope="layer")), update)
    for t in layered.shared.values():
        assert int((~t).sum()) == -(-round(rate * 10) * t.numel() // 10)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 4, width=16), min_size=1, max_size=30), st.floats(0, 0.9), st.integers(0, 99))
def test_largest_equals_a_full_sort(values: list[float], rate: float, seed: int) -> None:
    chosen = choose(torch.tensor(values), rate, 1.0, rehearsal(seed, purpose="test"))
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert chosen.nonzero().flatten().tolist() == sorted(order[: int(chosen.sum())])


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_scope_decides_who_competes(scope: Literal["global", "layer"]) -> None:
    update = {"small": torch.tensor([0.1, 0.2]), "big": torch.tensor([5.0, 6.0])}
    out = sent(largest(FixedRate(rate=0.5, scope=scope)), update)
    got = {k: t.tolist() for k, t in out.shared.items()}
    if scope == "global":
        assert got == {"small": [True, True], "big": [False, False]}
    else:
        assert got == {"small": [True, False], "big": [True, False]}


def test_random_is_uniform() -> None:
    g = rehearsal(0, purpose="test")
    hits = torch.stack([choose(torch.arange(10.0), 0.3, 0.0, g) for _ in range(4000)]).double().mean(0)
    assert bool(((hits - 0.3).abs() < 0.03).all())


def test_mix_takes_its_share_of_the_largest_and_the_rest_at_random() -> None:
    magnitude, g = torch.arange(20.0), rehearsal(0, purpose="test")
    draws = torch.stack([choose(magnitude, 0.4, 0.5, g) for _ in range(2000)])
    assert bool((draws.sum(1) == 8).all()) and bool(draws[:, 16:].all())
    assert bool(((draws[:, :16].double().mean(0) - 0.25).abs() < 0.05).all())


def client_round(defense: UpdateDefense, received: Tree, state: State, step: Tree) -> tuple[Outgoing, State, Tree]:
    g = rehearsal(0, purpose="test")
    weights, state = defense.compose(received, state, g)
    local = subtract(weights, step)
    full = full_mask(received)
    out, state = defense.apply(Outgoing(subtract(local, received), full, full, local), state, g)
    return out, state, weights


def test_pseudo_keeps_what_real_drops() -> None:
    received, step = {"w": torch.zeros(4)}, {"w": torch.tensor([4.0, 1.0, 1.0, 1.0])}
    for pseudo in (True, False):
        defense = largest(FixedRate(rate=0.25, pseudo=pseudo))
        out, state, _ = client_round(defense, received, defense.init(received), step)
        assert out.update["w"].tolist() == [0.0, -1.0, -1.0, -1.0]
        assert out.participates["w"].tolist() == out.shared["w"].tolist() == [False, True, True, True]
        again, _ = defense.compose(received, state, rehearsal(0, purpose="test"))
        assert again["w"].tolist() == ([-4.0, 0.0, 0.0, 0.0] if pseudo else [0.0] * 4)
        assert bool(state) == pseudo


def test_pseudo_ranks_this_rounds_movement_not_old_drift() -> None:
    received = {"w": torch.zeros(4)}
    defense = largest(FixedRate(rate=0.25))
    _, state, _ = client_round(defense, received, defense.init(received), {"w": torch.tensor([4.0, 1.0, 1.0, 1.0])})
    out, state, start = client_round(defense, received, state, {"w": torch.tensor([0.5, 2.0, 1.0, 1.0])})
    assert start["w"].tolist() == [-4.0, 0.0, 0.0, 0.0]
    assert out.shared["w"].tolist() == [True, False, True, True]
    assert out.update["w"].tolist() == [-4.5, 0.0, -1.0, -1.0]
    assert state["withheld"]["w"].tolist() == [0.0, -2.0, 0.0, 0.0]


def test_only_the_base_mask_is_counted_and_pruned_weights_are_not_stored() -> None:
    local = {"w": torch.tensor([9.0, 3.0, 1.0, 2.0])}
    base = {"w": torch.tensor([False, True, True, True])}
    defense = largest(FixedRate(rate=0.3))
    local = apply_mask(local, base)
    out, state = defense.apply(Outgoing(local, base, base, local), defense.init(local), rehearsal(0, purpose="test"))
    assert out.shared["w"].tolist() == [False, False, True, True]
    assert state["held"]["w"].tolist() == [False, True, False, False]
