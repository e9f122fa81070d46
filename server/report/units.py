"""Numbers as people read them: sensible digits and always a unit (SI prefixes, decimal; a narrow no-break space).

>>> size(1_234_567), percent(0.9312), decibels(17.04), duration(200)
('1.23\u202fMB', '93.1\u202f%', '17.0\u202fdB', '3\u202fmin 20\u202fs')
>>> percent(None), score(0.31416)
('–', '0.31')
"""

import math
from collections.abc import Iterable

NARROW = "\u202f"
NONE = "–"
PREFIXES = ("", "k", "M", "G", "T", "P")


def digits(value: float, significant: int = 3) -> str:
    """``value`` with three significant digits, without an exponent between a thousandth and a million.

    >>> digits(0.0123456), digits(12.3456), digits(1234.56), digits(0.0), digits(2.5e-7)
    ('0.0123', '12.3', '1235', '0', '2.5e-07')
    """
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{significant}g}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if whole >= significant:
        return f"{value:.0f}"
    text = f"{value:.{significant}g}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(amount: float | None) -> str:
    """Bytes.

    >>> size(999), size(2000), size(0), size(999_999)
    ('999\u202fB', '2\u202fkB', '0\u202fB', '1\u202fMB')
    """
    if amount is None:
        return NONE
    step = 0
    while abs(amount) >= 999.5 and step < len(PREFIXES) - 1:
        amount, step = amount / 1000, step + 1
    return f"{digits(amount)}{NARROW}{PREFIXES[step]}B"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}{NARROW}%"


def fixed(value: float, decimals: int) -> str:
    """With a true minus sign, and never a negative zero.

    >>> fixed(-0.001, 2), fixed(-1.5, 1)
    ('0.00', '−1.5')
    """
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def decibels(value: float | None) -> str:
    return NONE if value is None else f"{fixed(value, 1)}{NARROW}dB"


def score(value: float | None) -> str:
    """A score near [0, 1]."""
    return NONE if value is None else fixed(value, 2)


def error(value: float | None) -> str:
    """An error that may be small.

    >>> error(0.00042), error(0.2)
    ('0.00042', '0.20')
    """
    if value is None:
        return NONE
    return digits(value, 2) if abs(value) < 0.1 else fixed(value, 2)


def duration(seconds: float | None) -> str:
    """
    >>> duration(0.25), duration(59.6), duration(7260)
    ('0.25\u202fs', '1\u202fmin', '2\u202fh 1\u202fmin')
    """
    if seconds is None:
        return NONE
    if seconds < 10:
        return f"{digits(seconds, 2)}{NARROW}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}{NARROW}h {minutes}{NARROW}min"
    return " ".join(f"{count}{NARROW}{unit}" for count, unit in ((minutes, "min"), (rest, "s")) if count)


def capital(text: str) -> str:
    """
    >>> capital("all 4 clients of Ann"), capital("")
    ('All 4 clients of Ann', '')
    """
    return text[:1].upper() + text[1:]


def in_rounds(numbers: Iterable[int]) -> str:
    """Rounds by their numbers, each once.

    >>> in_rounds([1]), in_rounds([10, 1, 1]), in_rounds([1, 5, 10])
    ('round 1', 'rounds 1 and 10', 'rounds 1, 5 and 10')
    """
    *most, last = map(str, sorted(set(numbers)))
    return f"rounds {', '.join(most)} and {last}" if most else f"round {last}"


def audits_left(count: int, seconds: float | None, limit: float = math.inf) -> str:
    """With how long they take, if an audit has told that, and else with the most that the run waits.

    >>> audits_left(3, 110.0, 1200.0), audits_left(1, 20.0, 600.0), audits_left(0, 0.0, 0.0)
    ('3 audits left, about 2 min', '1 audit left, about 20 s', 'no audit left')
    >>> audits_left(2, None, 1200.0), audits_left(2, 700.0, 600.0)
    ('2 audits left; the run waits 20 min at most', '2 audits left; the run waits 10 min at most')
    >>> audits_left(2, None)
    '2 audits left'
    """
    if not count:
        return "no audit left"
    least = limit if seconds is None else min(seconds, limit)
    if math.isinf(least):
        return f"{plural(count, 'audit')} left"
    told = f"{least:.0f} s" if least < 60 else f"{least / 60:.0f} min"
    return f"{plural(count, 'audit')} left" + (
        f"; the run waits {told} at most" if least == limit else f", about {told}"
    )


def plural(count: int, thing: str) -> str:
    """
    >>> plural(1, "client"), plural(2, "client")
    ('1 client', '2 clients')
    """
    return f"{count} {thing}{'' if count == 1 else 's'}"
