"""Every scheme in a federation whose clients train on a device beside the CPU: on one that is there, or on one that is
not (``tests.pretended``), where two devices that meet raise as they would on a GPU."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from prunella.benchmarks.engine.inprocess import failures, run_in_process
from prunella.core.config import PLACES
from prunella.strategies import STRATEGIES
from prunella.strategies.round.client_part import ClientPart

RUN = {"rounds": 3, "local_steps": 2, "batch_size": 8, "audit_every": 0, "examples": 64, "tested": 32}
OWN: dict[str, dict[str, Any]] = {"feddst": {"feddst__adjust_interval": 1}, "prunefl": {"prunefl__adjust_interval": 1}}


def densities(folder: Path, device: str, strategy: str, asked: dict[str, Any]) -> list[float]:
    """Of the mask, by round."""
    chain = "fed-ltp-client" if strategy.startswith("fed-ltp") else "none"
    done = run_in_process(
        folder, strategy=strategy, **{"clients": 2, "defenses": chain, **RUN, "device": device, **asked}
    )
    assert not failures(done), done.counters
    return [line["value"] for line in done.store.metrics() if line["metric"] == "mask_density_ratio"]


@pytest.mark.parametrize(
    ("strategy", "asked"),
    [(name, OWN.get(name, {})) for name, scheme in STRATEGIES.items() if scheme.client != ClientPart()]
    + [(name, {f"{name}__granularity": "filter"}) for name in ("prunefl", "magnitude", "snip")]
    + [("fedavg", {"aggregation": "secure-sum", "clients": 3, "min_clients": 3, "registered_keys": 0})]
    + [
        ("fed-ltp-one-shot", {}),
        ("fedavg", {"defenses": "dp-sgd"}),
        ("prunefl", {"defenses": "priprune", "evaluation": "clients"}),
    ],
)
def test_a_scheme_does_there_what_it_does_here(
    strategy: str, asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any, caplog: Any
) -> None:
    monkeypatch.setattr("prunella.client.session.PLACES", {*PLACES, "device"})  # else clients draw other batches there
    here = densities(tmp_path / "here", "cpu", strategy, asked)
    request.getfixturevalue("pretended")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with caplog.at_level(logging.ERROR):
        there = densities(tmp_path / "there", "cuda:0", strategy, asked)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(there) == RUN["rounds"] and there == pytest.approx(here, abs=1e-3)
