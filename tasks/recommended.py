"""Training settings that learn, for whoever does not choose them: ``learning-rate=auto``, the default.

The line of each dataset in ``tasks.datasets`` names a rate at which ``cnn`` learns it; the larger the pictures, the
more features stand before the last layer and the smaller the rate that does not diverge. Server and clients settle the
setting in the same way before anything reads it, so a run, its ledgers, its audits and a site's conditions all have the
number. A number that somebody chose stays.

>>> settled({"dataset": "digits", "learning-rate": "auto"})["learning-rate"]
0.25
>>> settled({"dataset": "mnist", "learning-rate": "0.1"})["learning-rate"]
0.1
"""

from typing import Any

from prunella.core.config import AUTO, RATE, Raw
from prunella.core.errors import ConfigError
from prunella.tasks.data import recommended_rate


def settled(raw: Raw) -> dict[str, Any]:
    """The settings with a number for the learning rate. Raises ``ConfigError`` where there is none."""
    given = raw.get(RATE, AUTO)
    if given == AUTO:
        return {**raw, RATE: recommended_rate(str(raw.get("dataset", "digits")))}
    try:
        return {**raw, RATE: float(given)}
    except ValueError:
        raise ConfigError(f"{RATE}: {given!r} is neither a number nor auto: write one of them") from None


def choice(raw: Raw) -> str:
    """What is said of a rate that nobody chose, or "".

    >>> choice({"dataset": "digits", "learning-rate": "auto"})
    'learning-rate 0.25, recommended for digits; -c learning-rate=... overrides it'
    """
    if raw.get(RATE, AUTO) != AUTO:
        return ""
    name = str(raw.get("dataset", "digits")).partition(":")[0]
    return f"{RATE} {settled(raw)[RATE]:g}, recommended for {name}; -c {RATE}=... overrides it"
