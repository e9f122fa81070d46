"""Masked sums between real server and client code: who is lost where, and what the server is sent."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

from prunella.client.session import Session
from prunella.core.config import Run, parse_run
from prunella.core.errors import ConfigError
from prunella.core.trees import Tree
from prunella.server import checkpoint
from prunella.strategies import require_summable
from prunella.strategies.round.local import LocalResult
from prunella.strategies.round.roster import Member
from prunella.strategies.round.stats import RoundStats
from prunella.strategies.secure_sum.exchange import Exchange
from prunella.strategies.secure_sum.fixed_point import GRID
from prunella.strategies.secure_sum.party import MOST
from prunella.tasks.task import Task, initial
from tests.local_grid import settings
from tests.strategies.secure_sum.federated import RUN, Lossy, Route, client_of, go, lost

STAGES = ("train.keys", "train.letters", "train", "train.vote", "train.reveal")
Sent = dict[int, tuple[Tree, int]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """By client, the update and the example count that it put under its masks, as the last round had them."""
    import prunella.client.summing as summing

    kept: Sent = {}
    real = summing.masked_reply

    def masked_reply(session: Session, *rest: Any) -> RecordDict:
        result = next(part for part in rest if isinstance(part, LocalResult))
        kept[session.node.client] = (result.outgoing.update, len(session.data.examples.y))
        return real(session, *rest)

    monkeypatch.setattr(summing, "masked_reply", masked_reply)
    return kept


def final(folder: Path) -> Tree:
    saved = checkpoint.load(folder / "run" / "checkpoint")
    assert saved is not None
    return saved.tree


def start() -> Tree:
    return initial(Task("cnn", (1, 8, 8), 10), 0)[0]


def mean_of(sent: Sent, clients: set[int]) -> Tree:
    """The plain weighted mean, of exact values, in float64."""
    weight = sum(sent[c][1] for c in clients)
    return {name: sum(sent[c][1] * sent[c][0][name].double() for c in clients) / weight for name in start()}  # type: ignore[misc]


def moved_by(folder: Path, clients: set[int], sent: Sent) -> bool:
    """Whether the model moved by the mean of these clients' updates, up to half a grid step."""
    saved = checkpoint.load(folder / "run" / "checkpoint")
    assert saved is not None
    wanted = mean_of(sent, clients)
    return all(
        torch.allclose(
            saved.tree[name].double(), (start()[name].double() * saved.mask[name]) + wanted[name], rtol=0, atol=GRID
        )
        for name in wanted
    )


def test_the_model_moves_by_the_mean_of_all(tmp_path: Path, sent: Sent) -> None:
    federation, _ = go(tmp_path)
    assert federation.strategy.stats.replies == 4 and moved_by(tmp_path, {0, 1, 2, 3}, sent)
    assert not moved_by(tmp_path, {0, 1, 2}, sent), "the test tells sums apart"


@pytest.mark.parametrize("stage", STAGES)
def test_one_client_of_five_is_lost_at_any_stage(tmp_path: Path, sent: Sent, stage: str) -> None:
    federation, _ = go(tmp_path, lost(stage, 2), clients=5)
    # Who is lost after its update came is in the sum all the same.
    inside = {0, 1, 3, 4} | ({2} if stage in ("train.vote", "train.reveal") else set())
    assert federation.strategy.stats.replies == len(inside) and moved_by(tmp_path, inside, sent)
    assert federation.counters["client_failures_total|timeout"] == 1


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_the_round_does_not_count_and_the_next_one_does(
    tmp_path: Path, sent: Sent, stage: str
) -> None:
    """Keys of two of four clients are no sum, since clients want three; elsewhere two of four are under t = 3."""
    federation, _ = go(tmp_path, lost(stage, 1, 2, rounds=(1,)))
    assert federation.strategy.stats.replies == 0
    assert all(torch.equal(final(tmp_path)[n], start()[n]) for n in start())
    federation, _ = go(tmp_path / "on", lost(stage, 1, 2, rounds=(1,)), rounds=2)
    assert federation.strategy.stats.replies == 4


