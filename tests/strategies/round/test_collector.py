"""Replies of a whole round: which are left out, and what is counted."""

from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message

from prunella.core.trees import density
from prunella.wire.records import from_dense
from tests.strategies.round.test_strategy import build


def test_a_reply_from_a_node_nobody_asked_is_left_out(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path)
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    replies[0].metadata.__dict__["_src_node_id"] = 999
    strategy.aggregate_train(1, replies)
    assert strategy.stats.failures == {"unknown-client": 1, "timeout": 1}
    assert strategy.stats.replies == 1


def test_a_second_reply_of_a_node_is_left_out(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path)
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    once, _ = strategy.aggregate_train(1, list(replies))
    assert strategy.stats.failures == {} and strategy.stats.replies == len(replies) == 2
    strategy.stats = type(strategy.stats)()
    twice, _ = strategy.aggregate_train(1, [replies[0], replies[0], replies[1], replies[0]])
    assert strategy.stats.failures == {"malformed": 2} and strategy.stats.replies == 2
    assert once is not None and twice is not None
    assert all(torch.equal(t, from_dense(once)[n]) for n, t in from_dense(twice).items())


def test_when_the_superlink_answers_for_a_dead_node_that_node_is_counted_once(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path)
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    dead = Message(Error(code=5, reason="node unavailable"), reply_to=messages[0])
    dead.metadata.__dict__["_src_node_id"] = 1
    strategy.aggregate_train(1, [dead, replies[1]])
    assert strategy.stats.failures == {"unreachable": 1}
    assert strategy.stats.replies == 1


def test_withheld_share_is_measured_inside_the_mask(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, strategy="random", rate=0.5, defenses="largest", largest__rate=0.25)
    strategy.start(grid, arrays, num_rounds=1)
    assert strategy.stats.seen == strategy.stats.timed == strategy.stats.replies
    assert strategy.stats.withheld / strategy.stats.seen == pytest.approx(0.25, abs=0.01)
    assert strategy.mask is not None and density(strategy.mask) < 0.55


def test_a_reply_is_added_before_the_next_is_read(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path)
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    counted: list[int] = []
    strategy.listener = lambda contribution: counted.append(strategy.stats.replies)
    merged, _ = strategy.aggregate_train(1, iter(replies))
    assert counted == [1, 2] and strategy.stats.up > 0 and merged is not None
    assert any(not torch.equal(t, from_dense(arrays)[n]) for n, t in from_dense(merged).items())


@pytest.mark.parametrize("scheme", ["prunefl", "magnitude", "feddst"])
def test_a_round_with_fewer_replies_than_min_clients_does_not_count(scheme: str, tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, strategy=scheme, rate=0.5)  # min-clients=2
    merged, _ = strategy.aggregate_train(
        1, grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    )
    assert merged is not None and strategy.mask is not None
    before, mask = from_dense(merged), dict(strategy.mask)
    replies = grid.send_and_receive(strategy.configure_train(2, merged, ConfigRecord(), grid))
    alone, _ = strategy.aggregate_train(2, replies[:1])
    assert alone is not None and all(torch.equal(t, before[name]) for name, t in from_dense(alone).items())
    assert all(torch.equal(kept, mask[name]) for name, kept in strategy.mask.items())
    after, _ = strategy.aggregate_train(
        3, grid.send_and_receive(strategy.configure_train(3, alone, ConfigRecord(), grid))
    )
    assert after is not None and any(not torch.equal(t, before[name]) for name, t in from_dense(after).items())
