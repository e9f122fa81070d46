"""Every kind of bad reply is told apart, by damaging the reply of a real client."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

import client.app
from core.config import parse_run
from core.records import from_coded, pack, to_coded, to_dense, unpack
from core.trees import full_mask, map_trees
from server.app import assemble
from strategies.replies import REASONS, Contribution, ReplyError, read_reply
from tests.local_grid import LocalGrid, settings


@pytest.fixture
def exchange(tmp_path: Path) -> Callable[..., tuple[Message, object]]:
    def make(**overrides: object) -> tuple[Message, object]:
        raw = settings(run_dir=str(tmp_path / "run"), strategy="random", min_clients=1, audit_every=0, **overrides)
        federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
        grid = LocalGrid(client.app.app, 1, raw, tmp_path / "nodes")
        from tasks.task import initial

        params, buffers = initial(federation.task, 0)
        messages = list(federation.strategy.configure_train(1, to_dense({**params, **buffers}), ConfigRecord(), grid))
        return grid.send_and_receive(messages)[0], federation.strategy.expected()

    return make


def test_an_honest_reply_is_read_whole(exchange) -> None:
    reply, expected = exchange(defenses="dgp")
    got = read_reply(reply, expected)
    assert isinstance(got, Contribution)
    assert got.weight > 100 and got.applied == ("dgp",) and got.node == 100
    assert got.bytes == len(unpack(reply.content["update"])) + len(unpack(reply.content["spoken"]))
    assert got.ledger["rounds"] == 1.0
    update, shared = from_coded(reply.content["update"], expected.params, expected.mask)
    assert all(torch.equal(got.update[n], update[n]) and torch.equal(got.shared[n], shared[n]) for n in update)
    assert 0 < sum(t.numel() for t in got.kept.values.values()) < sum(t.numel() for t in update.values())


def damage_values(message: Message, expected, change) -> None:
    tree, mask = from_coded(message.content["update"], expected.params, expected.mask)
    message.content["update"] = to_coded(change(tree), mask, expected.mask)


def poison(tree):
    name = next(iter(tree))
    return tree | {name: torch.full_like(tree[name], float("nan"))}


def rename(message: Message, expected) -> None:
    tree = {f"x.{n}": t for n, t in expected.params.items()}
    message.content["update"] = to_coded(tree, full_mask(tree))


def reshape(message: Message, expected) -> None:
    tree = map_trees(lambda t: t.unsqueeze(0), expected.params)
    message.content["update"] = to_coded(tree, full_mask(tree))


def retype(message: Message, expected) -> None:
    tree = map_trees(lambda t: t.double(), expected.params)
    message.content["update"] = to_coded(tree, full_mask(tree))


def wide_mask(message: Message, expected) -> None:
    message.content["update"] = to_coded(expected.params, full_mask(expected.params))


def cut(message: Message, expected) -> None:
    message.content["update"] = pack(unpack(message.content["update"])[:-3])


def foreign(message: Message, expected) -> None:
    message.content["update"] = ArrayRecord({"a": Array("float32", (1,), "numpy.ndarray", b"1234")})


def other_round(message: Message, expected) -> None:
    message.content["provenance"]["round"] = expected.round + 1


def other_mask(message: Message, expected) -> None:
    message.content["provenance"]["mask"] = b"12345678"


def negative_weight(message: Message, expected) -> None:
    message.content["metrics"] = MetricRecord({"num-examples": -5})


def huge_weight(message: Message, expected) -> None:
    message.content["metrics"] = MetricRecord({"num-examples": 10**12})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m, e: damage_values(m, e, poison), "nan"),
        (rename, "name"),
        (reshape, "shape"),
        (retype, "dtype"),
        (wide_mask, "mask"),
        (cut, "length"),
        (foreign, "malformed"),
        (lambda m, e: m.content.pop("update"), "malformed"),
        (other_round, "stale"),
        (other_mask, "stale"),
        (lambda m, e: m.content.pop("provenance"), "stale"),
        (negative_weight, "metrics"),
        (huge_weight, "metrics"),
        (lambda m, e: m.content.pop("metrics"), "metrics"),
    ],
)
def test_each_damage_has_its_reason(exchange, damage, reason: str) -> None:
    reply, expected = exchange(defenses="none")
    damage(reply, expected)
    with pytest.raises(ReplyError) as caught:
        read_reply(reply, expected)
    assert caught.value.reason == reason
    assert reason in REASONS


def test_missing_importance_is_malformed_and_missing_buffers_too(exchange) -> None:
    reply, expected = exchange(defenses="none")
    with pytest.raises(ReplyError, match="importance"):
        read_reply(reply, expected, frozenset(list(expected.params)[:1]))
    reply, expected = exchange(defenses="none", model="resnet10")
    assert read_reply(reply, expected).buffers.keys() == expected.buffers.keys() != set()
    del reply.content["buffers"]
    with pytest.raises(ReplyError, match="buffers"):
        read_reply(reply, expected)
