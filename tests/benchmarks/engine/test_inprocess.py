"""The in-process federation does a whole run and reads each client's data once."""

from pathlib import Path

import pytest
import torch

import prunella.client.session
from prunella.benchmarks.engine import inprocess
from prunella.benchmarks.engine.inprocess import run_in_process, settings
from prunella.server.checkpoint import load
from prunella.tasks.data import Examples


def test_a_run_in_process_trains_and_counts(tmp_path: Path) -> None:
    federation = run_in_process(tmp_path, 2, rounds=1, local_steps=1, strategy="snip", defenses="none", audit_every=0)
    metrics = {line["metric"] for line in federation.store.metrics()}
    assert {"accuracy_ratio", "wire_bytes_total", "mask_density_ratio"} <= metrics
    assert federation.counters["wire_bytes_total|up"] > 0


def test_overrides_replace_settings_and_sections() -> None:
    flat = settings(rate=0.5, feddst__adjust_interval=2)
    assert flat["rate"] == 0.5 and flat["feddst.adjust-interval"] == 2 and flat["seed"] == 0


def test_data_is_read_once_and_clients_have_their_first_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple] = []
    sizes: list[int] = []
    before, train = inprocess.cached_client, prunella.client.session.batches

    def counting(*asked: object) -> Examples:
        calls.append(asked)
        return before(*asked)

    def sized(examples: Examples, *rest: object) -> object:
        sizes.append(len(examples))
        return train(examples, *rest)

    monkeypatch.setattr(inprocess, "cached_client", counting)
    monkeypatch.setattr(prunella.client.session, "batches", sized)
    asked = {"rounds": 2, "local_steps": 1, "strategy": "fedavg", "defenses": "none", "audit_every": 0}
    federation = run_in_process(tmp_path, 2, examples=7, tested=20, **asked)
    assert len(calls) == 2 and sizes == [7] * 4 and len(federation.test) == 20


def test_who_watches_sees_the_global_model_of_every_round(tmp_path: Path) -> None:
    seen: list[dict] = []
    asked = {"rounds": 2, "local_steps": 1, "strategy": "fedavg", "defenses": "none", "audit_every": 0}
    federation = run_in_process(tmp_path, 2, look=lambda _, params, buffers: seen.append(params), **asked)
    saved = load(federation.folder / "checkpoint")
    assert saved is not None and len(seen) >= 2
    assert all(torch.equal(seen[-1][name], saved.tree[name]) for name in seen[-1])
    assert any(not torch.equal(seen[-2][name], seen[-1][name]) for name in seen[-1])
