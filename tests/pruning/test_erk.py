import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunella.pruning.erk import erk_counts, uniform_counts

SHAPES = {"a": (32, 1, 3, 3), "b": (48, 32, 3, 3), "c": (10, 768)}


def test_densities_follow_the_formula_with_one_scale_for_all_layers_that_are_not_full() -> None:
    shapes = {"x": (64, 32, 5, 5), "y": (256, 512), "z": (100, 100)}
    counts = erk_counts(shapes, 20_000)
    scale = [counts[n] / math.prod(s) / (sum(s) / math.prod(s)) for n, s in shapes.items()]
    assert scale == pytest.approx([scale[0]] * 3, rel=0.01)


def test_a_layer_whose_share_exceeds_its_size_is_full_and_the_rest_goes_elsewhere() -> None:
    counts = erk_counts({"tiny": (2, 2), "large": (100, 100)}, 5000)
    assert counts == {"tiny": 4, "large": 4996}


@given(st.integers(0, sum(math.prod(s) for s in SHAPES.values())))
def test_counts_add_up_exactly_and_no_layer_is_empty_or_over_full(total: int) -> None:
    for rule in (erk_counts, uniform_counts):
        counts = rule(SHAPES, total)
        assert sum(counts.values()) == max(total, len(SHAPES))
        assert all(1 <= counts[n] <= math.prod(SHAPES[n]) for n in SHAPES)


def test_uniform_gives_every_layer_the_same_density() -> None:
    counts = uniform_counts(SHAPES, 10_896)
    assert [counts[n] / math.prod(SHAPES[n]) for n in SHAPES] == pytest.approx([0.5] * 3, abs=2e-3)


def test_more_than_there_is_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot keep"):
        erk_counts({"a": (2, 2)}, 5)
