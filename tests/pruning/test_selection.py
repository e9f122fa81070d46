import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.errors import KeyMismatch
from prunella.pruning.selection import density, keep_by_score, keep_filters, kept_count

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


def filters(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"conv": torch.rand(8, 3, 2, 2, generator=g), "fc": torch.rand(20, 6, generator=g), "b": torch.zeros(9),
            "out": torch.zeros(5, 20)}  # fmt: skip


@given(st.floats(0, 0.99), st.integers(0, 2**31))
def test_filters_go_whole_lowest_first_until_the_next_would_pass_the_rate(rate: float, seed: int) -> None:
    scores = filters(seed)
    mask = keep_filters(scores, frozenset({"conv", "fc", "out"}), rate)
    assert bool(mask["out"].all()) and bool(mask["b"].all())
    rows = {n: mask[n].flatten(1).double().mean(1) for n in ("conv", "fc")}
    assert all(set(r.tolist()) <= {0.0, 1.0} and r.sum() >= 1 for r in rows.values())
    # the plain loop: one row after another, by mean, never the best of its layer
    means = sorted((float(m), n, i) for n in rows for i, m in enumerate(scores[n].double().flatten(1).mean(1))
                   if i != int(scores[n].double().flatten(1).mean(1).argmax()))  # fmt: skip
    room, gone = 316 - kept_count(316, rate), set()
    for _, name, row in means:
        if scores[name][row].numel() > room:
            break
        room -= scores[name][row].numel()
        gone.add((name, row))
    assert gone == {(n, i) for n, r in rows.items() for i in range(len(r)) if not r[i]}


def test_within_layers_every_layer_loses_the_rate() -> None:
    mask = keep_filters(filters(0), frozenset({"conv", "fc", "out"}), 0.5, "layer")
    assert density(mask, {"conv"}) == density(mask, {"fc"}) == 0.5


def test_filters_of_nan_scores_are_refused() -> None:
    scores = {**filters(0), "fc": torch.full((20, 6), float("nan"))}
    with pytest.raises(ValueError, match="contain NaN"):
        keep_filters(scores, frozenset({"conv", "fc", "out"}), 0.5)
