"""Values from another machine: a number within bounds or None, and text that is safe to log and to show.

A client's log is where its owner reads what the server is not told. ``plain_records`` keeps a server from writing lines
of its own there, through a name or a text that a message of this package's quotes.

>>> figure(0.5, 0.0, 1.0), figure(1.7e308, 0.0, 1.0), figure(True, 0.0, 1.0), whole(3, 0, 9), whole(3.0, 0, 9)
(0.5, None, None, 3, None)
>>> clean("\\x1b[31mround 9:\\n all is well")
'[31mround 9: all is well'
"""

import functools
import logging
import traceback
from contextlib import suppress

MAX_COUNT = 10**9  # of images or local steps that another side may claim
TEXT = 300  # characters of such a text that are kept
LINE = 4000  # and of a line of a log


def figure(value: object, least: float, most: float) -> float | None:
    """``value`` as a float if it is a number from ``least`` to ``most``, else None. NaN is none, nor is a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return float(value)


def whole(value: object, least: int, most: int) -> int | None:
    """``value`` if it is an integer from ``least`` to ``most``, else None. A bool is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def is_number(name: str) -> bool:
    """Whether a name is written in the digits 0 to 9 alone: what else Unicode calls a digit, ``int`` may refuse."""
    return name.isascii() and name.isdigit()


def clean(text: str, limit: int = TEXT) -> str:
    """One line of at most ``limit`` printable characters: white space becomes a blank, all else that is not printable
    (escapes, marks that turn the direction, halves of surrogate pairs) is dropped."""
    words = "".join(c for c in text[: 8 * limit] if c.isprintable() or c.isspace()).split()
    return " ".join(words)[:limit].rstrip()


def _indent(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" ")))


def _plain(record: logging.LogRecord) -> logging.LogRecord:
    if record.name.partition(".")[0] == "prunella":
        with suppress(TypeError, ValueError):  # a message that does not fit its arguments: logging says so
            record.msg, record.args = clean(record.getMessage(), LINE), None
        if record.exc_info and record.exc_info[0]:
            lines = "".join(traceback.format_exception(*record.exc_info)).splitlines()
            # What an error says may have lines of its own: none of them looks like another message.
            record.exc_text = "\n".join(f"| {_indent(line)}{clean(line, LINE)}" for line in lines)
    return record


@functools.cache
def plain_records() -> None:
    """From now on every message of this package's loggers is one line without control characters, and every line of a
    traceback begins with a bar."""
    make = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *given, **named: _plain(make(*given, **named)))
