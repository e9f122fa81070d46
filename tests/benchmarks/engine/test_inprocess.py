"""The in-process federation does a whole run and reads each client's data once."""

from pathlib import Path

import torch

import prunella.client.session
from prunella.benchmarks.engine.inprocess import made_once, run_in_process, settings, watched
from prunella.client.session import Session
from prunella.server.checkpoint import load


def test_a_run_in_process_trains_and_counts(tmp_path: Path) -> None:
    federation = run_in_process(tmp_path, 2, rounds=1, local_steps=1, strategy="snip", defenses="none", audit_every=0)
    metrics = {line["metric"] for line in federation.store.metrics()}
    assert {"accuracy_ratio", "wire_bytes_total", "mask_density_ratio"} <= metrics
    assert federation.counters["wire_bytes_total|up"] > 0


def test_overrides_replace_settings_and_sections() -> None:
    flat = settings(rate=0.5, feddst__adjust_interval=2)
    assert flat["rate"] == 0.5 and flat["feddst.adjust-interval"] == 2 and flat["seed"] == 0


def test_data_is_read_once_inside_and_as_before_outside(monkeypatch) -> None:
    calls: list[tuple] = []
    before = prunella.client.session.load_client

    def counting(*args: object):
        calls.append(args)
        return before(*args)

    monkeypatch.setattr(prunella.client.session, "load_client", counting)
    with made_once():
        for _ in range(3):
            prunella.client.session.load_client("digits", prunella.client.session.Partition("iid", 2, 1.0, 0), 0, None)
        assert len(calls) == 1
    assert prunella.client.session.load_client is counting
    assert Session is prunella.client.session.Session


def test_who_watches_sees_the_global_model_of_every_round(tmp_path: Path) -> None:
    seen: list[dict] = []
    asked = {"rounds": 2, "local_steps": 1, "strategy": "fedavg", "defenses": "none", "audit_every": 0}
    with watched(lambda federation, params, buffers: seen.append(params)):
        federation = run_in_process(tmp_path, 2, **asked)
    saved = load(federation.folder / "checkpoint")
    assert saved is not None and len(seen) >= 2
    assert all(torch.equal(seen[-1][name], saved.tree[name]) for name in seen[-1])
    assert any(not torch.equal(seen[-2][name], seen[-1][name]) for name in seen[-1])
