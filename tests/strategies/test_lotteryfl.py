from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord

import prunella.client.app
from prunella.core.config import Run, parse_run
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask
from prunella.pruning.channels import channel_groups
from prunella.pruning.prunefl_filters import of_channels
from prunella.pruning.selection import density, kept_count
from prunella.server.app import assemble
from prunella.strategies.lotteryfl import LotteryFL, LotteryFLSettings, plan, shrink
from prunella.strategies.round.plan import LocalPlan, RoundContext
from prunella.strategies.round.replies import read_reply
from prunella.tasks.task import Task, initial, prunable
from prunella.tasks.training import Evaluation
from prunella.wire.encode import decode_mask
from prunella.wire.records import from_dense, to_dense
from tests.local_grid import LocalGrid, settings
from tests.server.test_rounds import final, go

TASK = Task("cnn", (1, 8, 8), 10)
PARAMS, _ = initial(TASK, 0)
FRESH, _ = initial(TASK, 1)
NAMES = prunable(TASK.build())
GROUPS = channel_groups(TASK.build(), TASK.shape)
TOTAL = sum(PARAMS[n].numel() for n in NAMES)


def planned(
    accuracy: float, kept: Mask | None = None, mask: Mask | None = None, groups: object = lambda: GROUPS, **more: object
) -> LocalPlan:
    memory: dict[str, Tree] = {} if kept is None else {"mask": kept}
    received = full_mask(PARAMS) if mask is None else mask
    here = RoundContext(
        Run(rate=0.5),
        LotteryFLSettings(**more),
        1,
        PARAMS,
        received,
        NAMES,
        memory,
        lambda: FRESH,
        lambda tree: accuracy,
        groups,  # type: ignore[arg-type]
    )
    return plan(here)


def test_below_the_threshold_nothing_is_pruned_and_training_goes_on_from_the_received_weights() -> None:
    found = planned(0.3)
    assert count(found.mask) == count(full_mask(PARAMS))
    assert all(torch.equal(found.start[n], PARAMS[n]) for n in PARAMS)


def test_above_it_a_share_goes_by_magnitude_and_the_survivors_are_rewound() -> None:
    found = planned(0.9, step=0.2)
    assert sum(int(found.mask[n].sum()) for n in NAMES) == kept_count(TOTAL, 0.2)
    assert all(torch.equal(found.start[n], apply_mask(FRESH, found.mask)[n]) for n in PARAMS)
    kept = torch.cat([PARAMS[n][found.mask[n]].abs() for n in NAMES])
    assert kept.min() >= torch.cat([PARAMS[n][~found.mask[n]].abs() for n in NAMES]).max()
    onward = planned(0.9, step=0.2, rewind=False)
    assert all(torch.equal(onward.start[n], apply_mask(PARAMS, onward.mask)[n]) for n in PARAMS)


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.7])
def test_steps_end_at_the_rate_exactly_are_nested_and_then_stop(rate: float, scope: str) -> None:
    masks = [full_mask(PARAMS)]
    for _ in range(12):
        masks.append(shrink(PARAMS, masks[-1], NAMES, rate, LotteryFLSettings(step=0.2, scope=scope)))
    wanted = kept_count(TOTAL, rate) if scope == "global" else sum(kept_count(PARAMS[n].numel(), rate) for n in NAMES)
    assert sum(int(masks[-1][n].sum()) for n in NAMES) == wanted
    assert masks[-1] is masks[-2]
    assert not any(bool((b[n] & ~a[n]).any()) for a, b in zip(masks, masks[1:], strict=False) for n in NAMES)


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_steps_of_filters_end_near_the_rate_are_nested_and_then_stop(scope: str) -> None:
    masks, settings_ = [full_mask(PARAMS)], LotteryFLSettings(step=0.2, scope=scope, granularity="filter")
    for _ in range(8):
        masks.append(shrink(apply_mask(PARAMS, masks[-1]), masks[-1], NAMES, 0.5, settings_, GROUPS))
    assert all(of_channels(mask, GROUPS, NAMES) for mask in masks)
    assert density(masks[1], NAMES) == pytest.approx(0.8, abs=0.03) and masks[-1] is masks[-2]
    assert 0.5 <= density(masks[-1], NAMES) < 0.53
    assert not any(bool((b[n] & ~a[n]).any()) for a, b in zip(masks, masks[1:], strict=False) for n in NAMES)


