"""ADGP against the loop written out, the error-feedback identity, and every way a set can be wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, full_mask, invert, zeros_like
from prunella.privacy.adgp import (
    AlignedPruning,
    adgp,
    aligned_mask,
    check_locations,
    drawn_set,
    location_set,
    overlap,
    set_size,
    with_locations,
)
from prunella.privacy.defense import Outgoing

LIKE: Tree = {
    "w": torch.randn(10, 20, generator=torch.Generator().manual_seed(0)),
    "b": torch.randn(10, generator=torch.Generator().manual_seed(1)),
    "s": torch.tensor(0.5),
    "none": torch.zeros(0),
}
FULL = full_mask(LIKE)
SETTINGS = AlignedPruning()
SET = location_set(LIKE, FULL, SETTINGS)


def by_loop(values: list[float], places: list[bool], top: int, keep: int) -> list[bool]:
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    left = [i for i in order if i not in order[:top] and places[i]]
    return [i in left[:keep] for i in range(len(values))]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 2.0]), st.booleans()), max_size=25))
def test_equals_the_loop(rows: list[tuple[float, bool]]) -> None:
    values, places = torch.tensor([v for v, _ in rows]), torch.tensor([p for _, p in rows], dtype=torch.bool)
    found = aligned_mask(values, torch.ones_like(places), places, AlignedPruning(top=0.1, keep=0.2))
    top, keep = -(-len(rows) // 10), -(-len(rows) // 5)
    assert found.tolist() == by_loop(values.tolist(), places.tolist(), top, keep)


def test_a_large_pruned_layer_equals_a_full_sort() -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.randn(80, 100, generator=g).round(decimals=1)  # many ties
    inside, places = torch.rand(80, 100, generator=g) < 0.8, torch.rand(80, 100, generator=g) < 0.4
    found = aligned_mask(values, inside, places, SETTINGS)
    kept, total = inside.flatten().nonzero().flatten(), int(inside.sum())
    top, keep = -(-total * 5 // 100), -(-total * 20 // 100)
    expected = by_loop(values[inside].tolist(), places[inside].tolist(), top, keep)
    assert found.flatten()[kept].tolist() == expected and int(found.sum()) == sum(expected) > 1000


def test_a_set_of_all_is_dgp_with_the_same_shares_and_what_is_sent_lies_in_the_set() -> None:
    state = adgp(SETTINGS).init(LIKE)
    whole = Outgoing(LIKE, FULL, FULL, LIKE)
    out, _ = adgp(SETTINGS).apply(whole, state, rehearsal(0, purpose="test"))
    ranks = LIKE["w"].abs().flatten().argsort(descending=True)
    assert sorted(out.shared["w"].flatten().nonzero().flatten().tolist()) == sorted(ranks[10:50].tolist())
    drawn = drawn_set(FULL, SETTINGS, rehearsal(0, purpose="x"))
    inside, after = adgp(SETTINGS).apply(whole, {**state, "locations": drawn}, rehearsal(0, purpose="test"))
    assert all(not bool((inside.shared[n] & ~drawn[n]).any()) for n in LIKE) and int(inside.shared["w"].sum()) == 40
    assert torch.equal(after["proposal"]["w"], SET["w"]) and inside.participates is FULL


def test_what_was_sent_and_what_waits_is_all_there_was() -> None:
    defense, state = adgp(SETTINGS), adgp(SETTINGS).init(LIKE)
    sent, total = zeros_like(LIKE), zeros_like(LIKE)
    for round in range(6):
        g = stream(round, purpose="x")
        update = {n: torch.randn(t.shape, generator=g) for n, t in LIKE.items()}
        state = with_locations(state, drawn_set(FULL, SETTINGS, rehearsal(round, purpose="set")), FULL, SETTINGS)
        out, state = defense.apply(Outgoing(update, FULL, FULL, LIKE), state, rehearsal(0, purpose="test"))
        sent = {n: sent[n] + out.update[n] for n in LIKE}
        total = {n: total[n] + update[n] for n in LIKE}
    assert all(torch.allclose(sent[n] + state["error"][n], total[n], atol=1e-5) for n in LIKE)
    assert float(sent["w"].abs().sum()) > 0 and float(state["error"]["w"].abs().sum()) > 0


BAD: dict[str, Mask] = {
    "other tensors": {"w": SET["w"]},
    "wrong type": {**SET, "w": SET["w"].float()},
    "shape": {**SET, "w": SET["w"].T},
    "holds 0": {n: torch.zeros_like(t) for n, t in SET.items()},
    "holds 200": FULL,
    "holds 79": {**SET, "w": SET["w"] & (torch.arange(200).reshape(10, 20) != int(SET["w"].flatten().nonzero()[0]))},
    "again": SET,
}


@pytest.mark.parametrize("words", list(BAD))
def test_a_set_of_a_misbehaving_client_is_refused(words: str) -> None:
    check_locations(SET, FULL, SETTINGS, None)
    check_locations(SET, FULL, SETTINGS, drawn_set(FULL, SETTINGS, rehearsal(0, purpose="x")))
    with pytest.raises(DefenseError, match=words):
        check_locations(BAD[words], FULL, SETTINGS, SET)


def test_a_set_outside_the_mask_and_one_that_barely_moved_are_refused() -> None:
    mask = {**FULL, "w": FULL["w"] & (torch.arange(200).reshape(10, 20) >= 40)}
    moved = {
        **SET,
        "w": torch.zeros(200, dtype=torch.bool).index_fill(0, torch.arange(int(mask["w"].sum() * 0.4)), True),
    }
    with pytest.raises(DefenseError, match="outside the mask"):
        check_locations({**moved, "w": moved["w"].reshape(10, 20)}, mask, SETTINGS, None)
    first, last = SET["w"].flatten().nonzero()[0], invert(SET)["w"].flatten().nonzero()[0]
    nearly = SET["w"].flatten().index_fill(0, first, False).index_fill(0, last, True).reshape(10, 20)
    assert 0.98 < overlap({**SET, "w": nearly}, SET) < 1
    with pytest.raises(DefenseError, match="again"):
        check_locations({**SET, "w": nearly}, FULL, AlignedPruning(repeated=0.98), SET)
    assert overlap(SET, SET) == 1 and overlap(SET, invert(SET)) == 0


def test_sizes_and_settings() -> None:
    assert [set_size(n, SETTINGS) for n in (0, 1, 2, 10, 11)] == [0, 1, 1, 4, 5]
    for wrong in ({"top": 0.2}, {"keep": 0.6}, {"top": 0.3, "keep": 0.2}):
        with pytest.raises(ConfigError, match="adgp"):
            AlignedPruning(**wrong)
