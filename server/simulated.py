"""What Flower's simulation engine (Ray) makes of an error that a client raises, made what a SuperNode makes of it.

A SuperNode tells of the exception's class and text. In a simulation the answer has the tracebacks of Ray's actor around
them, and the engine logs these twice, where the server that reads the answer says in one line what it was.
"""

import logging
import re

from flwr.app import Error, Message
from flwr.app.message import make_message

CAUSE = "Exception ClientAppException occurred. Message:"  # Flower's, before the text of what the client raised
OURS = "prunella.core.errors."


def plain(reply: Message) -> Message:
    """The reply itself or, of an error from Ray, one that reads as a SuperNode's."""
    if not reply.has_error() or CAUSE not in (whole := reply.error.reason or ""):
        return reply
    name, text = cause(whole)
    reason = f"<class '{name}'>:<'{text}'>"
    return make_message(metadata=reply.metadata, error=Error(code=reply.error.code, reason=reason))


def cause(whole: str) -> tuple[str, str]:
    """The class of what the client raised, as far as its text names one of the tracebacks, and that text."""
    text = whole.rpartition(CAUSE)[2].removesuffix("'>").strip()
    first = re.escape(text.partition("\n")[0])
    named = re.search(rf"^((?:\w+\.)*\w+): {first}", whole, re.M) if first else None
    return named[1] if named else "Exception", text


def untold(record: logging.LogRecord) -> bool:
    """A filter of Flower's log that leaves out tracebacks of errors that this project raises on purpose."""
    said = record.getMessage()
    return CAUSE not in said or not cause(said)[0].startswith(OURS)
