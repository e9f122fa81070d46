"""Federations whose clients have an epsilon, and those of Fed-LTP beside them: the cells of L1 and L2.

A cell is one method and partition, in process, real client and server code: DP-Fed and Fed-SPA are FedAvg under
``dp-fed`` and ``fed-spa``, Fed-LTP prunes on public examples first and trains under ``fed-ltp-client``. Public examples
are a quarter of the test set; accuracy is on at most a thousand of the others (``benchmarks.leakage.data_kept``).

best      accuracy of the global model, the largest over rounds (what the paper's "Acc" is), ``last`` after the last
mib       the coded messages of all clients and rounds, both ways, in MiB (2^20), over the clients: for one client
epsilon   the ledger's: the largest of any client, by the accountant named in the settings, at ``delta``
zcdp      the same charges without amplification by sampling, as zCDP composes them
"""

import tempfile
from pathlib import Path

import torch

from benchmarks.claims.claim import Found, Settings
from benchmarks.claims.inversion import place
from benchmarks.inprocess import run_in_process
from benchmarks.leakage import data_kept
from client.state import ClientStore
from privacy.accounting import epsilon

MIB = 2**20
METHODS: dict[str, dict[str, object]] = {
    "dp-fed": {"strategy": "fedavg", "defenses": "dp-fed"},
    "fed-spa, p = 1": {"strategy": "fedavg", "defenses": "fed-spa", "fed_spa__keep": 1.0},
    "fed-spa, p = 0.4": {"strategy": "fedavg", "defenses": "fed-spa", "fed_spa__keep": 0.4},
    "fed-ltp, one-shot": {"strategy": "fed-ltp-one-shot", "rate": 0.452, "defenses": "fed-ltp-client"},
    "fed-ltp, iterative": {"strategy": "fed-ltp-iterative", "rate": 0.262, "defenses": "fed-ltp-client"},
}


def run_settings(settings: Settings, seed: int, data: Path | None) -> dict[str, object]:
    """The run's settings; clip and noise are those of whichever defense the method has."""
    chosen = METHODS[settings["method"]]
    section = str(chosen["defenses"]).replace("-", "_")
    kept = ("model", "partition", "fraction", "rounds", "local_steps", "batch_size", "learning_rate", "momentum")
    return {
        **{key: settings[key] for key in kept},
        **chosen,
        "dataset": place(settings["dataset"], data),
        "seed": seed,
        "audit_every": 0,
        "privacy__delta": settings["delta"],
        f"{section}__clip": settings["clip"],
        f"{section}__noise_multiplier": settings["noise"],
    }


def private_training(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: the partition."""
    torch.set_num_threads(1)
    clients = settings["clients"]
    with tempfile.TemporaryDirectory() as folder, data_kept():
        done = run_in_process(Path(folder), clients, **run_settings(settings, seed, data))
        stores = [ClientStore(Path(folder) / "nodes" / str(client), "run") for client in range(clients)]
        zcdp = max(epsilon(store.spent().charges, settings["delta"], "zcdp") for store in stores)
        accuracy = [line["value"] for line in done.store.metrics() if line["metric"] == "accuracy_ratio"]
        spent = [float(line["epsilon"]) for line in done.ledgers.values() if "epsilon" in line]
    failed = sum(v for name, v in done.counters.items() if name.startswith("client_failures_total"))
    if failed or len(spent) != len(done.ledgers):
        raise RuntimeError(f"{settings['method']}: {failed:.0f} replies failed, {len(spent)} clients have an epsilon")
    sent = done.counters["wire_bytes_total|up"] + done.counters["wire_bytes_total|down"]
    return {
        str(settings["partition"]): {
            "best": max(accuracy),
            "last": accuracy[-1],
            "mib": sent / MIB / clients,
            "epsilon": max(spent),
            "zcdp": zcdp,
        }
    }
