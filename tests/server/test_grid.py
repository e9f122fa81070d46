import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from server.grid import OrderedGrid


class Slow:
    """Replies become ready in the given order of polls; records what was held at once."""

    def __init__(self, ready_after: dict[str, int]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.ready_after, self.polls = ready_after, 0
        self.pulled: list[str] = []

    def push_messages(self, messages):
        return list(self.ready_after)

    def pull_messages(self, ids):
        self.polls += 1
        (message_id,) = ids
        if self.ready_after[message_id] > self.polls:
            return []
        self.pulled.append(message_id)
        return [Message(RecordDict(), dst_node_id=int(message_id[1:]), message_type="train")]

    def extra(self) -> str:
        return "delegated"


def test_replies_come_in_message_order_whatever_order_they_are_ready_in() -> None:
    inner = Slow({"m1": 5, "m2": 0, "m3": 0})
    replies = list(OrderedGrid(inner, poll=0.001).send_and_receive([], timeout=5))
    assert [r.metadata.dst_node_id for r in replies] == [1, 2, 3]


def test_a_reply_is_pulled_only_when_the_one_before_was_taken() -> None:
    inner = Slow({"m1": 0, "m2": 0})
    replies = OrderedGrid(inner, poll=0.001).send_and_receive([], timeout=5)
    assert inner.pulled == []
    next(iter(replies))
    assert inner.pulled == ["m1"]


def test_after_the_deadline_only_what_is_there_is_taken() -> None:
    inner = Slow({"m1": 10**9, "m2": 0, "m3": 10**9})
    replies = list(OrderedGrid(inner, poll=0.001).send_and_receive([], timeout=0.05))
    assert [r.metadata.dst_node_id for r in replies] == [2]


def test_everything_else_is_the_wrapped_grids() -> None:
    assert OrderedGrid(Slow({})).extra() == "delegated"
    with pytest.raises(AttributeError):
        OrderedGrid(Slow({})).nothing()
