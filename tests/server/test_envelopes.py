"""Replies as clients upload them, through Flower's own Grid; only the connection to the SuperLink is made up."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_body
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid

from prunella.deploy.runtime import patches
from prunella.server.grid import OrderedGrid
from prunella.strategies.round.replies import UNREADABLE, ReplyError, require_answer
from prunella.strategies.round.roster import Member, Roster

Objects = dict[str, bytes]
Upload = tuple[str, Objects]  # the name of the object that is the reply, and all objects


@dataclass
class SuperLink(RuntimeHttpClient):
    """Holds what clients uploaded, after the checks that Flower's makes, and says in the envelope who was asked."""

    spoil: Callable[[Upload], Upload]  # what node 102 does to its replies
    asked: dict[str, Message] = field(default_factory=dict)
    objects: Objects = field(default_factory=dict)

    def ask(self, messages: list[Message]) -> list[str]:
        names = [f"question {len(self.asked) + number}" for number in range(len(messages))]
        for name, message in zip(names, messages, strict=True):
            message.metadata.__dict__["_message_id"] = name
        self.asked |= dict(zip(names, messages, strict=True))
        return names

    def _unary_unary(self, *, path: str, request: Any, **_: Any) -> Any:
        if path.endswith("pull-object"):
            return PullObjectResponse(
                object_found=True, object_available=True, object_content=self.objects[request.object_id]
            )
        if path.endswith("confirm-message-received"):
            return ConfirmMessageReceivedResponse()
        told = PullAppMessagesResponse()
        for name in request.message_ids:
            question = self.asked.pop(name)
            record = ConfigRecord({"client": question.metadata.dst_node_id - 100})
            reply = Message(RecordDict({"hello": record}), reply_to=question)
            envelope = message_to_proto(reply)
            upload = uploaded(reply)
            head, objects = self.spoil(upload) if question.metadata.dst_node_id == 102 else upload
            for content in objects.values():
                validate_object_content(content)
            envelope.metadata.message_id = head
            self.objects |= objects
            told.messages_list.append(envelope)
            tree = ObjectTree(object_id=head)
            tree.children.extend(ObjectTree(object_id=each) for each in objects if each != head)
            told.message_object_trees.append(tree)
        return told


def uploaded(reply: Message) -> Upload:
    return reply.object_id, {name: made.deflate() for name, made in get_all_nested_objects(reply).items()}


def made(kind: str, children: list[str], body: bytes) -> tuple[str, bytes]:
    """An object as Flower writes one, and its name."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body
    return hashlib.sha256(content).hexdigest(), content


def around(upload: Upload, content: str, more: Objects) -> Upload:
    """The same message with another object as its content."""
    head, objects = upload
    name, top = made("Message", [content], get_object_body(objects[head], Message))
    return name, {name: top, **more}


def garbage(upload: Upload) -> Upload:
    name, content = made("RecordDict", [], b"\xff\xff\xff")
    return around(upload, name, {name: content})


def a_part_is_missing(upload: Upload) -> Upload:
    return around(upload, "0" * 64, {})


def parts_in_parts(upload: Upload) -> Upload:
    name, content = made("RecordDict", [], b"{}")
    objects = {name: content}
    for _ in range(2_000):
        name, content = made("RecordDict", [name], b"{}")
        objects[name] = content
    return around(upload, name, objects)


def another_record(upload: Upload) -> Upload:
    record = ConfigRecord({"client": 2})
    return around(upload, record.object_id, {record.object_id: record.deflate()})


def no_message(_: Upload) -> Upload:
    return uploaded(RecordDict())  # type: ignore[arg-type]


def forged(node: int, question: str) -> Callable[[Upload], Upload]:
    """A reply that says it is another node's answer to another question."""

    def said(upload: Upload) -> Upload:
        head, objects = upload
        body = ProtoMessage.FromString(get_object_body(objects[head], Message))
        body.metadata.src_node_id, body.metadata.reply_to_message_id = node, question
        content = next(name for name, each in objects.items() if each.startswith(b"RecordDict"))
        name, top = made("Message", [content], body.SerializeToString())
        return name, {name: top, **{each: objects[each] for each in objects if each != head}}

    return said


