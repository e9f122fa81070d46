from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.errors import ConfigError
from prunella.strategies.secure_sum.fixed_point import GRID, FixedPoint, capacity, decode, encode, pack, reduced, unpack


@pytest.mark.parametrize("clients", [2, 10, 200])
@pytest.mark.parametrize(("range", "weight"), [(16.0, 65536), (1.0, 1), (0.5, 7)])
def test_the_largest_sum_there_can_be_does_not_wrap(clients: int, range: float, weight: int) -> None:
    form = FixedPoint(range, weight, clients)
    for end in (range, -range):
        total = sum(encode(np.array([end]), weight, form) for _ in [None] * clients)
        assert decode(reduced(np.asarray(total, np.uint64), form), form).tolist() == [
            int(end / GRID) * weight * clients
        ]


def test_a_width_is_no_larger_than_it_must_be() -> None:
    form = FixedPoint(16.0, 65536, 10)
    assert 2 ** (8 * form.width) > 2 * 10 * 65536 * 2**24 >= 2 ** (8 * (form.width - 1))


@given(st.lists(st.floats(-16, 16), max_size=30), st.integers(1, 65536))
def test_what_is_read_back_is_the_rounded_value_times_its_weight(values: list[float], weight: int) -> None:
    form = FixedPoint(16.0, 65536, 10)
    found = decode(unpack(pack(encode(np.array(values), weight, form), form), form), form)
    assert found.tolist() == [round(v / GRID) * weight for v in values]


FORM = FixedPoint(16.0, 65536, 10)


@pytest.mark.parametrize("values", [(16.1, -3.0), (1e6, -1e6 + 2.5), (3e38, 1.0), (-1e300, 2.0)])
def test_words_are_the_sums_modulo_their_width_whatever_the_range(values: tuple[float, float]) -> None:
    """So that an opened sum says of clients what their sum says, and a range that a server chose says nothing."""
    whole = sum(round(Fraction(v) / Fraction(GRID)) * 7 for v in values) % (FORM.ones + 1)
    words = reduced(encode(np.array(values[:1]), 7, FORM) + encode(np.array(values[1:]), 7, FORM), FORM)
    assert int(words[0]) == whole


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_client_whose_update_is_not_finite_adds_nothing(value: float) -> None:
    assert encode(np.array([1.0, value]), 3, FORM).tolist() == [0, 0]


def test_sums_that_no_word_holds_are_refused() -> None:
    with pytest.raises(ConfigError, match="lower secure-sum.range"):
        FixedPoint(1e9, 65536, 200)


@pytest.mark.parametrize(("range", "weight"), [(16.0, 10**9), (1e5, 65536), (1e-9, 10**9), (1e6, 1000)])
def test_one_client_more_than_the_capacity_does_not_fit(range: float, weight: int) -> None:
    most = capacity(range, weight)
    assert FixedPoint(range, weight, most).width == 7
    with pytest.raises(ConfigError, match=f"sums of {most + 1} clients"):
        FixedPoint(range, weight, most + 1)
