"""What somebody else says is bounded before it is used."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.untrusted import TEXT, clean, figure, whole

ODD = [True, False, None, "1", [1], b"1", math.nan, math.inf, -math.inf, -1, -0.5, 10**400, -(10**400), 2**63, 1.7e308]


@pytest.mark.parametrize("value", ODD, ids=lambda v: str(v)[:12])
def test_what_is_no_number_within_the_bounds_is_none(value: object) -> None:
    assert figure(value, 0.0, 1e12) is None and whole(value, 0, 10**9) is None


def test_bounds_are_included_and_a_float_is_no_count() -> None:
    assert (figure(0, 0, 1), figure(1, 0, 1), figure(-1.5, -2, 0)) == (0.0, 1.0, -1.5)
    assert (whole(0, 0, 5), whole(5, 0, 5), whole(6, 0, 5), whole(3.0, 0, 5)) == (0, 5, None, None)
    assert isinstance(figure(1, 0, 1), float)


@given(st.text(alphabet=st.characters(), max_size=2000) | st.binary().map(repr))
def test_cleaned_text_is_printable_short_and_stays_as_it_is(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable() and len(cleaned) <= TEXT and clean(cleaned) == cleaned
    cleaned.encode()  # no lone surrogate, which would end whoever writes it to a file


def test_lines_become_one_and_escapes_lose_their_power() -> None:
    assert clean("\x1b[31mERROR\x1b[0m\r\nround 9:\tall is well\x00\u202e") == "[31mERROR[0m round 9: all is well"
    assert len(clean("\n" * 10**6 + "x" * 10**6, 50)) <= 50
    assert clean("") == ""
