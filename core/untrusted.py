"""Values from another machine: a number within bounds or None, and text that is safe to log and to show.

>>> figure(0.5, 0.0, 1.0), figure(1.7e308, 0.0, 1.0), figure(True, 0.0, 1.0), whole(3, 0, 9), whole(3.0, 0, 9)
(0.5, None, None, 3, None)
>>> clean("\\x1b[31mround 9:\\n all is well")
'[31mround 9: all is well'
"""

MAX_COUNT = 10**9  # of images or local steps that another side may claim
TEXT = 300  # characters of such a text that are kept


def figure(value: object, least: float, most: float) -> float | None:
    """``value`` as a float if it is a number from ``least`` to ``most``, else None. NaN is none, nor is a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return float(value)


def whole(value: object, least: int, most: int) -> int | None:
    """``value`` if it is an integer from ``least`` to ``most``, else None. A bool is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def clean(text: str, limit: int = TEXT) -> str:
    """One line of at most ``limit`` printable characters: white space becomes a blank, all else that is not printable
    (escapes, marks that turn the direction, halves of surrogate pairs) is dropped."""
    words = "".join(c for c in text[: 8 * limit] if c.isprintable() or c.isspace()).split()
    return " ".join(words)[:limit].rstrip()
