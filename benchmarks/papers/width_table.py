"""Clients of unequal strength: what the weak ones' sub-models add (docs/schemes.md).

A cell is one whole run in process on the digits, eight clients of a Dirichlet partition with alpha 1, all in every
round, no defense, no audits. ``whole``: all train the whole model. ``mixed``: two do, three train half of every layer's
channels and three a quarter (``pruning.widths``). ``strong``: the two alone, and what the six hold is not learned from,
which is what a federation does that asks more than they can. At rate 0 the scheme is FedAvg, else a random mask.
Accuracy is of the global model on the server's test images, after the last round; megabytes are those of coded models
and updates of the whole run, both ways, headers included.
"""

from pathlib import Path

from prunella.benchmarks.engine.claim import Found, Measure, Plot, Settings, declared
from prunella.benchmarks.engine.inprocess import RUN, accuracies, failures, ran
from prunella.benchmarks.engine.views import NONE

WEAK = {2: 0.5, 3: 0.5, 4: 0.5, 5: 0.25, 6: 0.25, 7: 0.25}
STRENGTHS = {"whole": {}, "mixed": WEAK, "strong": dict.fromkeys(WEAK, 0.0)}
PAGE: Settings = {"dataset": "digits", "model": "cnn", "clients": 8, "rounds": 15, "local_steps": 8, "batch_size": 16}


def run(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: the rate."""
    own = {key: value for key, value in settings.items() if key not in (*RUN, "clients", "dataset", "strength")}
    own |= {"strategy": "random" if settings["rate"] else "fedavg", "defenses": NONE, "tested": 0}
    own |= {"evaluate_every": settings["rounds"], "widths": STRENGTHS[settings["strength"]]}
    with ran(settings, seed, data, **own) as done:
        accuracy, failed = list(accuracies(done).values()), failures(done)
    sent = sum(done.counters[f"wire_bytes_total|{way}"] for way in ("up", "down")) / 1e6
    return {str(settings["rate"]): {"accuracy": accuracy[-1], "megabytes": sent, "failures": failed}}


WIDTH_TABLE = declared(
    """widths | Prunella | docs/schemes.md | accuracy and megabytes where weak clients train sub-models, all the whole
    model, or the strong ones alone
    """,
    Measure("widths", run),
    "strength: rate",
    "accuracy 3 accuracy; megabytes 1 MB both ways; failures 0 failed replies",
    Plot(("accuracy",)),
    small=({**PAGE, "strength": strength, "rate": rate} for rate in (0.0, 0.5) for strength in STRENGTHS),
)
