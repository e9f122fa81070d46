"""Accuracy and megabytes of every pruning scheme beside dense FedAvg (docs/schemes.md).

A cell is one whole run in process: Dirichlet partition (alpha 1 unless told), no defense, no audits, the same seed,
model, steps and learning rate for all. Accuracy is of the global model on the server's test examples, in the last round
and the best; LotteryFL's is of its clients' own models on what each holds out, since that is what it trains. Megabytes
(10^6 bytes) are those of coded models and updates over the whole run, headers included, beside the same tensors dense
in float32. Schemes that prune on public examples (SNIP, GraSP, Fed-LTP) are tested on the three quarters of the test
examples that are not public.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Settings, declared
from prunella.benchmarks.engine.inprocess import RUN, accuracies, failures, ran
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.scheme_inversion import DENSE
from prunella.strategies import STRATEGIES

RATES = (0.3, 0.5, 0.7)
PAGE: Settings = {"dataset": "mnist", "model": "conv-2", "clients": 10, "fraction": 0.5, "rounds": 20}
PAGE |= {"local_steps": 5, "batch_size": 16, "learning_rate": 0.1, "momentum": 0.9, "evaluate_every": 10}
PAGE |= {"device": "cpu"}
# FedPruning's command for its results (its README): 100 clients, 10 a round, five passes each in batches of 64,
# Dirichlet(0.5), a move of the mask every ten rounds in the first three fifths; there 500 rounds of ResNet18. Here a
# client has 200 of 20 000 images.
MANY: Settings = {"dataset": "cifar10", "model": "cnn", "clients": 100, "fraction": 0.1, "alpha": 0.5, "rounds": 60}
# Of 0.01, 0.02, 0.03, 0.05 and 0.1, the rate at which a dense run of another seed (100) had learnt most in 15 rounds.
MANY |= {"local_steps": 16, "batch_size": 64, "learning_rate": 0.02, "momentum": 0.0, "evaluate_every": 10}
MANY |= {"prunefl__adjust_interval": 10, "feddst__adjust_interval": 10, "feddst__end_round": 36, "feddst__alpha": 0.2}
MANY_FULL: Settings = {"model": "resnet18", "rounds": 500, "local_steps": 40, "feddst__end_round": 300, "device": None}


def run(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: the rate."""
    own = {key: value for key, value in settings.items() if key not in (*RUN, "clients", "dataset", "scheme")}
    own |= {"strategy": settings["scheme"], "defenses": NONE, "tested": 0}
    own |= {"evaluation": "clients"} if settings["scheme"] == "lotteryfl" else {}
    with ran(settings, seed, data, **own) as done:
        accuracy, failed = list(accuracies(done).values()), failures(done)
        kept = [line["value"] for line in done.store.metrics() if line["metric"] == "mask_density_ratio"]
    sent = {name: value / 1e6 for name, value in done.counters.items() if name.startswith("wire_")}
    up, down = (sent[f"wire_bytes_total|{way}"] for way in ("up", "down"))
    found = {"accuracy": accuracy[-1], "best": max(accuracy), "density": kept[-1], "failures": failed}
    found |= {"up": up, "down": down, "megabytes": up + down}
    found["dense"] = sent["wire_dense_bytes_total|up"] + sent["wire_dense_bytes_total|down"]
    return {str(settings["rate"]): found}


def table(
    schemes: Sequence[str] = tuple(STRATEGIES),
    rates: Sequence[float] = RATES,
    seeds: tuple[int, ...] = (0,),
    name: str = "schemes",
    paper: Settings | None = None,
    says: str = "accuracy and megabytes of every pruning scheme beside dense FedAvg",
    **changed: Any,
) -> Claim:
    """A table of these schemes and rates, FedAvg once; ``changed`` are settings other than the page's, ``paper`` those
    that are others at full size, if there is one; None leaves a setting to the command line."""
    cells = [(DENSE, 0.0)] if DENSE in schemes else []
    cells += [(scheme, rate) for scheme in schemes if scheme != DENSE for rate in rates]

    def sweep(**changed: Any) -> list[Settings]:
        same = {key: value for key, value in {**PAGE, **changed}.items() if value is not None}
        return [{**same, "scheme": scheme, "rate": rate} for scheme, rate in cells]

    return declared(
        f"{name} | Prunella | docs/schemes.md | {says}",
        Measure("schemes", run, version=2),  # 2: PruneFL's mean counts gradients that are zero
        "scheme: rate",
        "accuracy 3 accuracy; best 3 best accuracy; density 3 kept; up 0 MB up; down 0 MB down; "
        "megabytes 0 MB both ways; dense 0 MB dense",
        Plot(("accuracy",), x=1, x_name="megabytes sent, both ways, all rounds", over="megabytes"),
        small=sweep(**changed),
        paper=sweep(**{**changed, **paper}) if paper else (),
        seeds=seeds,
    )


SCHEME_TABLE = table()
FEW_OF_MANY = "PruneFL and FedDST beside dense FedAvg, where 10 of 100 clients take part in a round"
MANY_CLIENTS = table(
    (DENSE, "prunefl", "feddst"), (0.5, 0.9), (0, 1, 2), "many-clients", MANY_FULL, FEW_OF_MANY, **MANY
)
