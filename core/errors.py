"""Errors of the project, one base class.

Flower forwards ``str(exception)`` from a client to the server, and here the server is the adversary: a message names
tensors, shapes of the model and settings, never values of a tensor or of an example. What a client's files hold is not
counted or named either (labels, classes, columns, pictures, folders): a server chooses what the files are read as, so
every number in an error would answer a question about them.
"""

import difflib
import logging
from collections.abc import Iterable

LISTED = 24  # names in an error, where one of them is near
logger = logging.getLogger(__name__)


class PrunellaError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(PrunellaError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class KeyMismatch(PrunellaError, ValueError):
    """Two trees that must have the same names do not."""


class WireError(PrunellaError, ValueError):
    """Bytes from the network are not a valid encoding. ``reason`` is one of a few words, fit for a metric label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DefenseError(PrunellaError, RuntimeError):
    """A defense could not do its job; the update is withheld."""


class DataError(PrunellaError, ValueError):
    """A dataset is missing or not readable as described."""


def of_data(message: str, details: object) -> DataError:
    """The error for data that cannot be used: ``message`` may leave this machine, ``details`` go to its log only.

    >>> print(of_data("labels are not classes", "17 of 400"))
    labels are not classes; the log of the machine they lie on says more
    """
    logger.error("%s: %s", message, details)
    return DataError(f"{message}; the log of the machine they lie on says more")


class AttackError(PrunellaError, ValueError):
    """An attack cannot run on this view."""


def with_article(thing: object) -> str:
    """What a thing is, with its article.

    >>> with_article(0.5), with_article(OSError()), with_article(OSError)
    ('a float', 'an OSError', 'the class OSError')
    """
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    name = type(thing).__name__
    spelled = name[:2].isupper()  # LSTM
    return f"{'an' if name[0] in ('AEFHILMNORSX' if spelled else 'AEIOUaeiou') else 'a'} {name}"


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that no registry has: the nearest valid one, then all of them, unless they fill the screen.

    >>> print(unknown("defense", "pripune", ["none", "dgp", "priprune"]))
    unknown defense 'pripune': did you mean 'priprune'? Valid: dgp, none, priprune
    """
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    # Of names equally like it the one of its length: two letters that changed places are the likelier slip.
    near.sort(key=lambda choice: (-difflib.SequenceMatcher(None, choice, name).ratio(), abs(len(choice) - len(name))))
    hint = f"did you mean {near[0]!r}? " if near else ""
    named = f"Valid: {', '.join(choices)}"
    if near and len(choices) > LISTED:
        named = f"Like it, too: {', '.join(near[1:])}" if near[1:] else ""
    return ConfigError(f"unknown {kind} {name!r}: {hint}{named}".rstrip())
