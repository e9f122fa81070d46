"""Replies that Flower cannot read: an error in their place, so that a client's bytes end no run.

The SuperLink looks at the head of every object that a client uploads, and at nothing else of it. Flower's ServerApp
puts the objects of a reply together after it has confirmed the reply, and lets every exception through: for a body that
is not what its head says, a part that is missing, or parts inside parts beyond what Python can follow.

``read_or_refused`` wraps the function that puts them together. What takes a reply's place is an error reply with the
code ``UNREADABLE``, to the question that the reply answers. Which one that is and who was asked stands in the reply's
envelope, the SuperLink's own word, which ``noting_envelopes`` reads.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.app.message import make_message

from prunella.strategies.round.replies import UNREADABLE


class Envelope(NamedTuple):
    """The message that a reply answers, and the node that was asked, which alone can answer it."""

    question: str
    node: int


NOBODYS = Envelope("", 0)
_envelopes: ContextVar[Mapping[str, Envelope]] = ContextVar(
    "those of the last pull, by the reply's message id", default=MappingProxyType({})
)


def noting_envelopes(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's request for replies, ``RuntimeHttpClient.PullMessages``; the envelopes in its answer are noted."""

    def pull_messages(*args: Any, **kwargs: Any) -> Any:
        answer = pull(*args, **kwargs)
        told = [each.metadata for each in answer.messages_list]
        _envelopes.set({each.message_id: Envelope(each.reply_to_message_id, each.src_node_id) for each in told})
        return answer

    return pull_messages


def read_or_refused(inflate: Callable[..., Any]) -> Callable[..., Message]:
    """Flower's ``inflate_object_from_contents`` of a reply, which never raises: what it cannot read, or what is no
    message, becomes an error reply. Its text names the kind of exception and nothing of the client's bytes."""

    def inflated(object_id: str, *args: Any, **kwargs: Any) -> Message:
        try:
            message = inflate(object_id, *args, **kwargs)
            whole = isinstance(message, Message) and (message.has_error() or type(message.content) is RecordDict)
            why = "" if whole else "the reply is no message"
        except Exception as error:  # noqa: BLE001 - a stranger's bytes may bring any parser to raise anything
            why = f"the reply cannot be read ({type(error).__name__})"
        return refused(_envelopes.get().get(object_id, NOBODYS), why) if why else message

    return inflated


def refused(envelope: Envelope, why: str) -> Message:
    """The error that takes a reply's place."""
    about = Metadata(
        run_id=0,
        message_id="",
        src_node_id=envelope.node,
        dst_node_id=0,
        reply_to_message_id=envelope.question,
        group_id="",
        created_at=time.time(),
        ttl=0.0,
        message_type="query",
    )
    return make_message(metadata=about, error=Error(code=UNREADABLE, reason=why))