SPOILED = [garbage, a_part_is_missing, parts_in_parts, another_record, no_message]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., OrderedGrid]:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    name = "inflate_object_from_contents"
    monkeypatch.setattr(http_grid, name, getattr(http_grid, name))
    monkeypatch.setattr(RuntimeHttpClient, "PullMessages", RuntimeHttpClient.PullMessages)

    def connected(spoil: Callable[[Upload], Upload], ours: bool = True) -> OrderedGrid:
        if ours:
            patches.readable_replies()
        link, grid = SuperLink(spoil), HttpGrid(token="a token")
        grid._client, grid._run = link, cast(Run, SimpleNamespace(run_id=1))
        monkeypatch.setattr(grid, "push_messages", lambda messages: link.ask(list(messages)))
        monkeypatch.setattr(grid, "get_node_ids", lambda: [101, 102, 103])
        return OrderedGrid(grid, 0.0)

    return connected


def questions() -> list[Message]:
    return [Message(RecordDict(), node, "train") for node in (101, 102, 103)]


@pytest.mark.parametrize("spoil", SPOILED)
def test_flower_itself_ends_the_run_or_takes_what_is_no_answer(
    connect: Callable[..., OrderedGrid], spoil: Callable[[Upload], Upload]
) -> None:
    grid = connect(spoil, ours=False)
    try:
        replies = list(grid.send_and_receive(questions(), timeout=5.0))
    except Exception:  # noqa: BLE001 - of whatever kind
        return
    assert not isinstance(replies[1].content, RecordDict)


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("timeout", [5.0, 0.0], ids=["one by one", "all at once"])
def test_a_reply_that_cannot_be_read_is_an_error_of_its_sender_and_the_others_are_read(
    connect: Callable[..., OrderedGrid], spoil: Callable[[Upload], Upload], timeout: float
) -> None:
    replies = list(connect(spoil).send_and_receive(questions(), timeout=timeout))
    assert [reply.metadata.src_node_id for reply in replies] == [101, 102, 103]
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert replies[1].error.code == UNREADABLE and replies[2].content["hello"]["client"] == 3
    with pytest.raises(ReplyError, match=r"^the reply (is no message|cannot be read \(\w+\))$") as left_out:
        require_answer(replies[1])
    assert left_out.value.reason == "malformed" and not left_out.value.refused


def test_a_node_whose_first_answer_cannot_be_read_is_no_member_and_is_named(
    connect: Callable[..., OrderedGrid], caplog: pytest.LogCaptureFixture
) -> None:
    """The question that every node is asked before it is anybody."""
    roster, grid = Roster(), connect(garbage)
    with caplog.at_level("WARNING", "flwr"):
        assert roster.refresh(grid) == [Member(1, 101), Member(3, 103)]
    assert "node 102 is left out: the reply cannot be read" in caplog.text
    assert "1 left out: the reply cannot be read" in roster.refused() and not roster.refusals


FORGED = [forged(101, "question 1"), forged(102, "question 0"), forged(101, "question 0")]


@pytest.mark.parametrize("spoil", FORGED)
@pytest.mark.parametrize("timeout", [5.0, 0.0], ids=["one by one", "all at once"])
def test_who_sent_a_reply_is_what_the_superlink_says_and_not_the_reply(
    connect: Callable[..., OrderedGrid], spoil: Callable[[Upload], Upload], timeout: float
) -> None:
    replies = list(connect(spoil).send_and_receive(questions(), timeout=timeout))
    assert [reply.metadata.src_node_id for reply in replies] == [101, 102, 103]
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert replies[0].content["hello"]["client"] == 1
    with pytest.raises(ReplyError, match="says that it is another node's") as left_out:
        require_answer(replies[1])
    assert left_out.value.reason == "malformed"


def test_flower_itself_believes_the_reply(connect: Callable[..., OrderedGrid]) -> None:
    """A positive control, of the Grid below ours."""
    grid = connect(forged(101, "question 0"), ours=False)
    ids = list(grid.push_messages(questions()))
    assert [reply.metadata.src_node_id for reply in grid._grid.pull_messages(ids)] == [101, 101, 103]


def test_a_node_does_not_say_hello_for_another(connect: Callable[..., OrderedGrid]) -> None:
    roster, grid = Roster(), connect(forged(101, "question 0"))
    assert roster.refresh(grid) == [Member(1, 101), Member(3, 103)]
    assert "says that it is another node's" in roster.impostors[102]
