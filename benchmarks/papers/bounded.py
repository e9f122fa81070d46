"""Leakage beside PriPrune's bound as rate, batch and rounds vary: the cells of P2, P5 and P10.

A cell is a federation under a scheme (``benchmarks.papers.inversion.global_model``) and then SGI on what its server
would see next: the undefended update of one local step on ``attacked`` images at a time, out of ``images`` test images
of the seed, which are the same for every batch size. ``tv`` is the weight of total variation, 0 where it is not named.
Labels are known. Scores are means over all images.

The bounds are ``privacy.ledger.bounds`` with the gradients of ``SAMPLE`` other test images (or the settings'
``sample``) at those weights, inside the mask: rank and log-determinant of their sample covariance. Its rank is at most
one less than there are images, so that bounds can be compared with each other, not with the true number of bits.

The positive control is dense, at batch 1 after ``START`` rounds: SGI must rebuild its images to ``PSNR_FLOOR``.
"""

import dataclasses
import statistics
from collections.abc import Iterable
from pathlib import Path

import torch

from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.views import seen, sender
from prunella.benchmarks.papers.inversion import DENSE, attack_settings, attacked_images, global_model, place
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import apply_mask, size
from prunella.core.types import PrivateBatch
from prunella.privacy.ledger.bounds import priprune_corrected, priprune_printed
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples, load_test, make_task
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
    values = torch.linalg.eigvalsh(gram / (count - 1))
    return values[values > values[-1] * ROUNDING]


def bounds(settings: Settings, task: Task, received: Received, images: Examples) -> dict[str, float]:
    """Eq. 6 as printed and corrected, in bits, at the cell's rate, batch and rounds."""
    module = task.build()
    chunks = list(per_example_gradients(module, received.params, received.buffers, images.x, images.y))
    columns = (torch.cat([(chunk[n] * received.mask[n]).flatten(1) for chunk in chunks]) for n in received.params)
    values = spectrum(columns)
    about = (settings["rate"], settings["attacked"], len(values), float(values.log2().sum()), settings["rounds"])
    return {"printed": priprune_printed(*about), "corrected": priprune_corrected(*about), "rank": float(len(values))}


def others(settings: Settings, seed: int, data: Path | None) -> Examples:
    """Test images that are not attacked."""
    test = load_test(place(settings["dataset"], data), None)
    if test is None:
        raise ValueError(f"{settings['dataset']} has no test examples")
    order = torch.randperm(len(test), generator=stream(seed, purpose="claim-images"))[settings["images"] :]
    order = order[: settings.get("sample", SAMPLE)]
    return Examples(test.x[order], test.y[order])


def leakage(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: SGI."""
    torch.set_num_threads(1)
    saved = global_model(settings, seed, data)
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    params = apply_mask({name: saved.tree[name] for name in saved.mask}, saved.mask)
    received = Received(params, saved.mask, {n: t for n, t in saved.tree.items() if n not in params})
    private, batch = attacked_images(settings, seed, data), settings["attacked"]
    one, rows = sender(task, received, "none", {}, private.x, batch), []
    for begin in range(0, len(private), batch):
        some = Examples(private.x[begin : begin + batch], private.y[begin : begin + batch])
        view = seen(one, some, lambda purpose: rehearsal(seed, purpose=f"claim-{purpose}")).view
        how = attack_settings("sgi", task.model, settings["iterations"])
        how = dataclasses.replace(how, tv=settings.get("tv", 0.0))
        rebuilt = reconstruct(view, task, how, stream(seed, round=begin, purpose="claim-attack"))
        rows.append(score(rebuilt, PrivateBatch(some.x, some.y)))
    return {
        "sgi": {
            "nmi": statistics.fmean(row.nmi.mean for row in rows),
            "psnr": statistics.fmean(row.psnr.mean for row in rows),
            "nmi_random": statistics.fmean(row.nmi.random for row in rows),
            "parameters": float(size(params)),
            **bounds(settings, task, received, others(settings, seed, data)),
        }
    }


def control(settings: Settings) -> Settings:
    return {**settings, "scheme": DENSE, "rate": 0.0, "attacked": 1, "rounds": START}


def works(found: Found) -> bool:
    return found["sgi"]["psnr"] >= PSNR_FLOOR


BOUNDED = Measure("bounded", leakage, control=control, works=works)
