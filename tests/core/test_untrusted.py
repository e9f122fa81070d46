"""What somebody else says is bounded before it is used."""

import io
import logging
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.untrusted import TEXT, clean, figure, is_number, plain_records, whole

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


FORGED = "x\nERROR:root:all is well\x1b[2J\r\u202e"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What any handler of the process writes."""
    plain_records()
    out, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    root.addHandler(handler)
    yield out
    root.removeHandler(handler)


def test_a_message_that_quotes_a_server_is_one_line_of_the_log(logged: io.StringIO) -> None:
    logging.getLogger("prunella.tasks.data").error("classes only the server has: %s", FORGED)
    assert logged.getvalue() == "ERROR:prunella.tasks.data:classes only the server has: x ERROR:root:all is well[2J\n"


def test_no_line_of_an_error_s_text_looks_like_a_message(logged: io.StringIO) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("prunella.client.app").exception("a message could not be handled")
    first, *rest = logged.getvalue().splitlines()
    assert first == "ERROR:prunella.client.app:a message could not be handled"
    assert len(rest) > 3 and all(line.startswith("| ") and line.isprintable() for line in rest)
    assert "| ERROR:root:all is well[2J" in rest and any("test_untrusted.py" in line for line in rest)


@pytest.mark.parametrize("module", ["prunella.client.app", "prunella.flower.defend"])
def test_a_client_s_log_has_no_lines_of_a_server_s(module: str) -> None:
    """In a process of its own, since what stands for all messages stays for all tests."""
    code = f"import logging, {module}; logging.getLogger('prunella.tasks.data').error('%s', 'x\\nERROR:root:forged')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1] == "x ERROR:root:forged"


@pytest.mark.parametrize(("name", "number"), [("0", True), ("12", True), ("", False), ("²", False), ("٣", False)])
def test_a_number_is_written_in_ascii(name: str, number: bool) -> None:
    assert is_number(name) is number


def test_other_packages_messages_stay_as_they_are(logged: io.StringIO) -> None:
    logging.getLogger("an_app").error("two\nlines")
    assert logged.getvalue() == "ERROR:an_app:two\nlines\n"
