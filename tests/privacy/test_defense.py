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

from core.config import check_sections, section_defaults
from core.errors import ConfigError, DefenseError
from core.randomness import stream
from core.trees import Mask, Tree, apply_mask, clone, full_mask, subtract
from privacy import DEFENSES, SECTIONS, find_defense
from privacy.chain import ChainState, build_chain, compose, observe, present, release, start
from privacy.defense import HEURISTIC, STAGES, Entry, Outgoing, PrivateSettings, Step, StepDefense
from privacy.none import NoDefense, none
from privacy.precode import PARTS

ENTRIES = {name: find_defense(name) for name in os.environ.get("OWN_DEFENSE", ",".join(DEFENSES)).split(",")}
every = pytest.mark.parametrize("name", list(ENTRIES))
shapes = st.lists(st.sampled_from([(), (1,), (2,), (5,), (0,), (3, 4), (2, 1, 3, 3)]), min_size=1, max_size=4)
relaxed = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def play(name: str, received: Tree, base: Mask, moved: Tree, seed: int) -> tuple[list[Tree], ChainState]:
    """Two rounds of one client; returns every tensor that left the chain, and the state."""
    chain = build_chain([name], {})
    state = start(chain, IMAGES, received, {})
    seen: list[Tree] = []
    for number in range(2):
        g = stream(seed, round=number, purpose="defense")
        seen.append({"x": present(chain, IMAGES[:3], state, g)})
        weights, state = compose(chain, received, state, g)
        gradient, state = observe(chain, moved, received, state, g, step_of(weights, base, moved))
        local = apply_mask(subtract(weights, gradient), base)
        outgoing = Outgoing(apply_mask(subtract(local, received), base), base, base, local)
        out, state, _ = release(chain, outgoing, state, g)
        seen += [weights, gradient, out.update, out.shared, out.spoken]
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
    before, moved_before, images_before = clone(received), clone(moved), IMAGES.clone()
    seen, _ = play(name, received, base, moved, seed)
    for tree in (seen[1], seen[2], seen[3], seen[7], seen[9]):
        assert {k: (t.shape, t.dtype) for k, t in tree.items()} == {k: (t.shape, dtype) for k, t in received.items()}
    assert seen[0]["x"].shape == IMAGES[:3].shape and seen[0]["x"].dtype == IMAGES.dtype
    for update, shared, spoken in (seen[3:6], seen[9:12]):
        for key in update:
            assert not bool((shared[key] & ~base[key]).any()) and not bool((shared[key] & ~spoken[key]).any())
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


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if not entry.noisy])
def test_zero_updates_stay_zero(name: str) -> None:
    received = tree_of([(), (7,), (3, 3)], 1, scale=0.0)
    seen, _ = play(name, received, full_mask(received), received, 0)
    assert all(not bool(torch.count_nonzero(t)) for t in seen[3].values())


# every place a bad number can come from, for the entries that look there
PLACES = {
    "data": ("batch", "gradient", "update"),
    "gradient": ("gradient", "update"),
    "update": ("gradient", "received", "update"),
}
poisoned_places = [(name, where) for name, entry in ENTRIES.items() for where in PLACES[entry.stage]]


@pytest.mark.parametrize("name, where", poisoned_places)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_raise_without_naming_a_value(name: str, where: str, bad: float) -> None:
    chain = build_chain([name], {})
    rest = {"b": torch.tensor(1.0), **{part: torch.ones(2, 2) for part in PARTS}}
    tree = {"head": torch.tensor([[0.123456, 2.0, 3.0]]), **rest}
    poisoned = {"head": torch.tensor([[0.123456, bad, 3.0]]), **rest}
    state, g, full = start(chain, IMAGES, tree, {}), torch.Generator(), full_mask(tree)
    attempts = {
        "batch": lambda: present(chain, IMAGES.masked_fill(IMAGES > 0.5, bad), state, g),
        "gradient": lambda: observe(chain, poisoned, tree, state, g, step_of(tree, full, poisoned)),
        "received": lambda: compose(chain, poisoned, state, g),
        "update": lambda: release(chain, Outgoing(poisoned, full, full, tree), state, g),
    }
    with pytest.raises(DefenseError, match="finite") as caught:
        attempts[where]()
    assert "0.123456" not in str(caught.value) and str(bad) not in str(caught.value).split()


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
    [("PRIVATE", "private or guards"), ("GUARD", "private or guards"), ("every", "not a privacy.defense.Entry")],
)
def test_one_that_wants_an_epsilon_or_is_none_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_chain([f"{__name__}:{name}"], {})
