"""A call of an upload that is made twice, in Flower's own states and over its own gRPC, with our wraps and without."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager

from prunella.deploy.runtime import flower_release, patches

DATABASES = (":flwr-in-memory:", "state.db")
SILENT = -1.0  # a heartbeat's interval in seconds, after which a node counts as dead at once
WRAPPED = ("store_object", "store_message_and_object_tree", "get_message_res")
over_grpc = pytest.mark.skipif(not flower_release.speaks_grpc(), reason="this Flower's SuperNodes speak HTTP")


@dataclass
class Link:
    """A SuperLink's state, and the question that a node was sent in a run that goes on."""

    factory: LinkStateFactory
    state: LinkState
    run: int
    question: Message = field(init=False)

    def send(self, node: int) -> None:
        self.question = identified(Message(RecordDict(), node, "train", ttl=600.0))
        session, tree = self.state.start_session(self.run), get_object_tree(self.question)
        stored, _ = self.state.store_message_and_object_tree(self.question, tree, session)
        assert stored and self.state.get_message_ins(node, 1)

    def ask(self) -> list[Message]:
        """What a ServerApp that asks for the reply is given; Flower deletes the question then."""
        found = self.state.get_message_res({self.question.metadata.message_id}, self.run)
        self.state.delete_messages({message.metadata.reply_to_message_id for message in found})
        return found

    def announce(self, reply: Message) -> tuple[str, list[str]]:
        """The session and the objects that a SuperNode is told to upload."""
        session = self.state.start_session(self.run)
        bare = remove_content_from_message(reply)
        _, missing = self.state.store_message_and_object_tree(bare, get_object_tree(reply), session)
        return session, missing

    def arrived(self, reply: Message) -> bool:
        return all(self.state.get_object(self.run, each) for each in get_all_nested_objects(reply))


def identified(message: Message) -> Message:
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def reply_to(question: Message) -> Message:
    arrays = ArrayRecord({str(number): Array(np.full(9, number)) for number in range(3)})
    return identified(Message(RecordDict({"update": arrays}), reply_to=question))


@pytest.fixture(params=DATABASES)
def open_link(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Link]:
    def opened() -> Link:
        database = str(tmp_path / request.param) if request.param.endswith(".db") else request.param
        factory = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database))
        state = factory.state()
        run = state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        (info,) = state.get_run_info(run_ids=[run])
        assert state.claim_task(info.primary_task_id) and state.activate_task(info.primary_task_id)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = info.primary_task_id, run, SUPERLINK_NODE_ID
        link = Link(factory, state, run)
        node = state.create_node("", "", b"a key", 30)
        state.activate_node(node, 30)
        link.send(node)
        return link

    return opened


