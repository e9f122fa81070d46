"""The contract of every entry of ``DEFENSES``, driven through a chain as a client drives it.

``OWN_DEFENSE=package.module:NAME`` in the environment asks it of somebody's own instead.
"""

import dataclasses
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prunella.core.config import Raw, check_sections, kebab, section_defaults
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import rehearsal
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, map_trees, subtract, zeros_like
from prunella.privacy import DEFENSES, SECTIONS, find_defense
from prunella.privacy.chain import ChainState, build_chain, compose, observe, present, release, start
from prunella.privacy.defense import (
    HEURISTIC,
    STAGES,
    Entry,
    Outgoing,
    PrivateSettings,
    Step,
    StepDefense,
    Stronger,
    directions,
)
from prunella.privacy.none import NoDefense, none
from prunella.privacy.precode import PARTS

ENTRIES = {name: find_defense(name) for name in os.environ.get("OWN_DEFENSE", ",".join(DEFENSES)).split(",")}
every = pytest.mark.parametrize("name", list(ENTRIES))
shapes = st.lists(st.sampled_from([(), (1,), (2,), (5,), (0,), (3, 4), (2, 1, 3, 3)]), min_size=1, max_size=4)
relaxed = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SMALL = {"ats": {"ats.candidates": 8}}  # a search among fewer policies is the same search
IMAGES = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(9))


def tree_of(sizes: list[tuple[int, ...]], seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tree:
    """One tensor per size, a ``head`` [2, 3] that reads a representation, and the weights of a bottleneck."""
    g = torch.Generator().manual_seed(seed)
    named = {f"p{i}": size for i, size in enumerate(sizes)} | {"head": (2, 3)}
    named |= {"bottleneck.encode.weight": (4, 2), "bottleneck.decode.weight": (2, 2)}
    return {name: scale * torch.randn(size, generator=g, dtype=dtype) for name, size in named.items()}


def mask_of(like: Tree, seed: int) -> Mask:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.rand(t.shape, generator=g) > 0.3 for name, t in like.items()}


def step_of(params: Tree, mask: Mask, gradient: Tree, number: int = 0) -> Step:
    """A step of three examples whose gradients are ``gradient`` times 1, 2 and 3, in two chunks."""

    def per_example() -> Iterator[Tree]:
        yield {name: torch.stack([t, 2 * t]) for name, t in gradient.items()}
        yield {name: 3 * t[None] for name, t in gradient.items()}

    def representation() -> tuple[str, torch.Tensor, torch.Tensor]:
        return "head", torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 1.0, 2.0]])

    return Step(params, mask, number, 3, per_example, representation)


def play(
    name: str, received: Tree, base: Mask, moved: Tree, seed: int, raw: Raw | None = None
) -> tuple[list[Tree], ChainState]:
    """Two rounds of one client; returns every tensor that left the chain, and the state."""
    chain = build_chain([name], raw or SMALL.get(name, {}))
    state = start(chain, IMAGES, received, {}, rehearsal(seed, purpose="fit"))
    seen: list[Tree] = []
    for number in range(2):
        g = rehearsal(seed, round=number, purpose="defense")
        seen.append({"x": present(chain, IMAGES[:3], state, g)})
        weights, state = compose(chain, received, state, g)
        gradient, state = observe(chain, moved, received, state, g, step_of(weights, base, moved))
        local = apply_mask(subtract(weights, gradient), base)
        outgoing = Outgoing(apply_mask(subtract(local, received), base), base, base, local)
        out, state, _ = release(chain, outgoing, state, g)
        seen += [weights, gradient, out.update, out.shared, out.participates]
    return seen, state


@every
@relaxed
@given(sizes=shapes, seed=st.integers(0, 1000), double=st.booleans())
def test_keeps_names_shapes_dtypes_masks_and_inputs(
    name: str, sizes: list[tuple[int, ...]], seed: int, double: bool
) -> None:
    dtype = torch.float64 if double else torch.float32
    base = mask_of(tree_of(sizes, 0), seed)
    received, moved = apply_mask(tree_of(sizes, seed, dtype), base), tree_of(sizes, seed + 1, dtype, 0.1)
    before, moved_before = (map_trees(torch.clone, tree) for tree in (received, moved))
    images_before = IMAGES.clone()
    seen, _ = play(name, received, base, moved, seed)
    for tree in (seen[1], seen[2], seen[3], seen[7], seen[9]):
        assert {k: (t.shape, t.dtype) for k, t in tree.items()} == {k: (t.shape, dtype) for k, t in received.items()}
    assert seen[0]["x"].shape == IMAGES[:3].shape and seen[0]["x"].dtype == IMAGES.dtype
    for update, shared, participates in (seen[3:6], seen[9:12]):
        for key in update:
            assert not bool((shared[key] & ~base[key]).any()) and not bool((shared[key] & ~participates[key]).any())
            assert not bool(torch.count_nonzero(update[key][~shared[key]]))
    assert torch.equal(IMAGES, images_before)
    assert all(torch.equal(received[k], before[k]) and torch.equal(moved[k], moved_before[k]) for k in before)


