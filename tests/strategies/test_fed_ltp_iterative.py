from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

import prunella.client.app
from prunella.core.config import parse_run
from prunella.pruning.ltp import retained
from prunella.pruning.prunefl_filters import of_channels
from prunella.pruning.selection import density
from prunella.server.app import assemble
from prunella.strategies.fed_ltp_iterative import FedLTPIterative, deal
from prunella.tasks.task import Task, initial, prunable
from prunella.wire.encode import decode_mask
from prunella.wire.records import from_dense, to_dense
from tests.local_grid import LocalGrid, settings

TASK = Task("cnn", (1, 8, 8), 10)
PARAMS, _ = initial(TASK, 0)
NAMES = prunable(TASK.build())


@given(st.integers(1, 8), st.sets(st.integers(0, 7)), st.integers(0, 2**31))
def test_newcomers_get_slots_that_nobody_in_the_round_has_each_once(slots: int, taken: set[int], seed: int) -> None:
    taken = {slot for slot in taken if slot < slots}
    newcomers = list(range(100, 100 + slots - len(taken)))
    dealt = deal(newcomers, taken, slots, torch.Generator().manual_seed(seed))
    assert sorted(dealt.values()) == sorted(set(range(slots)) - taken)


def test_when_models_run_out_all_are_shuffled_again() -> None:
    dealt = deal([1, 2, 3, 4, 5], {0, 1}, 2, torch.Generator().manual_seed(0))
    assert sorted(list(dealt.values())[:2]) == [0, 1] == sorted(list(dealt.values())[2:4])


def make(tmp_path: Path, **more: object):
    raw = settings(run_dir=str(tmp_path / "run"), strategy="fed-ltp-iterative", rate=0.3, defenses="none", fraction=0.5,
                   audit_every=0, fed_ltp_iterative__tickets=1, fed_ltp_iterative__iterations=5,
                   fed_ltp_iterative__further=0.2, learning_rate=0.1, **more)  # fmt: skip
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    strategy, grid = federation.strategy, LocalGrid(prunella.client.app.app, 6, raw, tmp_path / "nodes")
    assert isinstance(strategy, FedLTPIterative)
    strategy.listener = None
    return strategy, grid, lambda: assemble(federation.run, raw).strategy


@pytest.fixture
def built(tmp_path: Path):
    return make(tmp_path)


def slot_densities(strategy: FedLTPIterative) -> dict[int, int]:
    """How many weights each client's own mask keeps."""
    coded = {c: strategy.downlink.personal.coded(c) for c in range(6)}
    return {c: sum(int(decode_mask(d, PARAMS)[n].sum()) for n in NAMES) for c, d in coded.items() if d is not None}


def test_each_client_keeps_the_model_it_was_dealt_and_the_server_averages_over_holders(built) -> None:
    strategy, grid, fresh = built
    arrays, seen = to_dense(PARAMS), {}
    for round in (1, 2, 3, 4):
        messages = list(strategy.configure_train(round, arrays, ConfigRecord(), grid))
        assert len(messages) == 3
        first_met = {m.metadata.dst_node_id - 100 for m in messages} - seen.keys()
        now = slot_densities(strategy)
        assert all(now[client] == kept for client, kept in seen.items())
        if round == 1:
            wanted = [sum(retained(PARAMS[n].numel(), 0.3, 0.2, i) for n in NAMES) for i in (1, 2, 3)]
            assert sorted(now.values(), reverse=True) == wanted
        assert len({now[client] for client in first_met}) == len(first_met)
        seen = now
        arrays, _ = strategy.aggregate_train(round, grid.send_and_receive(messages))
        assert strategy.stats.failures == {}
        tree = from_dense(arrays)
        assert not any(bool(tree[n][~strategy.mask[n]].any()) for n in tree)
    largest = strategy.mask
    assert sum(int(largest[n].sum()) for n in NAMES) == wanted[0]
    again = fresh()
    again.recall(strategy.remembered())
    assert slot_densities(again) == slot_densities(strategy)
    assert again.remembered().keys() == strategy.remembered().keys()


def test_models_of_filters_are_smaller_networks_each_inside_the_one_before(
    tmp_path: Path, trained_small: list[bool]
) -> None:
    strategy, grid, _ = make(tmp_path, fed_ltp_iterative__granularity="filter")
    messages = list(strategy.configure_train(1, to_dense(PARAMS), ConfigRecord(), grid))
    models = strategy.models(PARAMS)
    assert all(of_channels(mask, strategy.model.groups, NAMES) for mask in models)
    assert not any(bool((b[n] & ~a[n]).any()) for a, b in zip(models, models[1:], strict=False) for n in NAMES)
    wanted = [0.7 * 0.8**i for i in (1, 2, 3)]
    assert [density(mask, NAMES) for mask in models] == pytest.approx(wanted, abs=0.02)
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert trained_small == [True] * 3 and strategy.stats.failures == {}
