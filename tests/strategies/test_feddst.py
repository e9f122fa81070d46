from pathlib import Path

import pytest
import torch

import prunella.client.app
from prunella.core.config import Run
from prunella.core.trees import count, full_mask
from prunella.pruning.erk import erk_counts
from prunella.pruning.selection import kept_count
from prunella.server.app import assemble
from prunella.strategies.feddst import FedDST, FedDSTSettings, adjusts, plan
from prunella.strategies.round.plan import RoundContext
from prunella.strategies.round.replies import ReplyError, read_reply
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.task import Task, initial, prunable
from prunella.wire.records import from_coded, mask_from_coded, to_dense
from tests.local_grid import LocalGrid, settings

TASK = Task("cnn", (1, 8, 8), 10)
PARAMS, _ = initial(TASK, 0)
MODEL = ServerModel(TASK.build(), TASK.shape, tuple(PARAMS), prunable(TASK.build()))


def test_the_first_mask_is_random_with_erk_counts() -> None:
    strategy = FedDST(Run(rate=0.8), MODEL, FedDSTSettings())
    mask = strategy.first_mask(PARAMS, None, [])
    shapes = {n: tuple(PARAMS[n].shape) for n in PARAMS if n in MODEL.prunable}
    total = kept_count(sum(PARAMS[n].numel() for n in shapes), 0.8)
    assert {n: int(mask[n].sum()) for n in shapes} == erk_counts(shapes, total)
    other = FedDST(Run(rate=0.8, seed=1), MODEL, FedDSTSettings()).first_mask(PARAMS, None, [])
    assert any(not torch.equal(mask[n], other[n]) for n in shapes)


def test_masks_may_move_in_readjustment_rounds_only() -> None:
    settings_ = FedDSTSettings(adjust_interval=3, end_round=9)
    strategy = FedDST(Run(), MODEL, settings_)
    mask = full_mask(PARAMS)
    assert [r for r in range(1, 12) if strategy.allowed(r, mask) is not None] == [3, 6]
    for round in range(1, 12):
        here = RoundContext(Run(), settings_, round, PARAMS, mask, MODEL.prunable, {}, dict, lambda tree: 0.0)
        assert (plan(here).readjust is not None) == adjusts(settings_, round)


@pytest.fixture
def exchange(tmp_path: Path):
    """One readjustment round with one client: its reply, what was expected, and the strategy."""

    def make(round: int, defenses: str = "none"):
        raw = settings(run_dir=str(tmp_path / "run"), strategy="feddst", rate=0.6, defenses=defenses, min_clients=1,
                       audit_every=0, feddst__adjust_interval=2)  # fmt: skip
        from prunella.core.config import parse_run

        federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
        strategy = federation.strategy
        strategy.listener = None
        grid = LocalGrid(prunella.client.app.app, 1, raw, tmp_path / "nodes")
        messages = list(strategy.configure_train(round, to_dense(PARAMS), prunella.client.app.ConfigRecord(), grid))
        return grid.send_and_receive(messages)[0], strategy.downlink.expected(), strategy

    return make


@pytest.mark.parametrize("defenses", ["none", "dgp", "priprune"])
def test_a_client_reports_a_moved_mask_and_shares_only_inside_it(exchange, defenses: str) -> None:
    reply, expected, _ = exchange(2, defenses)
    base = mask_from_coded(reply.content["base"], expected.params, expected.mask)
    got = read_reply(reply, expected)
    assert all(torch.equal(got.base[n], base[n]) for n in base)
    assert count(base) == count(expected.mask)
    assert any(bool((base[n] & ~expected.mask[n]).any()) for n in base)
    assert not any(bool((got.participation[n] & ~base[n]).any()) for n in base)
    grown = {n: got.shared[n] & ~expected.mask[n] for n in base}
    assert any(bool(got.update[n][grown[n]].any()) for n in base)


def test_a_moved_mask_is_refused_in_any_other_round_and_so_is_one_that_grew(exchange) -> None:
    from dataclasses import replace

    from prunella.wire.records import mask_to_coded, to_coded

    reply, expected, _ = exchange(2)
    with pytest.raises(ReplyError, match="fixed"):
        read_reply(reply, replace(expected, allowed=None))
    everything = full_mask(expected.params)
    reply.content["base"] = mask_to_coded(everything, expected.mask)
    with pytest.raises(ReplyError, match="allowed"):
        read_reply(reply, expected)
    without_bias = {n: m if n in MODEL.prunable else ~m for n, m in expected.mask.items()}
    reply.content["base"] = mask_to_coded(without_bias, expected.mask)
    reply.content["update"] = to_coded(expected.params, without_bias, expected.mask)
    with pytest.raises(ReplyError, match="allowed"):
        read_reply(reply, expected)


def test_an_ordinary_round_carries_no_mask(exchange) -> None:
    reply, expected, _ = exchange(1)
    assert "base" not in reply.content.array_records
    _, shared = from_coded(reply.content["update"], expected.params, expected.mask)
    assert all(torch.equal(shared[n], expected.mask[n]) for n in shared)


def test_the_server_keeps_its_counts_and_takes_weights_that_clients_grew(exchange) -> None:
    reply, expected, strategy = exchange(2)
    strategy.aggregate_train(2, [reply])
    assert {n: int(m.sum()) for n, m in strategy.mask.items()} == {n: int(m.sum()) for n, m in expected.mask.items()}
    assert any(bool((strategy.mask[n] & ~expected.mask[n]).any()) for n in strategy.mask)