def test_channels_are_looked_for_only_where_filters_go() -> None:
    assert not of_channels(planned(0.9, groups=None).mask, GROUPS, NAMES)
    assert of_channels(planned(0.9, granularity="filter").mask, GROUPS, NAMES)


def test_clients_with_filters_train_small_networks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_small: list[bool]
) -> None:
    shares = iter([0.5, 0.0, 0.5, 0.5, 0.5, 0.5])  # the second client does not prune in the first round
    monkeypatch.setattr("prunella.client.training.evaluate_model", lambda *_: Evaluation(1.0, next(shares), 10))
    go(tmp_path, 2, strategy="lotteryfl", rate=0.6, rounds=3, defenses="none", lotteryfl__accuracy=0.0,
       lotteryfl__step=0.3, lotteryfl__granularity="filter", lotteryfl__rewind=False)  # fmt: skip
    kept = [decode_mask(data.numpy().tobytes(), PARAMS) for data in final(tmp_path).scheme.values()]
    assert trained_small == [True, False, True, True, True, True]
    assert all(of_channels(mask, GROUPS, NAMES) for mask in kept)
    assert sorted(density(mask, NAMES) for mask in kept) == pytest.approx([0.4, 0.49], abs=0.03)


def test_the_clients_own_mask_has_the_last_word() -> None:
    mine = shrink(PARAMS, full_mask(PARAMS), NAMES, 0.3, LotteryFLSettings(step=0.3))
    found = planned(0.0, kept=mine)
    assert all(torch.equal(found.mask[n], mine[n]) for n in mine)
    assert all(torch.equal(found.keep["mask"][n], mine[n]) for n in mine)


def test_the_server_sends_each_client_what_it_last_reported_and_averages_by_holders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every client prunes: a model this young may label no held-out example right.
    monkeypatch.setattr("prunella.client.training.evaluate_model", lambda *_: Evaluation(1.0, 0.5, 10))
    raw = settings(run_dir=str(tmp_path / "run"), strategy="lotteryfl", rate=0.6, defenses="none", audit_every=0,
                   min_clients=1, lotteryfl__accuracy=0.0, lotteryfl__step=0.5)  # fmt: skip
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    strategy, grid = federation.strategy, LocalGrid(prunella.client.app.app, 2, raw, tmp_path / "nodes")
    assert isinstance(strategy, LotteryFL)
    strategy.listener = None
    arrays = to_dense(PARAMS)
    sent: list[dict[int, float]] = []
    for round, away in ((1, {101}), (2, set()), (3, set())):
        grid.offline = away
        messages = list(strategy.configure_train(round, arrays, ConfigRecord(), grid))
        nodes = [message.metadata.dst_node_id for message in messages]
        sent.append({node: density(strategy.downlink.expected(node).mask, NAMES) for node in nodes})
        replies = grid.send_and_receive(messages)
        before, expected = from_dense(arrays), strategy.downlink.expected(100)
        arrays, _ = strategy.aggregate_train(round, replies)
        assert strategy.stats.failures == {}
        if round == 2:  # client 0 no longer holds these, client 1 does: its weights alone count
            mine = decode_mask(strategy.downlink.personal.coded(0), before)
            theirs = decode_mask(strategy.downlink.personal.coded(1), before)
            reply = read_reply(replies[1], strategy.downlink.expected(101))
            for name in NAMES:
                alone = ~mine[name] & theirs[name]
                gone = ~mine[name] & ~theirs[name]
                assert torch.allclose(from_dense(arrays)[name][alone], (before[name] + reply.update[name])[alone])
                assert torch.equal(from_dense(arrays)[name][gone], before[name][gone])
            assert any(bool((~mine[n] & theirs[n]).any()) for n in NAMES)
            assert not any(bool(expected.params[n][~expected.mask[n]].any()) for n in NAMES)
    assert sent[0] == {100: 1.0}
    assert sent[1] == {100: pytest.approx(0.5, abs=1e-3), 101: 1.0}
    assert sent[2] == {100: pytest.approx(0.4, abs=1e-3), 101: pytest.approx(0.5, abs=1e-3)}
    assert strategy.downlink.density(strategy.mask) == pytest.approx(0.4, abs=1e-3)
