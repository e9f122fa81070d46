import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunella.server.report.units import NARROW, NONE, decibels, digits, duration, error, fixed, percent, score, size


@pytest.mark.parametrize("shown", [size, percent, decibels, score, error, duration])
def test_what_was_not_measured_is_a_dash_and_not_a_zero(shown: object) -> None:
    assert callable(shown) and shown(None) == NONE and shown(0.0) != NONE


@given(st.integers(min_value=0, max_value=10**17))
def test_a_size_is_read_back_within_half_a_percent(amount: int) -> None:
    number, unit = size(amount).split(NARROW)
    factor = 1000 ** ["B", "kB", "MB", "GB", "TB", "PB"].index(unit)
    assert float(number) * factor == pytest.approx(amount, rel=0.0051, abs=0.01)
    assert len(number) <= 6


@given(st.floats(min_value=-1e9, max_value=1e9))
def test_digits_keep_three_significant_ones(value: float) -> None:
    assert float(digits(value)) == pytest.approx(value, rel=0.0051)


def test_units_stand_behind_every_number() -> None:
    assert size(1500) == f"1.5{NARROW}kB" and percent(0.5) == f"50.0{NARROW}%" and decibels(-0.01) == f"0.0{NARROW}dB"
    assert duration(61) == f"1{NARROW}min 1{NARROW}s"


def test_small_scores_do_not_turn_into_nothing_where_errors_matter() -> None:
    assert score(0.004) == "0.00" and error(0.004) == "0.004"


def test_minus_signs_are_typographic_and_zero_has_none() -> None:
    assert fixed(-2.0, 1) == "−2.0" and fixed(-0.0, 2) == "0.00"
