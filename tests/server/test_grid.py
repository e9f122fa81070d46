import time
from types import SimpleNamespace
from typing import ClassVar

import pytest
from flwr.app import Message, RecordDict
from flwr.app.constants import DEFAULT_TTL
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects
from flwr.supercore.task_identity import TaskIdentity

from prunella.server import grid
from prunella.server.grid import LATE, OrderedGrid, within_the_round
from prunella.strategies.round.replies import UNREADABLE


class Slow:
    """Replies become ready in the given order of polls; records what was held at once."""

    def __init__(self, ready_after: dict[str, int]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.ready_after, self.polls = ready_after, 0
        self.pulled: list[str] = []

    def asked(self) -> list[Message]:
        return [Message(RecordDict(), dst_node_id=int(each[1:]), message_type="train") for each in self.ready_after]

    def push_messages(self, messages):
        self.pushed = list(messages)
        return [f"m{message.metadata.dst_node_id}" for message in self.pushed]

    def pull_messages(self, ids):
        self.polls += 1
        self.pulled += (ready := [each for each in ids if self.ready_after[each] <= self.polls])
        return [self.reply(each) for each in reversed(ready)]

    def reply(self, message_id: str) -> Message:
        question = Message(RecordDict(), dst_node_id=int(message_id[1:]), message_type="train")
        question.metadata.__dict__["_message_id"] = message_id
        return Message(RecordDict(), reply_to=question)

    def extra(self) -> str:
        return "delegated"


def test_replies_come_in_message_order_whatever_order_they_are_ready_in() -> None:
    inner = Slow({"m1": 5, "m2": 0, "m3": 0})
    replies = list(OrderedGrid(inner, poll=0.001).send_and_receive(inner.asked(), timeout=5))
    assert [r.metadata.src_node_id for r in replies] == [1, 2, 3]


def test_a_reply_is_pulled_only_when_the_one_before_was_taken() -> None:
    inner = Slow({"m1": 0, "m2": 0})
    replies = OrderedGrid(inner, poll=0.001).send_and_receive(inner.asked(), timeout=5)
    assert inner.pulled == []
    next(iter(replies))
    assert inner.pulled == ["m1"]


def test_after_the_deadline_only_what_is_there_is_taken() -> None:
    inner = Slow({"m1": 10**9, "m2": 0, "m3": 10**9})
    replies = list(OrderedGrid(inner, poll=0.001).send_and_receive(inner.asked(), timeout=0.05))
    assert [r.metadata.src_node_id for r in replies] == [2]


@pytest.mark.parametrize("arriving", [False, True])
def test_it_looks_less_often_the_longer_it_waits_and_not_past_the_deadline(
    arriving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(grid, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time, sleep=sleep))
    inner = Slow({"m1": 200 if arriving else 100, "m2": 10**9})  # in the 100th look
    assert len(list(OrderedGrid(inner, poll=0.1, arriving=arriving).send_and_receive(inner.asked(), timeout=80.3))) == 1
    assert pauses[:50] == [0.1] * 50 and 0.2 < pauses[98] < 0.3 and pauses[99:149] == [0.1] * 50
    assert max(pauses) == 1.0 and clock[0] == pytest.approx(80.3) and len(pauses) < 300


def test_after_the_deadline_the_order_is_still_that_of_the_messages() -> None:
    inner = Slow({"m1": 10**9, "m2": 0, "m3": 0, "m4": 0})
    replies = list(OrderedGrid(inner, poll=0.001).send_and_receive(inner.asked(), timeout=0.0))
    assert [r.metadata.src_node_id for r in replies] == [2, 3, 4] and inner.polls == 1


def test_replies_come_as_they_arrive_where_that_is_asked_for_and_one_at_a_time() -> None:
    inner = Slow({"m1": 7, "m2": 0, "m3": 4, "m4": 0})
    replies = iter(OrderedGrid(inner, poll=0.001, arriving=True).send_and_receive(inner.asked(), timeout=5))
    assert next(replies).metadata.src_node_id == 2 and inner.pulled == ["m2"]
    assert [r.metadata.src_node_id for r in replies] == [4, 3, 1]


def test_every_look_begins_with_another_message() -> None:
    """One that pulls wait long for is not always in front of the same others."""
    inner = Slow({"m1": 10**9, "m2": 10**9, "m3": 10**9})
    asked: list[str] = []
    pull = inner.pull_messages
    inner.pull_messages = lambda ids: [asked.extend(ids), *pull(ids)][1:]  # type: ignore[method-assign]
    assert list(OrderedGrid(inner, poll=0.001, arriving=True).send_and_receive(inner.asked(), timeout=0.5)) == []
    assert asked[:9:3] == ["m1", "m2", "m3"]


def test_after_the_deadline_what_is_there_is_taken_at_once_as_they_arrive_too() -> None:
    inner = Slow({"m1": 10**9, "m2": 0, "m3": 0})
    replies = list(OrderedGrid(inner, poll=0.001, arriving=True).send_and_receive(inner.asked(), timeout=0.0))
    assert [r.metadata.src_node_id for r in replies] == [2, 3] and inner.polls == 1
    replies = list(OrderedGrid(inner, poll=0.001, arriving=True).send_and_receive(inner.asked(), timeout=0.05))
    assert [r.metadata.src_node_id for r in replies] == [2, 3]


@pytest.mark.parametrize("arriving", [False, True])
def test_an_upload_that_stops_is_waited_for_until_the_deadline_and_costs_no_other_reply(arriving: bool) -> None:
    class Stopped(Slow):
        """Flower's own pull of m1 looks for a part that never comes."""

        looks: ClassVar[list[int]] = []  # of every pull

        def look(self, _: str) -> bytes:
            self.looks[-1] += 1
            raise ObjectUnavailableError("a part")

        def pull_messages(self, ids):
            if "m1" in ids:
                self.looks.append(0)
                with pytest.raises(ObjectPullError):
                    within_the_round(pull_objects)(["a part"], self.look, initial_backoff=0.001)
            return super().pull_messages(ids)

    inner = Stopped({"m1": 10**9, "m2": 0})
    replies = list(OrderedGrid(inner, poll=0.001, arriving=arriving).send_and_receive(inner.asked(), timeout=0.3))
    assert [r.metadata.src_node_id for r in replies] == [2]
    within, after = inner.looks
    assert within > 3 and after == 1


def test_an_upload_that_stops_does_not_hold_up_a_server_that_waits_for_no_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers to questions that stay open while rounds go on, as those to audits and to who is there."""
    monkeypatch.setattr("prunella.server.grid.ALONE", 0.2)

    class Stopped(Slow):
        def look(self, _: str) -> bytes:
            raise ObjectUnavailableError("a part")

        def pull_messages(self, ids):
            with pytest.raises(ObjectPullError):
                within_the_round(pull_objects)(["a part"], self.look, initial_backoff=0.01, max_time=5.0)
            return super().pull_messages(ids)

    begin = time.monotonic()
    grid = OrderedGrid(inner := Stopped({"m1": 10**9, "m2": 0}))
    replies = list(grid.pull_messages(grid.push_messages(inner.asked())))
    assert [r.metadata.src_node_id for r in replies] == [2] and time.monotonic() - begin < 3


def test_a_pull_of_another_grid_is_flowers_own() -> None:
    def pull(*_: object, **kwargs: object) -> dict[str, bytes]:
        return {name: b"" for name in kwargs}

    assert within_the_round(pull)(["a part"], max_tries_per_object=7) == {"max_tries_per_object": b""}


def test_a_message_expires_soon_after_nobody_waits_for_it() -> None:
    inner, started = Slow({}), time.time()
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_created_at"] -= 3.0
    OrderedGrid(inner).send_and_receive([message], timeout=5.0)
    expires = message.metadata.created_at + message.metadata.ttl
    assert inner.pushed == [message] and 0 <= expires - started - 5.0 - LATE < 1.0
    untouched = Message(RecordDict(), dst_node_id=1, message_type="train")
    OrderedGrid(inner).send_and_receive([untouched])
    assert untouched.metadata.ttl == DEFAULT_TTL


def test_everything_else_is_the_wrapped_grids() -> None:
    assert OrderedGrid(Slow({})).extra() == "delegated"
    with pytest.raises(AttributeError):
        OrderedGrid(Slow({})).nothing()


class Lying(Slow):
    """Node 2 has answered what it was asked, and its reply says something else about itself."""

    says: ClassVar[dict[str, object]] = {}

    def reply(self, message_id: str) -> Message:
        made = super().reply(message_id)
        if message_id == "m2":
            made.metadata.__dict__.update(self.says)
        return made


@pytest.mark.parametrize(
    "says", [{"_src_node_id": 1}, {"_reply_to_message_id": "m1"}, {"_src_node_id": 1, "_reply_to_message_id": "m1"}]
)
@pytest.mark.parametrize("arriving", [False, True])
def test_a_reply_that_names_another_sender_counts_as_a_bad_one_of_its_own(
    arriving: bool, says: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lying, "says", says)
    inner = Lying({"m1": 0, "m2": 0, "m3": 0})
    replies = list(OrderedGrid(inner, poll=0.001, arriving=arriving).send_and_receive(inner.asked(), timeout=5))
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2, 3]
    assert [reply.metadata.reply_to_message_id for reply in replies] == ["m1", "m2", "m3"]
    assert [reply.has_error() and reply.error.code == UNREADABLE for reply in replies] == [False, True, False]


def test_a_message_that_flower_left_out_has_no_answer_and_the_others_have_theirs() -> None:
    """Its Grids give no id for one that is too large, or that was not stored."""

    class Full(Slow):
        def push_messages(self, messages):
            taken = [message for message in messages if message.metadata.dst_node_id != 2]
            for message in taken:
                message.metadata.__dict__["_message_id"] = f"m{message.metadata.dst_node_id}"
            return [message.metadata.message_id for message in taken]

    inner = Full({"m1": 0, "m2": 0, "m3": 0})
    replies = list(OrderedGrid(inner, poll=0.001).send_and_receive(inner.asked(), timeout=5))
    assert [reply.metadata.src_node_id for reply in replies] == [1, 3]


def test_nobody_answers_for_another_where_many_answers_are_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Grid in between believes it; what says it answers a question that nobody asked is no reply."""
    monkeypatch.setattr(Lying, "says", {"_src_node_id": 1})
    inner = Lying({"m1": 0, "m2": 0})
    grid = OrderedGrid(inner)
    ids = list(grid.push_messages(inner.asked()))
    first, second = grid.pull_messages(ids)
    assert {first.metadata.src_node_id, second.metadata.src_node_id} == {1, 2}
    assert [reply.error.code for reply in (first, second) if reply.has_error()] == [UNREADABLE]
    monkeypatch.setattr(Lying, "says", {"_reply_to_message_id": "m7"})
    assert [reply.metadata.src_node_id for reply in grid.pull_messages(grid.push_messages(inner.asked()))] == [1]