@every
@relaxed
@given(sizes=shapes, seed=st.integers(0, 1000))
def test_same_seed_same_bits(name: str, sizes: list[tuple[int, ...]], seed: int) -> None:
    received, moved = tree_of(sizes, seed), tree_of(sizes, seed + 1)
    first, one = play(name, received, full_mask(received), moved, seed)
    again, two = play(name, received, full_mask(received), moved, seed)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(first, again, strict=True) for k in a)
    assert all(torch.equal(one[d][t][k], two[d][t][k]) for d in one for t in one[d] for k in one[d][t])


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.small])
@relaxed
@given(seed=st.integers(0, 1000))
def test_one_for_the_small_network_does_not_look_at_filters_that_are_gone(name: str, seed: int) -> None:
    received, moved = tree_of([(4, 3), (3, 4, 2, 2), (4,)], seed), tree_of([(4, 3), (3, 4, 2, 2), (4,)], seed + 1)
    base, seen = full_mask(received), full_mask(received)
    base["p0"][:, 1] = base["p1"][[0, 2]] = False
    base["p0"][2, 0] = False  # a single weight: what is shown of it may count
    seen["p0"][:, 1] = seen["p1"][[0, 2]] = False
    gradients = (moved, apply_mask(moved, seen), received)
    shown, hidden, other = (play(name, received, base, each, 0)[1] for each in gradients)
    assert all(torch.equal(shown[d][t][k], hidden[d][t][k]) for d in shown for t in shown[d] for k in shown[d][t])
    assert any(not torch.equal(shown[d][t][k], other[d][t][k]) for d in shown for t in shown[d] for k in shown[d][t])


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if not entry.noisy])
def test_zero_updates_stay_zero(name: str) -> None:
    received = tree_of([(), (7,), (3, 3)], 1, scale=0.0)
    seen, _ = play(name, received, full_mask(received), received, 0)
    assert all(not bool(torch.count_nonzero(t)) for t in seen[3].values())


# Every place a bad number can come from, for the entries that look there. With an ε no example may raise.
PLACES = {
    "data": ("batch", "gradient", "update"),
    "gradient": ("gradient", "update"),
    "update": ("gradient", "received", "update"),
}
poisoned_places = [
    (name, where)
    for name, entry in ENTRIES.items()
    for where in PLACES[entry.stage]
    if not (entry.private and where == "gradient")
]


@pytest.mark.parametrize("name, where", poisoned_places)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_raise_without_naming_a_value(name: str, where: str, bad: float) -> None:
    chain = build_chain([name], {})
    rest = {"b": torch.tensor(1.0), **{part: torch.ones(2, 2) for part in PARTS}}
    tree = {"head": torch.tensor([[0.123456, 2.0, 3.0]]), **rest}
    poisoned = {"head": torch.tensor([[0.123456, bad, 3.0]]), **rest}
    g, full = rehearsal(0, purpose="test"), full_mask(tree)
    state = start(chain, IMAGES, tree, {}, g)
    attempts = {
        "batch": lambda: present(chain, IMAGES.masked_fill(IMAGES > 0.5, bad), state, g),
        "gradient": lambda: observe(chain, poisoned, tree, state, g, step_of(tree, full, poisoned)),
        "received": lambda: compose(chain, poisoned, state, g),
        "update": lambda: release(chain, Outgoing(poisoned, full, full, tree), state, g),
    }
    with pytest.raises(DefenseError, match="finite") as caught:
        attempts[where]()
    assert "0.123456" not in str(caught.value) and str(bad) not in str(caught.value).split()


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.private])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_with_an_epsilon_examples_that_are_not_finite_count_as_zero(name: str, bad: float) -> None:
    chain, like = build_chain([name], {}), {"head": torch.ones(2, 3), **{part: torch.ones(2, 2) for part in PARTS}}
    poisoned = {**like, "head": torch.tensor([[0.5, bad, 3.0], [1.0, 1.0, 1.0]])}
    full, made = full_mask(like), []
    for gradient in (poisoned, zeros_like(like)):
        state = start(chain, IMAGES, like, {}, rehearsal(0, purpose="fit"))
        step = step_of(like, full, gradient)
        made.append(observe(chain, poisoned, like, state, rehearsal(1, purpose="step"), step)[0])
    assert all(torch.equal(made[0][key], made[1][key]) for key in like) and bool(made[0]["head"].any())


