"""Accuracy and megabytes of every pruning scheme beside dense FedAvg (docs/schemes.md).

A cell is one whole run in process: Dirichlet partition with alpha 1, no defense, no audits, the same seed, model, steps
and learning rate for all. Accuracy is of the global model on the server's test examples, in the last round and the
best; LotteryFL's is of its clients' own models on what each holds out, since that is what it trains. Megabytes (10^6
bytes) are those of coded models and updates over the whole run, headers included, beside the same tensors dense in
float32. Schemes that prune on public examples (SNIP, GraSP, Fed-LTP) are tested on the three quarters of the test
examples that are not public.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Found, Measure, Plot, Settings, Sweep
from prunella.benchmarks.engine.images import place
from prunella.benchmarks.engine.inprocess import accuracies, failures, run_in_process
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.scheme_inversion import DENSE
from prunella.strategies import STRATEGIES

RATES = (0.3, 0.5, 0.7)
PAGE: Settings = {
    "dataset": "mnist",
    "model": "conv-2",
    "clients": 10,
    "fraction": 0.5,
    "rounds": 20,
    "local_steps": 5,
    "batch_size": 16,
    "learning_rate": 0.1,
    "momentum": 0.9,
    "evaluate_every": 10,
    "device": "cpu",
}


def run(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: the rate."""
    given: dict[str, Any] = {**settings, "dataset": place(settings["dataset"], data), "seed": seed}
    clients, scheme = given.pop("clients"), given.pop("scheme")
    given |= {"strategy": scheme, "defenses": NONE, "audit_every": 0, "partition": "dirichlet"}
    given |= {"evaluation": "clients"} if scheme == "lotteryfl" else {}
    with tempfile.TemporaryDirectory() as folder:
        done = run_in_process(Path(folder), clients, **given)
        accuracy = list(accuracies(done).values())
        kept = [line["value"] for line in done.store.metrics() if line["metric"] == "mask_density_ratio"]
    sent = {name: value / 1e6 for name, value in done.counters.items() if name.startswith("wire_")}
    found = {
        "accuracy": accuracy[-1],
        "best": max(accuracy),
        "density": kept[-1],
        "up": sent["wire_bytes_total|up"],
        "down": sent["wire_bytes_total|down"],
        "megabytes": sent["wire_bytes_total|up"] + sent["wire_bytes_total|down"],
        "dense": sent["wire_dense_bytes_total|up"] + sent["wire_dense_bytes_total|down"],
        "failures": failures(done),
    }
    return {str(settings["rate"]): found}


def table(
    schemes: Sequence[str] = tuple(STRATEGIES),
    rates: Sequence[float] = RATES,
    seeds: tuple[int, ...] = (0,),
    name: str = "schemes",
    **changed: Any,
) -> Claim:
    """A table of these schemes and rates, FedAvg once; ``changed`` are settings other than the page's."""
    cells = [(DENSE, 0.0)] if DENSE in schemes else []
    cells += [(scheme, rate) for scheme in schemes if scheme != DENSE for rate in rates]
    sweep = Sweep(tuple({**PAGE, **changed, "scheme": scheme, "rate": rate} for scheme, rate in cells), seeds)
    columns = (
        Column("accuracy", "accuracy", 3),
        Column("best", "best accuracy", 3),
        Column("density", "kept", 3),
        Column("up", "MB up", 0),
        Column("down", "MB down", 0),
        Column("megabytes", "MB both ways", 0),
        Column("dense", "MB dense", 0),
    )
    plot = Plot(("accuracy",), x=1, x_name="megabytes sent, both ways, all rounds", over="megabytes")
    experiment = Experiment(Measure("schemes", run), {"small": sweep}, ("scheme",), "rate", columns, plot)
    says = "accuracy and megabytes of every pruning scheme beside dense FedAvg"
    return Claim(name, "Prunella", "docs/schemes.md", says, "", experiment)


SCHEME_TABLE = table()
