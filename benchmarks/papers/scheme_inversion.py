"""What an attack rebuilds under a pruning scheme, and PriPrune's bound beside it: the cells of P1 to P5 and P10.

A cell is a federation (in process, real client and server code) under one scheme and rate, and then the attacks on what
its server would see next: the undefended update of one local step on test images of the seed, inside the scheme's mask,
from the global weights after ``rounds`` rounds. Scores are means over all images; none is left out, and an attack that
diverges ends the cell with an error, since a failure is not a score. Attacks know the label, which most gradients tell,
and on sigmoid networks use the Euclidean distance and L-BFGS, elsewhere what they choose themselves. NMI is of 16 grey
levels.

``LEAKAGE``: GI and SGI at batch 1. They share everything but the support: GI takes what it misses for zero, SGI
compares only where values arrived, which it reads off the update itself. The positive control is the dense cell, FedAvg
at the same rounds, seed and images. ``accuracy`` is that of the global model on at most a thousand test images.

``BOUNDED``: SGI on ``attacked`` images at a time, out of ``images`` that are the same for every batch size. ``tv`` is
the weight of total variation, 0 where it is not named. The bounds are ``privacy.ledger.bounds`` with the gradients of
``SAMPLE`` other test images (or the settings' ``sample``) at those weights, inside the mask: rank and log-determinant
of their sample covariance. Its rank is at most one less than there are images, so that bounds can be compared with each
other, not with the true number of bits. The positive control is dense, at batch 1 after ``START`` rounds.
"""

import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from prunella.attacks.score.leakage import Leakage, psnr, score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.images import chosen_images, means, part, task_of
from prunella.benchmarks.engine.inprocess import accuracies, ran
from prunella.benchmarks.engine.views import NONE, answer, draws, received_of, seen, sender
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask, density, size
from prunella.core.types import PrivateBatch
from prunella.privacy.ledger.bounds import priprune_corrected, priprune_printed
from prunella.server.checkpoint import Checkpoint, load
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples
from prunella.tasks.per_example import per_example_gradients
from prunella.tasks.task import Task

ARMS = {"gi": "ig", "sgi": "sgi"}
DENSE = "fedavg"
SAMPLE, START = 48, 2
ROUNDING = 1e-10  # eigenvalues below this part of the largest are what decomposition leaves of a zero


def global_model(settings: Settings, seed: int, data: Path | None) -> tuple[Checkpoint, float]:
    """What a federation under the scheme holds after its last round, which alone is evaluated, and its accuracy."""
    own = {"strategy": settings["scheme"], "rate": settings["rate"], "defenses": NONE}
    with ran(settings, seed, data, evaluate_every=settings["rounds"], **own) as done:
        saved, accuracy = load(done.folder / "checkpoint"), list(accuracies(done).values())
    if saved is None:
        raise RuntimeError(f"the federation of {settings['scheme']} left no checkpoint")
    return saved, accuracy[-1]


def scores(
    settings: Settings,
    seed: int,
    task: Task,
    received: Received,
    private: Examples,
    name: str,
    batch: int,
    **asked: Any,
) -> list[Leakage]:
    """An attack on every batch of the images, undefended, from what the client received."""
    client, rows = sender(task, received, NONE, {}, private.x, batch), []
    for begin in range(0, len(private), batch):
        some, draw = part(private, begin, batch), stream(seed, round=begin, purpose="claim-attack")
        found = answer(name, seen(client, some, draws(seed)).view, task, settings["iterations"], draw, **asked)
        rows.append(score(found, PrivateBatch(some.x, some.y)))
    return rows


def leakage(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: what GI and SGI rebuild under one scheme and rate."""
    (saved, accuracy), task = global_model(settings, seed, data), task_of(settings, data)
    private = chosen_images(settings["dataset"], data, seed, settings["images"])
    found: Found = {}
    flat = statistics.fmean(psnr(private.x, private.x.mean((1, 2, 3), keepdim=True).expand_as(private.x)))
    for arm, name in ARMS.items():
        rows = scores(settings, seed, task, received_of(saved), private, name, 1)
        worst, kept = max(row.psnr.mean for row in rows), density(saved.mask)
        found[arm] = {**means(rows, "psnr", "nmi", "nmi_random"), "psnr_worst": worst, "psnr_other": flat}
        found[arm] |= {"kept": kept, "accuracy": accuracy}
    return found


def spectrum(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Eigenvalues above zero of the sample covariance of [N, D] gradients that come in columns, float64."""
    gram, count = torch.zeros(()), 0
    for columns in gradients:  # one at a time: a covariance of millions of weights is never there whole
        centred = columns.double() - columns.double().mean(0)
        gram, count = gram + centred @ centred.T, len(columns)
    values: torch.Tensor = torch.linalg.eigvalsh(gram / (count - 1))
    return values[values > values[-1] * ROUNDING]


def bounds(settings: Settings, task: Task, received: Received, images: Examples) -> dict[str, float]:
    """Eq. 6 as printed and corrected, in bits, at the cell's rate, batch and rounds."""
    chunks = list(per_example_gradients(task.build(), received.params, received.buffers, images.x, images.y))
    columns = (torch.cat([(chunk[n] * received.mask[n]).flatten(1) for chunk in chunks]) for n in received.params)
    values = spectrum(columns)
    about = (settings["rate"], settings["attacked"], len(values), float(values.log2().sum()), settings["rounds"])
    return {"printed": priprune_printed(*about), "corrected": priprune_corrected(*about), "rank": float(len(values))}


def bounded_leakage(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: SGI, beside the bound."""
    task, received = task_of(settings, data), received_of(global_model(settings, seed, data)[0])
    received = replace(received, params=apply_mask(received.params, received.mask))
    many, tv = settings["images"], settings.get("tv", 0.0)
    test = chosen_images(settings["dataset"], data, seed, many + settings.get("sample", SAMPLE))
    private, others = part(test, 0, many), part(test, many, len(test))
    rows = scores(settings, seed, task, received, private, "sgi", settings["attacked"], tv=tv)
    found = {**means(rows, "nmi", "psnr", "nmi_random"), "parameters": float(size(received.params))}
    return {"sgi": {**found, **bounds(settings, task, received, others)}}


LEAKAGE = Measure("leakage", leakage, version=2, control={"scheme": DENSE, "rate": 0.0})
BOUNDED = Measure("bounded", bounded_leakage, control={**(LEAKAGE.control or {}), "attacked": 1, "rounds": START})