@every
def test_the_entry_is_complete(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.stage in STAGES and entry.claim
    assert dataclasses.is_dataclass(entry.settings) and entry.settings.__dataclass_params__.frozen  # type: ignore[attr-defined]
    built = entry.build(entry.settings())
    assert not entry.private or (isinstance(built, StepDefense) and isinstance(entry.settings(), PrivateSettings))


def test_sections_hold_every_setting_and_parse_their_own_defaults() -> None:
    assert set(SECTIONS) == set(DEFENSES) - {"none", "precode"} | {"privacy"}
    for name, cls in SECTIONS.items():
        flat = section_defaults(name, cls)
        check_sections(flat, SECTIONS)
        assert flat and None not in flat.values()


BOLD = Entry("update", NoDefense, none, claim="ε = 0", noisy=True)
PRIVATE = Entry("gradient", NoDefense, none, private=True)
GUARD = Entry("update", NoDefense, none, guards=True)


def test_nothing_is_believed_of_somebody_s_own_defense() -> None:
    chain = build_chain(["dgp", f"{__name__}:BOLD"], {})
    assert chain.claims == (HEURISTIC, HEURISTIC) and chain.private is None
    assert find_defense(f"{__name__}:BOLD") == dataclasses.replace(BOLD, claim=HEURISTIC)


@pytest.mark.parametrize(
    "name, words",
    [
        ("PRIVATE", "private or guards"),
        ("GUARD", "private or guards"),
        ("every", "not a prunella.privacy.defense.Entry"),
    ],
)
def test_one_that_wants_an_epsilon_or_is_none_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_chain([f"{__name__}:{name}"], {})


# Of decisions: whether a set is an old one, an update leaks or is noised again, a step is perturbed.
DECISIONS = {
    "adgp.repeated",
    "leakage-guard.psnr",
    "leakage-guard.ssim",
    "leakage-guard.ncc",
    "leakage-guard.levels",
    "outpost.decay",
}


def hidden(name: str, raw: Raw) -> list[float]:
    """How far images, gradient and update are from undefended ones in the first round, and how much stays here."""
    received, moved = tree_of([(40,), (9, 9)], 0), tree_of([(40,), (9, 9)], 1, scale=0.1)
    seen, _ = play(name, received, full_mask(received), moved, 2, raw)
    x, _, gradient, update, shared = seen[:5]
    away = float((x["x"] - IMAGES[:3]).norm())
    kept = sum(int((~t).sum()) for t in shared.values())
    bent = sum(float((gradient[n] - moved[n]).square().sum()) for n in moved)
    noised = sum(float((update[n] + gradient[n])[shared[n]].square().sum()) for n in moved)
    return [away, bent, noised, kept]


def weak_and_strong(name: str, key: str, raw: Raw) -> tuple[float, float]:
    """A weaker and a stronger value of a setting: what it allows of half and twice its default, and half way to 1."""
    flat, cls = f"{name}.{kebab(key)}", DEFENSES[name].settings
    default, allowed = raw.get(flat, getattr(cls(), key)), []
    for value in (default / 2, default, 2 * default, (1 + default) / 2):
        try:
            build_chain([name], {**raw, flat: type(default)(value)})
        except ConfigError:
            continue
        allowed.append(type(default)(value))
    ends = min(allowed), max(allowed)
    return ends if directions(cls)[key] is Stronger.LARGER else ends[::-1]


DIRECTED = [
    (name, key)
    for name, entry in DEFENSES.items()
    for key, way in directions(entry.settings).items()
    if way is not Stronger.EQUAL and f"{name}.{kebab(key)}" not in DECISIONS
]


@pytest.mark.parametrize(("name", "key"), DIRECTED)
def test_a_stronger_setting_hides_more(name: str, key: str) -> None:
    raw = {f"{name}.kappa": 5.0} if name.startswith("channel") else {}  # the defaults are for more than 16 pixels
    weak, strong = (hidden(name, {**raw, f"{name}.{kebab(key)}": each}) for each in weak_and_strong(name, key, raw))
    assert all(b >= a - 1e-9 for a, b in zip(weak, strong, strict=True)) and strong != weak
