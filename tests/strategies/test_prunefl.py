from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message

import prunella.client.app
from prunella.core.config import parse_run
from prunella.core.trees import Mask, Tree, full_mask, zeros_like
from prunella.pruning.prunefl import reconfigure
from prunella.pruning.selection import density
from prunella.server.app import assemble
from prunella.strategies.prunefl import PruneFL, PruneFLSettings, with_limit
from prunella.tasks.task import Task, initial
from prunella.wire.records import mask_from_coded, mask_to_coded, to_dense
from tests.local_grid import LocalGrid, settings

TASK = Task("cnn", (1, 8, 8), 10)


def build(tmp_path: Path, tamper: Any = None, **overrides: Any) -> tuple[PruneFL, LocalGrid, Any]:
    raw = settings(**{"run_dir": str(tmp_path / "run"), "audit_every": 0, "defenses": "none", **overrides})
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    strategy = federation.strategy
    assert isinstance(strategy, PruneFL)
    strategy.listener = None
    params, buffers = initial(federation.task, 0)
    return (
        strategy,
        LocalGrid(prunella.client.app.app, 3, raw, tmp_path / "nodes", tamper),
        to_dense({**params, **buffers}),
    )


def asked(grid: LocalGrid) -> list[int]:
    return [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "train.initial"]


@pytest.mark.parametrize("defenses", ["none", "adgp", "dgp", "top-k"])
def test_the_first_client_alone_prunes_first_and_sends_a_mask_only(tmp_path: Path, defenses: str) -> None:
    seen: list[Message] = []
    strategy, grid, arrays = build(tmp_path, lambda m: seen.append(m) or m, defenses=defenses)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert asked(grid) == [100]
    (reply,) = [m for m in seen if "mask" in m.content]
    assert list(reply.content) == ["mask"]
    assert strategy.mask is not None
    assert 0.3 < density(strategy.mask, strategy.model.prunable) <= 0.7
    assert strategy.stats.up > 0


@pytest.mark.parametrize("fault", ["error", "dense", "bias", "layer"])
def test_a_client_that_gives_no_valid_mask_is_passed_over(tmp_path: Path, fault: str) -> None:
    def damage(message: Message) -> Message | None:
        if message.metadata.src_node_id != 100 or not message.has_content() or "mask" not in message.content:
            return message
        if fault == "error":
            return None
        like = full_mask(initial(TASK, 0)[0])
        mask = like if fault == "dense" else mask_from_coded(message.content["mask"], like)
        if fault in ("bias", "layer"):
            name = next(n for n in mask if n.endswith("bias" if fault == "bias" else "weight"))
            mask = {**mask, name: torch.zeros_like(mask[name])}
        message.content["mask"] = mask_to_coded(mask)
        return message

    strategy, grid, arrays = build(tmp_path, damage)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert asked(grid) == [100, 101]
    assert strategy.mask is not None and density(strategy.mask, strategy.model.prunable) <= 0.7


def test_nobody_gives_a_mask_and_the_round_is_dense(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, lambda m: None if m.has_content() and "mask" in m.content else m)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert strategy.mask is not None and density(strategy.mask, strategy.model.prunable) == 1.0


def test_reconfiguration_is_that_of_the_weighted_mean_of_importances(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, prunefl__adjust_interval=1)
    got: list[tuple[Mask, int]] = []
    strategy.listener = lambda c: got.append((c.importance, c.weight))
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    before = strategy.mask
    assert before is not None
    uncut: list[Tree] = []  # the mask is revised on the aggregated weights before they are cut
    revise = strategy.revise_mask
    strategy.revise_mask = lambda round, params, mask: revise(round, uncut.append(params) or params, mask)
    aggregated, _ = strategy.aggregate_train(1, replies)
    total = sum(weight for _, weight in got)
    assert len(got) == 3 and len({weight for _, weight in got}) > 1
    params = strategy.downlink.expected().params
    mean = {n: sum(t[n].double() * w for t, w in got) / total for n in got[0][0]}
    assert aggregated is not None
    full = {**zeros_like(params), **mean}
    expected = reconfigure(uncut[0], full, before, strategy.costs(), strategy.settings, 1)
    assert all(torch.equal(strategy.mask[n], expected[n]) for n in expected)
    assert any(not torch.equal(strategy.mask[n], before[n]) for n in before)


@pytest.mark.parametrize("with_conditions", [2, 3])
def test_a_client_whose_owner_requires_a_defense_trains_along_and_has_no_say_in_the_mask(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_conditions: int
) -> None:
    settings = {"defenses": "dgp", "prunefl__adjust_interval": 1}
    strategy, grid, arrays = build(tmp_path, **settings)
    for node in list(grid.contexts)[:with_conditions]:
        grid.contexts[node].node_config["require"] = "dgp"
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    before = strategy.mask
    assert before is not None and asked(grid) == [100, 101, 102]
    assert (density(before, strategy.model.prunable) == 1.0) == (with_conditions == 3)
    strategy.aggregate_train(1, replies)
    assert strategy.stats.replies == 3 and not strategy.stats.failures
    moved = any(not torch.equal(strategy.mask[n], before[n]) for n in before)
    assert moved == (with_conditions < 3)
    assert ("no client sent importances" in caplog.text) == (with_conditions == 3)


def test_importances_are_asked_for_only_when_they_are_used(tmp_path: Path) -> None:
    strategy, _, _ = build(tmp_path, prunefl__adjust_interval=3)
    assert [bool(strategy.importance_names(r)) for r in range(1, 7)] == [False, False, True, False, False, True]


def test_the_limit_comes_from_the_rate_unless_it_is_set() -> None:
    assert with_limit(PruneFLSettings(), 0.3).max_density == pytest.approx(0.7)
    assert with_limit(PruneFLSettings(max_density=0.4), 0.3).max_density == 0.4
