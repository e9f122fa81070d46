"""Accuracy and megabytes of every pruning scheme beside dense FedAvg, in process (``benchmarks.engine.inprocess``).

One row is one whole run: Dirichlet partition with alpha 1, no defense, no audits, the same seed, model, steps and
learning rate for all. Accuracy is of the global model on the server's test examples, in the last round and the best;
LotteryFL's is of its clients' own models on what each holds out, since that is what it trains. Megabytes (10^6 bytes)
are those of coded models and updates over the whole run, headers included, beside the same tensors dense in float32.
Schemes that prune on public examples (SNIP, GraSP, Fed-LTP) are tested on the three quarters of the test examples that
are not public. Accuracy is taken every ``--evaluate-every`` rounds and after the last. Rows run in ``--jobs``
processes. With ``--cache`` every finished row is kept in a file of its own, named by its settings, and a run that was
stopped goes on where it was.

    python -m prunella.benchmarks.papers.schemes [--dataset mnist:/data/mnist] [--model conv-2]
        [--rates 0.3,0.5,0.7] [--device cuda]
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from prunella.benchmarks.engine.inprocess import made_once, run_in_process
from prunella.core.files import write_json
from prunella.strategies import STRATEGIES

DENSE = "fedavg"
Row = dict[str, Any]
Case = tuple[str, float, dict[str, Any], int]


def cases(schemes: Sequence[str], rates: Sequence[float], common: Mapping[str, Any], clients: int) -> list[Case]:
    """One case a scheme and rate; FedAvg once.

    >>> [case[:2] for case in cases(["fedavg", "snip"], [0.3, 0.5], {}, 4)]
    [('fedavg', 0.0), ('snip', 0.3), ('snip', 0.5)]
    """
    wanted = [(DENSE, 0.0)] if DENSE in schemes else []
    wanted += [(scheme, rate) for rate in rates for scheme in schemes if scheme != DENSE]
    return [(scheme, rate, dict(common), clients) for scheme, rate in wanted]


def measure(case: Case) -> Row:
    """One run."""
    scheme, rate, common, clients = case
    torch.set_num_threads(1)
    own = {"evaluation": "clients"} if scheme == "lotteryfl" else {}
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"strategy": scheme, "rate": rate, "defenses": "none", "audit_every": 0, "partition": "dirichlet"}
        federation = run_in_process(Path(folder), clients, **fixed, **own, **common)
        lines = federation.store.metrics()
    curve = {str(line["round"]): line["value"] for line in lines if line["metric"] == "accuracy_ratio"}
    accuracy = list(curve.values())
    density = [line["value"] for line in lines if line["metric"] == "mask_density_ratio"]
    sent = {name: value / 1e6 for name, value in federation.counters.items() if name.startswith("wire_")}
    return {
        "scheme": scheme,
        "rate": rate,
        "accuracy": accuracy[-1],
        "best_accuracy": max(accuracy),
        "accuracy_by_round": curve,
        "evaluated_on": own.get("evaluation", "server"),
        "density": density[-1],
        "megabytes_up": sent["wire_bytes_total|up"],
        "megabytes_down": sent["wire_bytes_total|down"],
        "megabytes_dense": sent["wire_dense_bytes_total|up"] + sent["wire_dense_bytes_total|down"],
        "failures": sum(v for name, v in federation.counters.items() if name.startswith("client_failures_total")),
        "clients": clients,
        "settings": dict(common),
        "seconds": time.perf_counter() - begin,
    }


def cache_file(cache: Path, case: Case) -> Path:
    """Where the row of a case is kept.

    >>> cache_file(Path("rows"), ("snip", 0.5, {"seed": 0}, 4)).name
    'snip-0.5-476e68c50dfd.json'
    """
    mark = hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:12]
    return cache / f"{case[0]}-{case[1]}-{mark}.json"


def measure_once(case: Case, cache: Path | None) -> Row:
    """The row of a case, from ``cache`` where it is there already."""
    if cache is None:
        return measure(case)
    file = cache_file(cache, case)
    if not file.exists():
        write_json(file, measure(case))
    return dict(json.loads(file.read_text()))


def measure_all(todo: Sequence[Case], jobs: int, cache: Path | None = None) -> Iterator[Row]:
    """Rows as they are finished."""
    if jobs == 1:
        with made_once():
            yield from (measure_once(case, cache) for case in todo)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(measure_once, case, cache) for case in todo]):
            yield done.result()


def in_order(rows: Sequence[Row]) -> list[Row]:
    """FedAvg first, then by scheme and rate, each with its megabytes as a ratio of FedAvg's where that was run."""
    dense = next((row for row in rows if row["scheme"] == DENSE), None)
    ordered = sorted(rows, key=lambda row: (row["scheme"] != DENSE, list(STRATEGIES).index(row["scheme"]), row["rate"]))
    if dense is None:
        return ordered
    whole = dense["megabytes_up"] + dense["megabytes_down"]
    return [{**row, "ratio": (row["megabytes_up"] + row["megabytes_down"]) / whole} for row in ordered]


def show(rows: Sequence[Row]) -> None:
    table = Table("scheme", "rate", "accuracy", "best", "kept", "MB up", "MB down", "of FedAvg", "MB dense", "s")
    for row in rows:
        numbers = [f"{row[key]:.3f}" for key in ("accuracy", "best_accuracy", "density")]
        sizes = [f"{row[key]:.1f}" for key in ("megabytes_up", "megabytes_down")]
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else "-"
        last = [ratio, f"{row['megabytes_dense']:.1f}", f"{row['seconds']:.0f}"]
        table.add_row(row["scheme"], f"{row['rate']:.1f}", *numbers, *sizes, *last)
    Console().print(table)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--model", default="conv-2")
    parser.add_argument("--schemes", default=",".join(STRATEGIES))
    parser.add_argument("--rates", default="0.3,0.5,0.7")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the clients, a round")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="directory of finished rows")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    common = {
        "dataset": chosen.dataset,
        "model": chosen.model,
        "rounds": chosen.rounds,
        "fraction": chosen.fraction,
        "local_steps": chosen.steps,
        "batch_size": chosen.batch,
        "learning_rate": chosen.learning_rate,
        "momentum": chosen.momentum,
        "evaluate_every": chosen.evaluate_every,
        "seed": chosen.seed,
        "device": chosen.device,
    }
    rates = [float(rate) for rate in chosen.rates.split(",")]
    rows = []
    todo = cases(chosen.schemes.split(","), rates, common, chosen.clients)
    for row in measure_all(todo, chosen.jobs, chosen.cache):
        rows.append(row)
        what = f"{len(rows)}/{len(todo)} {row['scheme']} {row['rate']}"
        print(f"{what}: {row['accuracy']:.3f} in {row['seconds']:.0f} s", file=sys.stderr, flush=True)
    rows = in_order(rows)
    if chosen.json:
        machine = {"processors": os.cpu_count(), "platform": platform.platform(), "torch": torch.__version__}
        machine["accelerator"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        print(json.dumps({"settings": common, "clients": chosen.clients, "rows": rows, "machine": machine}))
    else:
        show(rows)


if __name__ == "__main__":
    main()
