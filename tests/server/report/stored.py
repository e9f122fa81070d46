"""Whole runs in real files, with audits of scikit-learn's digits."""

from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from prunella.attacks.score.leakage import score
from prunella.core.files import write_tree
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore


def add_audit(store: RunStore, round: int, kind: str, noise: float, pictures: bool = True, **changes: Any) -> None:
    data, generator = load_digits(), stream(round, purpose=kind)
    x = torch.tensor(data.images[:4], dtype=torch.float32)[:, None] / 16
    y = torch.tensor(data.target[:4])
    rebuilt = (x + noise * torch.randn(x.shape, generator=generator)).clamp(0, 1)
    path = f"pictures/{round}-{kind}.safetensors" if pictures else None
    if path:
        write_tree(store.path / path, {"original": x, "reconstruction": rebuilt})
    base = {
        "round": round, "kind": kind, "client": 2 if kind == "client" else None, "attack": "sgi", "adaptive": True,
        "defense": "none" if kind == "control" else "priprune", "threat": "saw params, update", "objective": 0.001,
        "seconds": 2.0, "outcome": "scored", "pictures": path, "ok": noise < 0.1 if kind == "control" else None,
        "scores": score(Reconstruction(rebuilt, y, 0.1, 9), PrivateBatch(x, y)).to_dict(),
    }  # fmt: skip
    store.append_audit(base | changes)


def new_run(path: Path, rounds: int = 4, loss: bool = True, **run: Any) -> RunStore:
    store = RunStore.open(path)
    base = {
        "id": "r-7", "status": "completed",
        "settings": {"dataset": "digits", "rounds": rounds, "seed": 5, "defenses": "priprune"},
        "classes": 10, "test_examples": 359,
        "versions": {"torch": "2.15"}, "threat_model": "Honest but curious.", "model_parameters": 1234,
        "claims": ["PriPrune: heuristic, no ε"],
    }  # fmt: skip
    store.write_run(**base | run)
    for r in range(1, rounds + 1):
        store.append_metrics(r, [
            row("round", r), row("rounds", rounds), row("accuracy_ratio", r / (rounds + 1)),
            *([row("loss", 1.0 / r)] if loss else []),
            row("mask_density_ratio", 0.3), row("wire_bytes_total", 250 * r, direction="up"),
            row("wire_bytes_total", 250 * r, direction="down"), row("wire_dense_bytes_total", 1000 * r, direction="up"),
            row("wire_dense_bytes_total", 1000 * r, direction="down"), row("client_failures_total", r, reason="shape"),
        ])  # fmt: skip
    return store


def add_worst_case(store: RunStore) -> None:
    """A worst case that is rebuilt undefended and of which nothing is left behind the defense."""
    for kind, noise in (("single", 0.02), ("single-defended", 2.0)):
        add_audit(store, 4, kind, noise, pictures=False)


def full_run(path: Path, client_noise: float = 2.0, control_noise: float = 0.02) -> RunStore:
    store = new_run(path)
    for kind, noise in (("control", control_noise), ("control-defended", 2.0), ("client", client_noise)):
        add_audit(store, 4, kind, noise)
    return store