def test_nothing_of_one_client_travels_in_clear(tmp_path: Path) -> None:
    """Every reply of every stage, against the list of what it may hold."""
    replies: list[Message] = []
    small = {"model": "resnet10", "local_steps": 1, "batch_size": 4, "learning_rate": 0.01}
    federation, _ = go(tmp_path, clients=3, tamper=replies.append, **small)
    assert federation.strategy.stats.replies == 3
    allowed = {
        "train.keys": {"sum": {"clients", "letters", "masks", "voice", "mark", "signature", "round"}},
        "train.letters": {"sum": {"clients", "parts"}},
        "train": {
            "masked": {"masked"},
            "provenance": {"round", "mask", "applied"},
            "sum": {"model"},
            "ledger": {"rounds", "steps", "claims"},
        },
        "train.vote": {"sum": {"vote"}},
        "train.reveal": {"sum": {"clients", "parts"}},
        "query.hello": {"hello": {"client", "audit"}},
    }
    assert {reply.metadata.message_type for reply in replies} == allowed.keys()
    for reply in replies:
        records = {name: set(reply.content[name]) for name in reply.content}
        assert records.keys() == allowed[reply.metadata.message_type].keys()
        assert all(keys <= allowed[reply.metadata.message_type][name] for name, keys in records.items())


def test_a_model_with_buffers_moves_them_by_their_mean(tmp_path: Path) -> None:
    # At the data's own rate two steps of a ResNet can leave the range that sums are for, and on which machine they do
    # is a matter of rounding.
    federation, _ = go(tmp_path, model="resnet10", local_steps=2, batch_size=4, clients=3, learning_rate=0.01)
    assert federation.strategy.stats.replies == 3
    saved, start = final(tmp_path), initial(Task("resnet10", (1, 8, 8), 10), 0)[1]
    assert start and all(bool((saved[name] > 0).all()) for name in start if name.endswith("running_var"))
    assert not any(torch.equal(saved[name], before) for name, before in start.items())


def other_model_for(client: int) -> Route:
    """A server that sends one client another model: its last bias moved."""

    def route(message: Message) -> Message:
        if message.metadata.message_type == "train" and client_of(message) == client:
            from prunella.core.trees import full_mask
            from prunella.wire.records import to_coded

            params = start()
            name = list(params)[-1]
            moved = {**params, name: params[name] + 1.0}
            message.content["model"] = to_coded(moved, full_mask(moved))
        return message

    return route


def test_a_server_that_sends_one_client_another_model_gets_no_sum(tmp_path: Path) -> None:
    """The server's own half leaves that client out; three of four go on, two of three are too few."""
    for clients, replies in ((3, 0), (4, 3)):
        federation, _ = go(tmp_path / str(clients), other_model_for(2), clients=clients)
        assert federation.strategy.stats.replies == replies
        assert federation.counters["client_failures_total|stale"] == 1


def test_a_client_that_is_told_other_settings_is_in_no_sum(tmp_path: Path) -> None:
    """Its keys are for another matter, so its letters do not open, and nobody sends an update."""

    def route(message: Message) -> Message:
        context = grids[0].contexts[102]
        context.run_config = {**context.run_config, "momentum": 0.5}
        return message

    grids: list[Lossy] = []
    federation, _ = go(tmp_path, route, seen=grids.append)
    assert federation.strategy.stats.replies == 0


def test_what_is_a_site_s_own_by_the_run_s_word_is_no_other_setting(tmp_path: Path) -> None:
    """``site`` is the map of importance that each owner names: the files have names of their own, and the run one."""
    where = tmp_path / "map.npy"
    np.save(where, np.ones((8, 8), np.float32))
    chain: dict[str, Any] = {"defenses": "channel-personalized", "channel_personalized__importance": "site"}
    federation, _ = go(tmp_path, clients=3, node={"importance": str(where)}, **chain)
    assert federation.strategy.stats.replies == 3 and federation.counters["rounds_void_total"] == 0


def test_shares_that_are_wrong_spoil_the_round_and_no_more(tmp_path: Path) -> None:
    def spoil(reply: Message) -> Message:
        if reply.metadata.message_type == "train.reveal" and reply.metadata.src_node_id == 101:
            record = reply.content.config_records["sum"]
            parts = record["parts"]
            assert isinstance(parts, list)
            record["parts"] = [part[:-1] + bytes([part[-1] ^ 1]) for part in parts]  # type: ignore[index,operator]
        return reply

    federation, _ = go(tmp_path, tamper=spoil)
    assert federation.strategy.stats.replies == 0 and federation.counters["client_failures_total|malformed"] >= 1


