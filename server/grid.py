"""A Grid that yields replies one at a time, in the order of the messages, as soon as each has arrived; or ``arriving``.

Flower's own ``send_and_receive`` polls every three seconds and returns all replies as one list. Pulling them in a fixed
order has two advantages: the server never holds more than one decoded reply, and the sum of a round has the same bits
every time. A reply that arrives early waits at the SuperLink. Where clients are chosen by their speed, their times must
be seen, and no two runs are equal bit for bit anyway: then replies come in the order in which they arrive (to within
one look at every message that waits for its answer).

A message expires ``LATE`` seconds after the server stops waiting for its answer. Flower would keep it for twelve hours,
and a SuperNode works on one message after another, so a straggler would train for rounds that are long over.

A pull waits for a reply whose upload has begun. ``within_the_round`` wraps the function with which Flower's own Grid
pulls the parts of a reply: it looks for a missing part every ``LOOK`` seconds until the deadline, so that the replies
that are there can still be fetched. Flower's pauses grow to 10 s, and it waits for two hours or 500 looks. A pull that
belongs to no round, of answers to who is there and to audits, has ``ALONE`` seconds: a client that begins an upload and
never ends it would hold up every round.

A reply counts as that of the node that was asked, and of no other, whatever it says of itself (``server.envelopes``).
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from prunella.server.envelopes import of_who_was_asked

LATE = 5.0  # seconds after the deadline in which an answer can still be fetched
ALONE = 60.0  # seconds that a pull outside a round waits for what is missing of the replies that it found
LOOK = 1.0  # seconds, give or take a fifth; the first looks come sooner
SHARE = 0.02  # of the time since the last reply: the pause before the next look, up to ``LOOK``
_deadline: ContextVar[float | None] = ContextVar("when a pull must end, by time.monotonic", default=None)


def within_the_round(pull: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
    """Flower's ``pull_objects``, which gives up at the deadline of the ``OrderedGrid`` that calls it, if it has one."""

    def pull_objects(*args: Any, **kwargs: Any) -> dict[str, bytes]:
        end = _deadline.get()
        if end is not None:
            kwargs |= {"max_time": end - time.monotonic(), "max_tries_per_object": None, "backoff_cap": LOOK}
        return pull(*args, **kwargs)

    return pull_objects


class OrderedGrid(Grid):
    """Wraps ``grid`` and polls it every ``poll`` seconds, and less often the longer no reply has come: each look
    costs the SuperLink time. ``arriving``: replies come in the order of their arrival."""

    def __init__(self, grid: Grid, poll: float = 0.1, arriving: bool = False) -> None:
        self._grid, self._poll, self._arriving = grid, poll, arriving
        self._open: dict[str, int] = {}  # the node asked, by message: those that ``pull_messages`` may be asked for

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = list(self._grid.push_messages(messages))
        self._open |= _nodes(ids, messages)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there to messages of ``push_messages``."""
        asked = {message_id: self._open[message_id] for message_id in message_ids}
        replies = self._pull(asked, time.monotonic() + ALONE)
        for reply in replies:
            del self._open[reply.metadata.reply_to_message_id]
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Replies, lazily. After ``timeout`` seconds only what is already there is taken."""
        messages = list(messages)
        if timeout is not None:
            for message in messages:
                message.metadata.ttl = time.time() - message.metadata.created_at + timeout + LATE
        asked = _nodes(self._grid.push_messages(messages), messages)
        receive = self._as_they_arrive if self._arriving else self._receive
        return receive(asked, None if timeout is None else time.monotonic() + timeout)

    def _receive(self, asked: Mapping[str, int], end: float | None) -> Iterator[Message]:
        ids = list(asked)
        for number, message_id in enumerate(ids):
            since = time.monotonic()
            while True:
                if end is not None and time.monotonic() >= end:
                    yield from self._rest({left: asked[left] for left in ids[number:]}, end)
                    return
                replies = self._pull({message_id: asked[message_id]}, end)
                yield from replies
                if replies:
                    break
                self._pause(since, end)

    def _as_they_arrive(self, asked: Mapping[str, int], end: float | None) -> Iterator[Message]:
        """Flower waits inside a pull for a reply whose upload has begun. So each look begins with another message: no
        client is always seen only after the same slow upload."""
        since, ids = time.monotonic(), list(asked)
        while ids:
            if end is not None and time.monotonic() >= end:
                yield from self._rest({left: asked[left] for left in ids}, end)
                return
            answered = set()
            for message_id in ids:
                for reply in self._pull({message_id: asked[message_id]}, end):
                    answered.add(message_id)
                    yield reply
            ids = [message_id for message_id in ids[1:] + ids[:1] if message_id not in answered]
            since = time.monotonic() if answered else since
            if ids:
                self._pause(since, end)

    def _pause(self, since: float, end: float | None) -> None:
        now = time.monotonic()
        left = math.inf if end is None else max(0.0, end - now)
        time.sleep(min(left, max(self._poll, min(LOOK, SHARE * (now - since)))))

    def _pull(self, asked: Mapping[str, int], end: float | None) -> list[Message]:
        token = _deadline.set(end)
        try:
            return of_who_was_asked(self._grid.pull_messages(list(asked)), asked)
        finally:
            _deadline.reset(token)

    def _rest(self, asked: Mapping[str, int], end: float) -> list[Message]:
        """All replies that are there after the deadline, in one call: asked for one by one, the last would expire."""
        found = {reply.metadata.reply_to_message_id: reply for reply in self._pull(asked, end)}
        return [found[message_id] for message_id in asked if message_id in found]


def _nodes(ids: Iterable[str | None], messages: Iterable[Message]) -> dict[str, int]:
    """The node that each message was sent to, by its id. A message that Flower did not take has None, or it has left it
    out: then each that it took has its id by now."""
    known, sent = list(ids), list(messages)
    if len(known) != len(sent):
        sent = [message for message in sent if message.metadata.message_id in known]
        known = [message.metadata.message_id for message in sent]
    pairs = zip(known, sent, strict=True)
    return {message_id: message.metadata.dst_node_id for message_id, message in pairs if message_id is not None}
