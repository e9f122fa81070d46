"""Replies that Flower cannot read, and replies that name another sender than they have: an error in their place.

The SuperLink looks at the head of every object that a client uploads, and at nothing else of it. Flower's ServerApp
puts the objects of a reply together after it has confirmed the reply, and lets every exception through: for a body that
is not what its head says, a part that is missing, or parts inside parts beyond what Python can follow. And it believes
them: who sent a reply, and to which question, is then what the client wrote into it.

The reply's envelope is the SuperLink's own word, which takes a reply only from the node that was asked.
``noting_envelopes`` reads the envelopes, and ``read_or_refused`` wraps the function that puts a reply together: what
cannot be read, or does not say what its envelope says, becomes an error with the code ``UNREADABLE``, of the node and
to the question that the envelope names. ``of_who_was_asked`` holds the replies of any Grid against what the server has
asked.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from logging import WARNING
from types import MappingProxyType
from typing import Any, NamedTuple

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.logger import log

from prunella.server.simulated import plain
from prunella.strategies.round.replies import UNREADABLE


class Envelope(NamedTuple):
    """The message that a reply answers, and the node that was asked, which alone can answer it."""

    question: str
    node: int


ANOTHERS = "the reply says that it is another node's, or to another question"
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
    """Flower's ``inflate_object_from_contents`` of a reply, which never raises: what it cannot read, what is no message
    and what contradicts its envelope becomes an error reply. Its text names the kind of exception and nothing of the
    client's bytes. A reply without an envelope is one of a connection that is not ours, and is refused like these."""

    def inflated(object_id: str, *args: Any, **kwargs: Any) -> Message:
        envelope = _envelopes.get().get(object_id, Envelope("", 0))
        try:
            message = inflate(object_id, *args, **kwargs)
            whole = isinstance(message, Message) and (message.has_error() or type(message.content) is RecordDict)
            why = "the reply is no message" if not whole else "" if told_by(message) == envelope else ANOTHERS
        except Exception as error:  # noqa: BLE001 - a stranger's bytes may bring any parser to raise anything
            why = f"the reply cannot be read ({type(error).__name__})"
        return refused(envelope, why) if why else message

    return inflated


def told_by(reply: Message) -> Envelope:
    """What the reply itself says."""
    return Envelope(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)


def of_who_was_asked(replies: Iterable[Message], asked: Mapping[str, int]) -> list[Message]:
    """The replies, at most one to each message of ``asked``, which names the node that each was sent to. A reply of
    another node becomes an error of the one that was asked; the SuperLink may answer for it with an error. A reply to
    another message is left out, unless one alone was asked for and so it must be to that."""
    found: dict[str, Message] = {}
    for reply in replies:
        question, node = told_by(reply)
        own = next(iter(asked)) if len(asked) == 1 else question
        if own not in asked or own in found:
            log(WARNING, "a reply that says it is of node %d is left out: nothing was asked that it answers", node)
            continue
        senders = {asked[own], SUPERLINK_NODE_ID} if reply.has_error() else {asked[own]}
        honest = own == question and node in senders
        found[own] = plain(reply) if honest else refused(Envelope(own, asked[own]), ANOTHERS)
    return list(found.values())


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
