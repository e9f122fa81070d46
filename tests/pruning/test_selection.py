import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.errors import KeyMismatch
from prunella.pruning.selection import below, density, keep_by_score, kept_count

SCORES = {"a": torch.arange(10.0), "b": torch.ones(5, 2) * 3, "bias": torch.zeros(4)}
PRUNABLE = frozenset({"a", "b"})


@given(st.floats(0, 0.999), st.sampled_from(["global", "layer"]))
def test_exactly_the_requested_number_stays_and_biases_always(rate: float, scope: str) -> None:
    mask = keep_by_score(SCORES, PRUNABLE, rate, scope)
    total = max(2, kept_count(20, rate)) if scope == "global" else 2 * max(1, kept_count(10, rate))
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


@given(st.floats(0, 0.99), st.integers(0, 2**31))
def test_no_layer_is_removed_and_the_total_stays_exact(rate: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    scores = {
        "tiny": torch.rand(3, generator=g) * 1e-6,
        "mid": torch.rand(40, generator=g),
        "big": torch.rand(157, generator=g) + 1,
    }
    mask = keep_by_score(scores, frozenset(scores), rate)
    assert sum(int(m.sum()) for m in mask.values()) == max(3, kept_count(200, rate))
    assert all(bool(mask[name].reshape(-1)[scores[name].argmax()]) for name in scores)


@given(st.floats(0, 0.6), st.integers(0, 2**31))
def test_where_no_layer_is_threatened_it_is_the_plain_order(rate: float, seed: int) -> None:
    scores = {n: torch.rand(50, generator=torch.Generator().manual_seed(seed + i)) for i, n in enumerate("ab")}
    mask = keep_by_score(scores, frozenset("ab"), rate)
    plain = torch.zeros(100, dtype=torch.bool)
    plain[torch.cat([scores["a"], scores["b"]]).argsort(descending=True, stable=True)[: kept_count(100, rate)]] = True
    assert torch.equal(torch.cat([mask["a"], mask["b"]]), plain)


def test_nan_is_an_error_even_where_it_would_be_the_best() -> None:
    for index in (0, 2):
        scores = torch.tensor([1.0, 2.0, 3.0])
        scores[index] = float("nan")
        for scope in ("global", "layer"):
            with pytest.raises(ValueError, match="contain NaN"):
                keep_by_score({"w": scores}, frozenset({"w"}), 0.3, scope)


def test_what_is_out_ranks_below_a_kept_zero() -> None:
    scores = below({"w": torch.tensor([5.0, 0.0, 1.0]), "b": torch.ones(1)}, {"w": torch.tensor([False, True, True]),
                                                                              "b": torch.tensor([True])})  # fmt: skip
    assert keep_by_score(scores, frozenset({"w"}), 0.3)["w"].tolist() == [False, True, True]
