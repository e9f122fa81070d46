"""Leakage beside PriPrune's bound as rate, batch and rounds vary: the cells of P2, P5 and P10.

A cell is a federation under a scheme (``scheme_inversion.global_model``) and then SGI on what its server would see
next: the undefended update of one local step on ``attacked`` images at a time, out of ``images`` test images
of the seed, which are the same for every batch size. ``tv`` is the weight of total variation, 0 where it is not named.
Labels are known. Scores are means over all images.

The bounds are ``privacy.ledger.bounds`` with the gradients of ``SAMPLE`` other test images (or the settings'
``sample``) at those weights, inside the mask: rank and log-determinant of their sample covariance. Its rank is at most
one less than there are images, so that bounds can be compared with each other, not with the true number of bits.

The positive control is dense, at batch 1 after ``START`` rounds: SGI must rebuild its images to ``PSNR_FLOOR``.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.images import chosen_images, means, part, place
from prunella.benchmarks.engine.views import NONE, attack_settings, draws, received_of, seen, sender
from prunella.benchmarks.papers.scheme_inversion import DENSE, global_model
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask, size
from prunella.core.types import PrivateBatch
from prunella.privacy.ledger.bounds import priprune_corrected, priprune_printed
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples, make_task
from prunella.tasks.per_example import per_example_gradients
from prunella.tasks.task import Task

SAMPLE = 48
START = 2
ROUNDING = 1e-10  # eigenvalues below this part of the largest are what decomposition leaves of a zero


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
    module = task.build()
    chunks = list(per_example_gradients(module, received.params, received.buffers, images.x, images.y))
    columns = (torch.cat([(chunk[n] * received.mask[n]).flatten(1) for chunk in chunks]) for n in received.params)
    values = spectrum(columns)
    about = (settings["rate"], settings["attacked"], len(values), float(values.log2().sum()), settings["rounds"])
    return {"printed": priprune_printed(*about), "corrected": priprune_corrected(*about), "rank": float(len(values))}


def leakage(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: SGI."""
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    received = received_of(global_model(settings, seed, data))
    received = replace(received, params=apply_mask(received.params, received.mask))
    many, batch = settings["images"], settings["attacked"]
    test = chosen_images(settings["dataset"], data, seed, many + settings.get("sample", SAMPLE))
    private, others = part(test, 0, many), part(test, many, len(test))
    one, rows = sender(task, received, NONE, {}, private.x, batch), []
    how = attack_settings("sgi", task.model, settings["iterations"], tv=settings.get("tv", 0.0))
    for begin in range(0, len(private), batch):
        some = part(private, begin, batch)
        view = seen(one, some, draws(seed)).view
        rebuilt = reconstruct(view, task, how, stream(seed, round=begin, purpose="claim-attack"))
        rows.append(score(rebuilt, PrivateBatch(some.x, some.y)))
    return {
        "sgi": {
            **means(rows, "nmi", "psnr", "nmi_random"),
            "parameters": float(size(received.params)),
            **bounds(settings, task, received, others),
        }
    }


BOUNDED = Measure("bounded", leakage, control={"scheme": DENSE, "rate": 0.0, "attacked": 1, "rounds": START})