@pytest.fixture
def wrap(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Wrap Flower's states, until the test is over."""
    import flwr.server.superlink.linkstate as states
    from flwr.server.superlink.linkstate import in_memory_linkstate, sql_linkstate
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate
    from flwr.superlink.grid import http_grid

    for kind in (states.InMemoryLinkState, states.SqlLinkState):
        for method in WRAPPED:
            monkeypatch.setattr(kind, method, getattr(kind, method))
    check = "check_node_availability_for_in_message"
    for module in (in_memory_linkstate, sql_linkstate):
        monkeypatch.setattr(module, check, getattr(module, check))
    for core in (in_memory_corestate, sql_corestate):
        monkeypatch.setattr(core, "OBJECT_PUSH_SESSION_TTL_SECONDS", core.OBJECT_PUSH_SESSION_TTL_SECONDS)
    monkeypatch.setattr(http_grid, "pull_objects", http_grid.pull_objects)
    return patches.repeatable_uploads


@pytest.mark.parametrize("ours", [False, True], ids=["flower", "ours"])
def test_an_object_uploaded_twice_is_there(open_link: Callable[[], Link], wrap: Callable[[], None], ours: bool) -> None:
    if ours:
        wrap()
    link = open_link()
    reply = reply_to(link.question)
    session, missing = link.announce(reply)
    objects = {name: made.deflate() for name, made in get_all_nested_objects(reply).items()}
    first, second = missing[:2]
    store = link.state.store_object
    assert store(link.run, session, first, objects[first])
    assert store(link.run, session, first, objects[first]) is ours
    assert not store(link.run, session, second, objects[first]), "not what was announced"
    assert not store(link.run, session, "0" * 64, objects[first]) and not store(link.run, session, "0" * 64, b"")
    assert not store(link.run, "another session", second, objects[second]) and not store(link.run, "", second, b"")
    assert all(store(link.run, session, name, objects[name]) for name in missing[1:]) and link.arrived(reply)


@pytest.mark.parametrize("ours", [False, True], ids=["flower", "ours"])
def test_a_reply_announced_twice_is_uploaded(
    open_link: Callable[[], Link], wrap: Callable[[], None], ours: bool
) -> None:
    """Though the ServerApp was given it meanwhile; as often as it takes, and each object once."""
    if ours:
        wrap()
    link = open_link()
    reply = reply_to(link.question)
    _, missing = link.announce(reply)
    assert missing and [found.metadata.message_id for found in link.ask()] == [reply.metadata.message_id]
    session, again = link.announce(reply)
    assert sorted(again) == (sorted(missing) if ours else [])
    objects = {name: made.deflate() for name, made in get_all_nested_objects(reply).items()}
    assert all(link.state.store_object(link.run, session, name, objects[name]) for name in again[1:])
    session, rest = link.announce(reply)
    assert rest == again[:1]
    assert all(link.state.store_object(link.run, session, name, objects[name]) for name in rest)
    assert link.arrived(reply) is ours


def test_nobody_announces_another_reply_to_the_same_question(
    open_link: Callable[[], Link], wrap: Callable[[], None]
) -> None:
    wrap()
    link = open_link()
    reply = reply_to(link.question)
    link.announce(reply)
    link.ask()
    late = identified(Message(RecordDict({"update": ArrayRecord()}), reply_to=link.question))
    assert link.announce(late)[1] == []


@pytest.mark.parametrize("ours", [False, True], ids=["flower", "ours"])
def test_a_reply_that_has_arrived_outlives_the_silence_of_its_node(
    open_link: Callable[[], Link], wrap: Callable[[], None], ours: bool
) -> None:
    if ours:
        wrap()
    link = open_link()
    reply = reply_to(link.question)
    link.announce(reply)
    link.state.acknowledge_node_heartbeat(link.question.metadata.dst_node_id, SILENT)
    (found,) = link.ask()
    assert found.has_error() is not ours and (found.metadata.message_id == reply.metadata.message_id) is ours


def test_a_reply_does_not_outlive_its_nodes_key(open_link: Callable[[], Link], wrap: Callable[[], None]) -> None:
    wrap()
    link = open_link()
    link.announce(reply_to(link.question))
    link.state.delete_node("", link.question.metadata.dst_node_id)
    (found,) = link.ask()
    assert found.has_error() and "Node Unavailable" in found.error.reason


def test_who_is_silent_and_has_not_answered_is_still_given_up(
    open_link: Callable[[], Link], wrap: Callable[[], None]
) -> None:
    wrap()
    link = open_link()
    assert link.ask() == []
    link.state.acknowledge_node_heartbeat(link.question.metadata.dst_node_id, SILENT)
    (found,) = link.ask()
    assert found.has_error() and "Node Unavailable" in found.error.reason


@over_grpc
@pytest.mark.parametrize("ours", [False, True], ids=["flower", "ours"])
def test_a_supernode_whose_every_call_loses_its_first_answer_delivers_its_reply(
    open_link: Callable[[], Link], wrap: Callable[[], None], ours: bool
) -> None:
    """Over gRPC, with Flower's own SuperNode, which tries again; the ServerApp asks as soon as a reply is announced."""
    import grpc
    from flwr.client.grpc_rere_client.connection import grpc_request_response
    from flwr.proto.fleet_pb2_grpc import add_FleetServicer_to_server
    from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
    from flwr.supercore.retry import make_simple_grpc_retry_invoker
    from flwr.supernode.nodestate import NodeStateFactory
    from flwr.supernode.start_client_internal import _insert_message, _push_messages

    class Cut(FleetServicer):  # type: ignore[misc]
        """Does what it is asked, and answers from the second time on."""

        heard: ClassVar[set[str]] = set()

        def _answer(self, call: str, done: Any, context: Any) -> Any:
            if call not in self.heard:
                self.heard.add(call)
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
            return done

        def PushMessages(self, request: Any, context: Any) -> Any:  # noqa: N802 - Flower's name
            done = super().PushMessages(request, context)
            link.ask()
            return self._answer("announcement", done, context)

        def PushObject(self, request: Any, context: Any) -> Any:  # noqa: N802 - Flower's name
            return self._answer(request.object_id, super().PushObject(request, context), context)

    if ours:
        wrap()
    link = open_link()
    server = grpc.server(ThreadPoolExecutor(4))
    add_FleetServicer_to_server(Cut(link.factory, link.factory.objectstore_factory, False), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    retries = make_simple_grpc_retry_invoker()
    retries.jitter = lambda _: 0.01
    here = NodeStateFactory(ObjectStoreFactory(":flwr-in-memory:"))
    store = here.objectstore_factory.store()
    with grpc_request_response(f"127.0.0.1:{port}", True, retries) as (node, _, send, _, _, _, push, _):
        link.send(node)
        reply = reply_to(link.question)
        _insert_message(reply, here.state(), store)
        _push_messages(here.state(), store, send, push)
        assert link.arrived(reply) is ours and len(store) == 0
    server.stop(None)


@over_grpc
@pytest.mark.parametrize("ours", [False, True], ids=["flower", "ours"])
def test_a_supernode_makes_a_call_again_that_ended_as_cancelled(
    open_link: Callable[[], Link], monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """Over gRPC, with Flower's own SuperNode: asking for a message; a refusal stays one."""
    import grpc
    from flwr.client.grpc_rere_client.connection import grpc_request_response
    from flwr.proto.fleet_pb2_grpc import add_FleetServicer_to_server
    from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
    from flwr.supernode import start_client_internal

    class Busy(FleetServicer):  # type: ignore[misc]
        """Ends the first two questions for a message without doing anything, as a gRPC server does that has no time."""

        calls: ClassVar[list[str]] = []

        def PullMessages(self, request: Any, context: Any) -> Any:  # noqa: N802 - Flower's name
            self.calls.append("message")
            if self.calls.count("message") <= 2:
                context.abort(grpc.StatusCode.CANCELLED, "not taken up")
            return super().PullMessages(request, context)

        def GetRun(self, request: Any, context: Any) -> Any:  # noqa: N802 - Flower's name
            self.calls.append("run")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")

    make = "make_simple_grpc_retry_invoker"
    monkeypatch.setattr(start_client_internal, make, getattr(start_client_internal, make))
    if ours:
        patches.repeated_calls()
    link = open_link()
    server = grpc.server(ThreadPoolExecutor(4))
    add_FleetServicer_to_server(Busy(link.factory, link.factory.objectstore_factory, False), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    retries = getattr(start_client_internal, make)()
    retries.jitter = lambda _: 0.01
    with grpc_request_response(f"127.0.0.1:{port}", True, retries) as (_, receive, _, run, *_):
        if ours:
            assert receive() is None and Busy.calls == ["message"] * 3
        else:
            with pytest.raises(grpc.RpcError):
                receive()
        with pytest.raises(grpc.RpcError):
            run(link.run)
        assert Busy.calls.count("run") == 1
    server.stop(None)
