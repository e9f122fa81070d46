"""Exact selection against a full sort."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import prunella.core.ranking
from prunella.core.ranking import keep_among, keep_between, keep_largest, keep_smallest, kth_values, part_of

values = st.lists(st.sampled_from([-torch.inf, -1.0, 0.0, 0.5, 2.0, torch.inf]), min_size=1, max_size=12)


def by_sorting(scores: list[float], count: int, largest: bool) -> list[bool]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i] if largest else scores[i], i))
    return [i in order[:count] for i in range(len(scores))]


@settings(max_examples=150, deadline=None)
@given(values, st.integers(0, 12))
def test_equals_a_stable_full_sort(scores: list[float], count: int) -> None:
    count = min(count, len(scores))
    tensor = torch.tensor(scores)
    assert keep_largest(tensor, count).tolist() == by_sorting(scores, count, largest=True)
    assert keep_smallest(tensor, count).tolist() == by_sorting(scores, count, largest=False)


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (2, 3, 2, 2)])
def test_keeps_shape_and_exact_count(shape: tuple[int, ...]) -> None:
    scores = torch.ones(shape)
    for count in range(scores.numel() + 1):
        kept = keep_largest(scores, count)
        assert kept.shape == scores.shape and kept.dtype == torch.bool and int(kept.sum()) == count


@pytest.mark.parametrize("keep", [keep_largest, keep_smallest])
@pytest.mark.parametrize("scores, count", [([1.0, torch.nan], 1), ([1.0, torch.nan], 0), ([1.0], 2), ([1.0], -1)])
def test_refuses_nan_and_impossible_counts(keep: object, scores: list[float], count: int) -> None:
    with pytest.raises(ValueError):
        keep(torch.tensor(scores), count)  # type: ignore[operator]


@pytest.mark.parametrize("total", [1, 7, 20, 60, 100, 12345])
@pytest.mark.parametrize("percent", [0, 1, 5, 7, 30, 75, 99])
def test_part_of_is_exact_where_floats_are_not(total: int, percent: int) -> None:
    assert part_of(percent / 100, total) == percent * total // 100
    assert part_of(percent / 100, total, up=True) == -(-percent * total // 100)


def between_by_sorting(scores: list[float], top: int, bottom: int) -> list[bool]:
    largest = by_sorting(scores, top, largest=True)
    rest = [i for i in sorted(range(len(scores)), key=lambda i: (scores[i], i)) if not largest[i]]
    return [not largest[i] and i not in rest[:bottom] for i in range(len(scores))]


@settings(max_examples=200, deadline=None)
@given(values, st.integers(0, 12), st.integers(0, 12))
def test_between_equals_two_full_sorts(scores: list[float], top: int, bottom: int) -> None:
    top = min(top, len(scores))
    bottom = min(bottom, len(scores) - top)
    assert keep_between(torch.tensor(scores), top, bottom).tolist() == between_by_sorting(scores, top, bottom)


@pytest.mark.parametrize("scores", [[1.0, torch.nan], [torch.inf, torch.nan, -torch.inf]])
def test_between_refuses_nan_and_too_many(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="NaN"):
        keep_between(torch.tensor(scores), 1, 0)
    with pytest.raises(ValueError, match="cannot choose"):
        keep_between(torch.tensor([1.0, 2.0]), 1, 2)
    assert keep_between(torch.tensor([torch.inf, -torch.inf, 0.0]), 1, 1).tolist() == [False, False, True]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 60), st.booleans())
def test_the_histogram_finds_what_a_sort_finds(seed: int, size: int, signed: bool) -> None:
    """Many ties, zeros of both signs, infinities, subnormals: the float's bits in order."""
    g = torch.Generator().manual_seed(seed)
    pool = torch.tensor([0.0, -0.0, 1e-41, -1e-41, 1.0, 1.0000001, -1.0, 65504.0, torch.inf, -torch.inf, 0.3])
    flat = pool[torch.randint(len(pool), (size,), generator=g)] * (1 if signed else torch.ones(size))
    flat = flat if signed else flat.abs()
    ranks = [1, (size + 1) // 2, size]
    assert prunella.core.ranking._kth_by_bits(flat.numpy(), ranks) == [float(flat.sort().values[r - 1]) for r in ranks]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_tensor_is_selected_exactly(dtype: torch.dtype) -> None:
    flat = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=dtype).round(decimals=2)
    ordered = flat.sort().values
    assert kth_values(flat, [1, 777, 20_000]) == [float(ordered[0]), float(ordered[776]), float(ordered[-1])]
    order = sorted(range(20_000), key=lambda i: (-float(flat[i]), i))
    assert keep_largest(flat, 1234).nonzero().flatten().tolist() == sorted(order[:1234])
    rest = sorted(order[1234:], key=lambda i: (float(flat[i]), i))
    assert keep_between(flat, 1234, 9000).nonzero().flatten().tolist() == sorted(rest[9000:])


def among_by_sorting(scores: list[float], among: list[bool], top: int, count: int) -> list[bool]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    left = [i for i in order[top:] if among[i]][:count]
    return [i in left for i in range(len(scores))]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 2.0, 3.0]), st.booleans()), max_size=14), st.integers(0, 14))
def test_among_equals_a_full_sort_without_the_top(rows: list[tuple[float, bool]], count: int) -> None:
    scores, among = [s for s, _ in rows], [a for _, a in rows]
    for top in {0, min(1, len(rows)), len(rows) // 2, len(rows)}:
        found = keep_among(torch.tensor(scores), torch.tensor(among, dtype=torch.bool), top, count)
        assert found.tolist() == among_by_sorting(scores, among, top, count)


@pytest.mark.parametrize("decimals", [1, 6])
def test_among_of_a_large_tensor_is_exact(decimals: int) -> None:
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(100, 100, generator=g).round(decimals=decimals).abs()
    among = torch.rand(100, 100, generator=g) < 0.4
    flat, places = scores.flatten().tolist(), among.flatten().tolist()
    for top, count in ((500, 2000), (0, 4000), (9000, 5000)):
        found = keep_among(scores, among, top, count)
        order = sorted(range(10_000), key=lambda i: (-flat[i], i))
        assert found.flatten().nonzero().flatten().tolist() == sorted([i for i in order[top:] if places[i]][:count])
    assert found.shape == scores.shape


def test_among_refuses_what_it_cannot_rank() -> None:
    both = torch.ones(2, dtype=torch.bool)
    for wrong in ([torch.nan, 1.0], [torch.inf, 1.0], [-1.0, 1.0]):
        with pytest.raises(ValueError, match="NaN|finite"):
            keep_among(torch.tensor(wrong), both, 1, 1)
    with pytest.raises(ValueError, match="cannot choose"):
        keep_among(torch.tensor([1.0, 2.0]), both, 3, 1)
    assert keep_among(torch.tensor(2.0), torch.tensor(True), 0, 1).tolist() is True
