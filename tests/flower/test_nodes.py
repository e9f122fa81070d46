"""What a node is sent follows from what it said it holds."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from prunella.core.trees import Mask, apply_mask, full_mask
from prunella.flower.arrays import MARK, REST, WIRE, is_coded, open_record, whole
from prunella.flower.nodes import KnownNodes
from prunella.flower.scheme import FRESH, SchemeOrder
from prunella.wire.encode import decode_mask, fingerprint
from prunella.wire.records import from_dense, record_bytes, to_dense
from tests.flower.foreign import Net

ORDER = SchemeOrder("lotteryfl", 3, 0.5, names=("fc1.weight",))
TREE = {name: tensor.clone() for name, tensor in Net().state_dict().items()}
MODEL = to_dense(TREE)
MASKS: dict[int, Mask] = {
    node: {**full_mask(TREE), "fc1.weight": torch.rand(TREE["fc1.weight"].shape) < share}
    for node, share in ((1, 0.5), (2, 0.2))
}


def asked(
    nodes: KnownNodes, *numbers: int, order: SchemeOrder = ORDER, first: ArrayRecord | None = None
) -> list[Message]:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    content = RecordDict({"arrays": MODEL, "config": ConfigRecord({"lr": 0.1})})
    messages = [Message(content, dst_node_id=number, message_type="train") for number in numbers]
    total = nodes.close(messages, lambda node: MASKS.get(node, full_mask(TREE)), order, first)
    arrays = [record for message in messages for record in message.content.array_records.values()]
    bits = [message.content.config_records.get(MARK, ConfigRecord()).get("mask", b"") for message in messages]
    assert total == sum(map(record_bytes, arrays)) + sum(len(each) for each in bits)
    return messages


def reads(mask: Mask | None) -> ConfigRecord:
    return ConfigRecord({"wire": WIRE, "mask": fingerprint(mask) if mask else b""})


def test_each_node_is_sent_the_weights_of_its_own_mask() -> None:
    nodes = KnownNodes()
    for message in asked(nodes, 1, 2, 3):
        node = message.metadata.dst_node_id
        mask = MASKS.get(node, full_mask(TREE))
        found = from_dense(message.content["arrays"])
        assert all(torch.equal(found[n], t) for n, t in apply_mask(TREE, mask).items())
        told = message.content[MARK].get("mask")
        assert (told is None) == (node == 3)
        if isinstance(told, bytes):
            assert all(torch.equal(m, mask[n]) for n, m in decode_mask(told, TREE).items())
        assert SchemeOrder.read(message.content[MARK]) == ORDER and message.content["config"]["lr"] == 0.1
    nodes.note(1, reads(MASKS[1]))
    nodes.note(2, reads(None))
    nodes.note(3, None)
    one, two, three = asked(nodes, 1, 2, 3)
    assert is_coded(one.content) and is_coded(two.content) and not is_coded(three.content)
    assert MARK not in three.content, "an app without the Mod sees no record of ours once it is known"
    for message, reference in ((one, MASKS[1]), (two, None)):
        found, mask = open_record(message.content, nodes.shapes[1], reference)
        own = MASKS[message.metadata.dst_node_id]
        assert all(torch.equal(mask[n], own[n]) and torch.equal(found[n], apply_mask(TREE, own)[n]) for n in TREE)
        assert REST not in message.content
    sent = from_dense(whole(nodes.sent[2])[1])
    assert all(torch.equal(sent[n], apply_mask(TREE, MASKS[2])[n]) for n in TREE), "dense, as answers are read by"


def test_a_node_that_failed_is_sent_everything_again() -> None:
    nodes = KnownNodes()
    asked(nodes, 1)
    nodes.note(1, reads(MASKS[1]))
    nodes.forget(1)
    (message,) = asked(nodes, 1)
    assert not is_coded(message.content) and message.content[MARK]["mask"]


def test_what_the_run_starts_from_is_told_once_and_to_those_with_defend_only() -> None:
    first, nodes = ArrayRecord(Net().state_dict()), KnownNodes()
    starts = SchemeOrder("lotteryfl", 1, 0.5, starts=True)
    assert FRESH not in asked(nodes, 1, order=starts, first=first)[0].content, "the model itself is it"
    nodes.note(1, reads(MASKS[1]))
    told = [{m.metadata.dst_node_id for m in asked(nodes, 1, 2, 3, first=first) if FRESH in m.content}]
    nodes.note(2, reads(MASKS[2]))
    nodes.note(3, None)
    told += [{m.metadata.dst_node_id for m in asked(nodes, 1, 2, 3, first=first) if FRESH in m.content} for _ in "ab"]
    assert told == [set(), {2}, set()]
    nodes.forget(2)
    nodes.note(2, reads(MASKS[2]))
    assert [FRESH in m.content for m in asked(nodes, 1, 2, first=first)] == [False, True]