@pytest.mark.parametrize(
    ("liars", "letters", "voice"),
    [((1,), None, None), ((1,), bytes(32), None), ((1, 2), None, b"v" * 32)],
    ids=["two purposes", "no key", "two clients"],
)
def test_keys_that_are_none_cost_their_owners_the_round_and_nobody_else(
    tmp_path: Path, liars: tuple[int, ...], letters: bytes | None, voice: bytes | None
) -> None:
    """One key for two purposes, one with which every agreement is the same, and one that two clients send."""

    def spoil(reply: Message) -> None:
        if reply.metadata.message_type == "train.keys" and reply.metadata.src_node_id - 100 in liars:
            record = reply.content.config_records["sum"]
            if voice is None:
                record["letters"] = list(record["masks"]) if letters is None else [letters]  # type: ignore[arg-type]
            else:
                record["voice"] = [voice]

    federation, _ = go(tmp_path, tamper=spoil, clients=5, rounds=2)
    assert federation.strategy.stats.replies == 5 - len(liars) and federation.counters["rounds_void_total"] == 0
    assert federation.counters["client_failures_total|malformed"] == 2 * len(liars)
    assert "client_failures_total|client-error" not in federation.counters


def test_masked_words_of_two_rounds_have_nothing_in_common(tmp_path: Path) -> None:
    replies: list[Message] = []
    go(tmp_path, rounds=2, tamper=replies.append)
    words = [r.content.array_records["masked"]["masked"].data for r in replies if r.metadata.message_type == "train"]
    arrays = [np.frombuffer(data, np.uint8) for data in words]
    agreeing = [float((a == b).mean()) for i, a in enumerate(arrays) for b in arrays[:i]]
    assert max(agreeing) < 0.01  # one byte of 256 by chance


def test_of_more_clients_than_a_sum_takes_each_round_draws_others_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = settings(**RUN)
    exchange, asked = Exchange(parse_run({k: v for k, v in raw.items() if "." not in k}), raw), list[set[int]]()
    monkeypatch.setattr(exchange, "_ask", lambda kind, clients, read: asked.append(set(clients)) or {})
    rounds = [*range(1, 31), 1]
    for round in rounds:
        exchange.gather(Mock(), round, [Member(client, client) for client in range(MOST + 50)], RoundStats())
    assert all(len(clients) == MOST for clients in asked) and asked[0] == asked[-1] != asked[1]
    often = [sum(client in clients for clients in asked[:30]) for client in range(MOST + 50)]
    assert min(often) > 24 - 5 * (30 * 0.8 * 0.2) ** 0.5, "each takes part in 24 of 30 rounds, on average"
    assert caplog.text.count("a masked sum takes 200 clients, and 250 are chosen") == 1


@pytest.mark.parametrize("wrong", [2, MOST + 1])
def test_as_many_clients_as_no_sum_takes_are_refused_before_the_run(wrong: int) -> None:
    with pytest.raises(ConfigError, match="set min-clients=3 to 200"):
        require_summable(Run(aggregation="secure-sum", strategy="fedavg", defenses="none", min_clients=wrong), {})
    require_summable(Run(aggregation="secure-sum", strategy="fedavg", defenses="none", min_clients=MOST), {})


@pytest.mark.parametrize(
    "wrong", [{"secure-sum.range": 1e9}, {"secure-sum.examples": 10**9}, {"secure-sum.range": 1e305}]
)
def test_numbers_that_fit_no_sum_are_refused_before_the_run(wrong: dict[str, float]) -> None:
    run = Run(aggregation="secure-sum", strategy="fedavg", defenses="none", min_clients=3)
    with pytest.raises(ConfigError, match="lower secure-sum.range or secure-sum.examples"):
        require_summable(run, wrong)


def test_one_more_client_than_fits_is_left_out_of_the_round_and_the_run_goes_on(tmp_path: Path) -> None:
    """5 clients fit: 2^56 > 2 · 5 · 65536 · 10^5 · 2^20."""
    federation, grid = go(tmp_path, clients=6, rounds=2, secure_sum__range=1e5)
    trained = [client_of(m) for m in grid.sent if m.metadata.message_type == "train"]
    assert len(trained) == 10 and federation.strategy.stats.replies == 5
    assert federation.counters["rounds_void_total"] == 0
