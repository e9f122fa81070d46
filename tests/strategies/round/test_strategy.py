"""The strategy under Flower's own loop, and what it keeps track of."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord

import prunella.client.app
from prunella.client.session import HELD_OUT
from prunella.core.config import parse_run
from prunella.core.errors import PrunellaError
from prunella.server.app import assemble
from prunella.server.grid import OrderedGrid
from prunella.strategies.round.strategy import MaskedMean
from prunella.tasks.data import Partition, load_client
from prunella.tasks.task import initial
from prunella.tasks.training import evaluate
from prunella.wire.records import from_dense, to_dense
from tests.local_grid import LocalGrid, settings


def build(tmp_path: Path, clients: int = 2, **overrides: Any) -> tuple[MaskedMean, LocalGrid, Any]:
    raw = settings(**{"run_dir": str(tmp_path / "run"), "audit_every": 0, "defenses": "none", **overrides})
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    federation.strategy.listener = None
    params, buffers = initial(federation.task, 0)
    return (
        federation.strategy,
        LocalGrid(prunella.client.app.app, clients, raw, tmp_path / "nodes"),
        to_dense({**params, **buffers}),
    )


def test_it_runs_under_flowers_own_start(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, strategy="random", rate=0.5, partition="iid")
    result = strategy.start(grid, arrays, num_rounds=3)
    tree = from_dense(result.arrays)
    assert strategy.mask is not None
    assert not any(tree[name][~mask].any() for name, mask in strategy.mask.items())
    assert any(not torch.equal(tree[n], from_dense(arrays)[n]) for n in tree)
    assert set(result.train_metrics_clientapp) == {1, 2, 3}


def test_evaluation_on_clients_under_flowers_own_start(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, strategy="random", evaluation="clients")
    result = strategy.start(grid, arrays, num_rounds=2)
    assert len(result.evaluate_metrics_clientapp) == 2
    run, held = strategy.run, []
    for client in range(2):
        mine = load_client(run.dataset, Partition(run.partition, 2, run.alpha, run.seed), client, None)
        held.append(mine.take(torch.arange(len(mine)) % HELD_OUT == 0))
    x, y = torch.cat([each.x for each in held]), torch.cat([each.y for each in held])
    whole = evaluate(strategy.model.module, *strategy.model.split(from_dense(result.arrays)), x, y)
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(whole.accuracy, abs=1e-3)


def test_aggregating_before_configuring_is_an_error(tmp_path: Path) -> None:
    strategy, _, _ = build(tmp_path)
    with pytest.raises(PrunellaError, match="before configure_train"):
        strategy.aggregate_train(1, [])


def test_fewer_clients_than_wanted_ends_with_a_count(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, clients=1, min_clients=3, round_seconds=0.2)
    with pytest.raises(PrunellaError, match="1 of 3 clients"):
        strategy.configure_train(1, arrays, ConfigRecord(), OrderedGrid(grid, 0.01))
