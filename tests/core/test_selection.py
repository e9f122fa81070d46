"""Exact selection against a full sort."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.selection import keep_largest, keep_smallest, part_of

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
