"""Every kind of bad reply is told apart, by damaging the reply of a real client."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import prunella.client.app
from prunella.core.config import parse_run
from prunella.core.trees import full_mask, map_trees
from prunella.server.app import assemble
from prunella.strategies.round.replies import (
    LEDGER_BOUNDS,
    REASONS,
    Contribution,
    ReplyError,
    read_evaluation,
    read_reply,
)
from prunella.wire.records import from_coded, pack, to_coded, to_dense, unpack
from tests.local_grid import LocalGrid, settings


@pytest.fixture
def exchange(tmp_path: Path) -> Callable[..., tuple[Message, object]]:
    def make(**overrides: object) -> tuple[Message, object]:
        raw = settings(run_dir=str(tmp_path / "run"), strategy="random", min_clients=1, audit_every=0, **overrides)
        federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
        grid = LocalGrid(prunella.client.app.app, 1, raw, tmp_path / "nodes")
        from prunella.tasks.task import initial

        params, buffers = initial(federation.task, 0)
        messages = list(federation.strategy.configure_train(1, to_dense({**params, **buffers}), ConfigRecord(), grid))
        return grid.send_and_receive(messages)[0], federation.strategy.downlink.expected()

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
    assert 0 < sum(t.numel() for t in got.sparse.values.values()) < sum(t.numel() for t in update.values())


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


TOO_MUCH = [1.7e308, float("inf"), float("nan"), -1.0, True, 10**400, 2**64]


def test_a_ledger_figure_out_of_bounds_costs_the_reply(exchange) -> None:
    reply, expected = exchange(defenses="none")
    for name in LEDGER_BOUNDS:
        for value in TOO_MUCH:
            reply.content["ledger"] = stuffed({name: value})
            with pytest.raises(ReplyError) as caught:
                read_reply(reply, expected)
            assert caught.value.reason == "metrics", (name, value)


def stuffed(values: dict[str, object]) -> ConfigRecord:
    """A record with whatever in it: a stranger is not held to what Flower's class takes."""
    record = ConfigRecord()
    record._data = dict(values)
    return record


def test_the_claims_of_a_ledger_line_are_cleaned_and_unknown_names_refused(exchange) -> None:
    reply, expected = exchange(defenses="none")
    reply.content["ledger"] = stuffed({"claims": "\x1b[2Jdgp\n", "epsilon": 2})
    assert read_reply(reply, expected).ledger == {"claims": "[2Jdgp", "epsilon": 2.0}
    for line in ({"claims": "x" * 2001}, {"claims": 1.0}, {"epsilon": "1"}, {"\x1b[2J": 1.0}, {"steps": [1]}):
        reply.content["ledger"] = stuffed(line)
        with pytest.raises(ReplyError, match="ledger") as caught:
            read_reply(reply, expected)
        assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "odd",
    [
        {"num-examples": True},
        {"num-examples": 5.0},
        {"num-examples": 10**400},
        {"num-examples": 2**63},
        {"num-examples": 9, "train-seconds": 1e300},
        {"num-examples": 9, "train-seconds": True},
        {"num-examples": 9, "train-seconds": float("nan")},
    ],
    ids=str,
)
def test_counts_and_times_out_of_bounds_cost_the_reply(exchange, odd: dict[str, object]) -> None:
    reply, expected = exchange(defenses="none")
    reply.content["metrics"] = record = MetricRecord()
    record._data = odd
    with pytest.raises(ReplyError) as caught:
        read_reply(reply, expected)
    assert caught.value.reason == "metrics"


def evaluation(**values: object) -> Message:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    ask = Message(RecordDict(), dst_node_id=7, message_type="evaluate")
    record = MetricRecord()
    record._data = {"accuracy": 0.5, "num-examples": 10, "loss": 1.0} | {
        k.replace("_", "-"): v for k, v in values.items()
    }
    return Message(RecordDict({"metrics": record}), reply_to=ask)


@pytest.mark.parametrize("value", [*TOO_MUCH, "0.5", [0.5]], ids=str)
@pytest.mark.parametrize("name", ["accuracy", "loss", "num_examples"])
def test_an_evaluation_out_of_bounds_is_left_out(name: str, value: object) -> None:
    assert read_evaluation(evaluation()).accuracy == 0.5
    with pytest.raises(ReplyError) as caught:
        read_evaluation(evaluation(**{name: value}))
    assert caught.value.reason == "metrics"


def test_a_clients_error_text_is_cleaned_and_short() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    ask = Message(RecordDict(), dst_node_id=7, message_type="evaluate")
    words = "\x1b[2J\nround 9/9: accuracy 1.000\n" + "x" * 60_000
    for read in (read_evaluation, lambda reply: read_reply(reply, None)):  # type: ignore[arg-type]
        with pytest.raises(ReplyError, match=r"Flower error 2: \[2J round 9/9") as caught:
            read(Message(Error(code=2, reason=words), reply_to=ask))
        assert str(caught.value).isprintable() and len(str(caught.value)) <= 400


def test_names_of_a_strangers_tensors_are_cleaned(exchange) -> None:
    reply, expected = exchange(defenses="none")
    tree = {f"\x1b[31m{'y' * 5000}\n{n}": t for n, t in expected.params.items()}
    reply.content["update"] = to_coded(tree, full_mask(tree))
    with pytest.raises(ReplyError) as caught:
        read_reply(reply, expected)
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 400
