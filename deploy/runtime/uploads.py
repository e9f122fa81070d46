"""A part of an upload that comes to the SuperLink twice is taken once, and not called lost.

When a link is cut for longer than about 20 s, gRPC gives the connection up, and a SuperNode makes every call that had
no answer again. Flower 1.39 and 1.42 take a call that had arrived for a failure when it comes again:

- ``PushObject``: the object is no longer awaited, so it counts as not stored, and the SuperNode drops the whole reply.
- ``PushMessages``: if the ServerApp has asked since, it was given the reply, whose objects are still to come, and the
  question is deleted. The SuperNode is told that there is nothing to upload, and the ServerApp waits in vain.

Besides, a reply that has arrived is thrown away if its SuperNode has been silent since: after a cut, the first sign of
life may come later than the ServerApp's next look.

The functions here wrap methods of Flower's ``LinkState``.
"""

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

PATIENCE = 600  # seconds without an object after which an upload counts as given up; Flower's are 180

Stores = Callable[[Any, int, str, str, bytes], bool]
Registers = Callable[[Any, Any, Any, str], tuple[bool, list[str]]]
Finds = Callable[[Any, set[str], int], list[Any]]
Answered = Callable[[Any, set[str]], frozenset[str]]
Silent = Callable[..., dict[str, Any]]

_answered: ContextVar[Callable[[set[str]], frozenset[str]]] = ContextVar("which of these questions are answered")


def stored_once(store: Stores) -> Stores:
    """Wraps ``store_object``: an object that is there already, byte for byte, is stored."""

    def store_object(state: Any, run_id: int, session_id: str, object_id: str, content: bytes) -> bool:
        done = store(state, run_id, session_id, object_id, content)
        return done or (content != b"" and state.object_store.get(object_id) == content)

    return store_object


def announced_once(register: Registers) -> Registers:
    """Wraps ``store_message_and_object_tree``: a reply that was announced before is told what is still to upload.

    Whoever names the SHA-256 of a reply has it; nobody else can take its upload over.
    """

    def store_message_and_object_tree(state: Any, message: Any, tree: Any, session: str) -> tuple[bool, list[str]]:
        stored, missing = register(state, message, tree, session)
        known = message.metadata.reply_to_message_id and message.metadata.message_id == tree.object_id
        if stored or not known or tree.object_id not in state.object_store:
            return stored, missing
        return True, state.preregister_object_tree(tree, session)

    return store_message_and_object_tree


def answered_in_memory(state: Any, questions: set[str]) -> frozenset[str]:
    """Of these questions, by id, those whose reply an ``InMemoryLinkState`` has."""
    return frozenset(questions & state.message_ins_id_to_message_res_id.keys())


def answered_on_disk(state: Any, questions: set[str]) -> frozenset[str]:
    """Of these questions, by id, those whose reply an ``SqlLinkState`` has."""
    from flwr.supercore.state.schema.linkstate_models import MessageRes
    from sqlalchemy import select

    with state.session() as session:
        asked = MessageRes.reply_to_message_id.in_(questions)
        return frozenset(session.scalars(select(MessageRes.reply_to_message_id).where(asked)))


def found_despite_silence(find: Finds, answered: Answered) -> Finds:
    """Wraps ``get_message_res``: what ``silent_unanswered`` does in it may ask which questions are answered."""

    def get_message_res(state: Any, message_ids: set[str], run_id: int) -> list[Any]:
        token = _answered.set(functools.partial(answered, state))
        try:
            return find(state, message_ids, run_id)
        finally:
            _answered.reset(token)

    return get_message_res


def silent_unanswered(silent: Silent) -> Silent:
    """Wraps ``check_node_availability_for_in_message``: who has answered may be silent since, if its key is still
    registered (which is who has an entry in ``node_id_to_online_until``)."""

    def check(
        inquired_in_message_ids: set[str],
        found_in_message_dict: Mapping[str, Any],
        node_id_to_online_until: Mapping[int, float],
        **rest: Any,
    ) -> dict[str, Any]:
        gone = silent(set(inquired_in_message_ids), found_in_message_dict, node_id_to_online_until, **rest)
        known = {each for each in gone if found_in_message_dict[each].metadata.dst_node_id in node_id_to_online_until}
        answered = _answered.get()(known) if known else frozenset()
        inquired_in_message_ids -= gone.keys() - answered
        return {question: error for question, error in gone.items() if question not in answered}

    return check
