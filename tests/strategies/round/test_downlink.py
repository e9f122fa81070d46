"""What is sent to whom, and what a reply must look like."""

import pytest
import torch
from flwr.app import ConfigRecord, Message

from prunella.core.config import Run
from prunella.core.errors import PrunellaError
from prunella.core.trees import Mask, Tree, apply_mask
from prunella.strategies.round.downlink import Downlink
from prunella.strategies.round.roster import Member
from prunella.strategies.round.stats import RoundStats
from prunella.wire.encode import fingerprint
from prunella.wire.records import from_coded

PARAMS: Tree = {"w": torch.arange(1.0, 65.0), "b": torch.ones(2)}
MASK: Mask = {"w": torch.arange(64) % 2 == 0, "b": torch.ones(2, dtype=torch.bool)}
OWN: Mask = {"w": torch.arange(64) % 4 == 0, "b": torch.ones(2, dtype=torch.bool)}
MEMBERS = [Member(0, 100), Member(1, 101)]


def sent(downlink: Downlink) -> tuple[dict[int, Message], RoundStats]:
    stats = RoundStats()
    downlink.begin(1, PARAMS, MASK, {})
    messages = downlink.train(MEMBERS, ConfigRecord({"round": 1}), stats)
    return {message.metadata.dst_node_id: message for message in messages}, stats


def make() -> Downlink:
    return Downlink(Run(), frozenset({"w"}), lambda round, mask: None)


def test_everybody_is_sent_the_same_bytes_and_they_are_counted_for_each() -> None:
    downlink = make()
    messages, stats = sent(downlink)
    first, second = (messages[node].content.array_records["model"] for node in (100, 101))
    assert first is second and stats.sent == 2 and stats.down == 2 * len(first["tree"].data)
    assert downlink.expected(100) is downlink.expected() and downlink.expected().mask is MASK
    assert set(downlink.expected().required) == {"b"}


def test_a_client_with_a_mask_of_its_own_is_sent_and_held_to_it() -> None:
    downlink = make()
    downlink.personal.put(1, OWN)
    messages, _ = sent(downlink)
    params, mask = from_coded(messages[101].content.array_records["model"], PARAMS)
    assert torch.equal(mask["w"], OWN["w"]) and torch.equal(params["w"], apply_mask(PARAMS, OWN)["w"])
    assert torch.equal(downlink.expected(101).mask["w"], OWN["w"]) and downlink.expected(100).mask is MASK
    assert downlink.density(MASK) == 0.25 and make().density(MASK) == 0.5


def test_bits_of_a_mask_go_to_those_who_do_not_hold_it() -> None:
    downlink = make()
    downlink.record_mask(100, fingerprint(MASK))
    messages, _ = sent(downlink)
    sizes = {node: len(m.content.array_records["model"]["tree"].data) for node, m in messages.items()}
    assert sizes[100] < sizes[101]
    downlink.record_mask(100, None)
    messages, _ = sent(downlink)
    assert len(messages[100].content.array_records["model"]["tree"].data) == sizes[101]


def test_own_masks_survive_a_checkpoint() -> None:
    downlink, again = make(), make()
    downlink.personal.put(1, OWN)
    again.load(downlink.tree(), MASK)
    assert again.personal.coded(1) == downlink.personal.coded(1)


def test_nothing_is_expected_before_anything_was_sent() -> None:
    with pytest.raises(PrunellaError, match="before configure_train"):
        make().expected()
