import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.errors import KeyMismatch
from pruning.selection import density, keep_by_score, kept_count

SCORES = {"a": torch.arange(10.0), "b": torch.ones(5, 2) * 3, "bias": torch.zeros(4)}
PRUNABLE = frozenset({"a", "b"})


@given(st.floats(0, 0.999), st.sampled_from(["global", "layer"]))
def test_exactly_the_requested_number_stays_and_biases_always(rate: float, scope: str) -> None:
    mask = keep_by_score(SCORES, PRUNABLE, rate, scope)
    total = kept_count(20, rate) if scope == "global" else 2 * kept_count(10, rate)
    assert int(mask["a"].sum() + mask["b"].sum()) == total
    assert bool(mask["bias"].all())
    assert density(mask, PRUNABLE) == total / 20


def test_rate_zero_keeps_everything_and_ties_go_to_the_lowest_index() -> None:
    assert all(bool(m.all()) for m in keep_by_score(SCORES, PRUNABLE, 0.0).values())
    assert keep_by_score(SCORES, PRUNABLE, 0.5, "layer")["b"].reshape(-1).tolist() == [True] * 5 + [False] * 5


def test_a_score_that_is_missing_is_named() -> None:
    with pytest.raises(KeyMismatch, match="c.weight"):
        keep_by_score(SCORES, PRUNABLE | {"c.weight"}, 0.5)


def test_counts_do_not_suffer_from_binary_fractions() -> None:
    assert kept_count(1000, 0.7) == 300
    assert kept_count(10, 0.1) == 9
