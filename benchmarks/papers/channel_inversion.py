"""What gradient inversion rebuilds of images that went through a channel (CHN Fig. 14): the cells of C3 and C7.

A cell is one channel at one kappa, fitted on one of ``clients`` clients with the same distribution; its first
``images`` images are attacked, each from the update of one step at batch 1, at the model's initial weights, where
attacks are strongest. Scores are means over all images, against the client's own images and not the noisy ones the
model was shown; an attack that diverges ends the cell with an error. The attack knows the label, and that pixels lie in
[0, 1]. It is IG with the Euclidean distance and L-BFGS on sigmoid networks, with what IG chooses itself elsewhere.

A cell with ``removed`` (C7, CHN Fig. 8) trains on images without their component along that direction of the client's
own covariance, 0 the one of the largest eigenvalue; scores are against the images as they were.

The positive control is the cell without a channel and with all directions: IG must rebuild it to ``PSNR_FLOOR`` in the
mean.
"""

import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.images import client_images, means, part, place
from prunella.benchmarks.engine.views import NONE, attack_settings, draws, initial_sender, seen
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.privacy.channel import centre
from prunella.tasks.data import Examples, Partition, make_task

SERIES = "ig"


def without_direction(images: Tensor, number: int) -> tuple[Tensor, float]:
    """Images [N, C, H, W] less their component along a principal direction of theirs, and its eigenvalue.

    0 is the direction of the largest. The mean stays, as a constant that tells nothing of one image.
    """
    centred = centre(images)
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    along = torch.outer(centred @ directions[number], directions[number]).view(images.shape)
    return images - along.to(images.dtype), float(singular[number] ** 2 / (len(centred) - 1))


def rebuilt(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: the attack."""
    channel = settings["channel"]
    own = client_images(settings["dataset"], data, Partition("iid", clients=settings["clients"], seed=seed))
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    defense = NONE if channel == NONE else f"channel-{channel}"
    raw = {} if channel == NONE else {f"{defense}.kappa": float(settings["kappa"])}
    one = initial_sender(task, seed, defense, raw, own.x, 1)
    trained, value = own.x, 0.0
    if settings.get("removed", NONE) != NONE:
        trained, value = without_direction(own.x, settings["removed"])
    how, rows, shown = patient(task.model, settings["iterations"]), [], []
    for number in range(settings["images"]):
        truth, private = own.x[number : number + 1], part(Examples(trained, own.y), number)
        got = seen(one, private, draws(seed, number))
        found = reconstruct(got.view, task, how, stream(seed, round=number, purpose="claim-attack"))
        rows.append(score(found, PrivateBatch(truth, private.y)))
        shown.append(float((got.shown.x - truth).square().mean()))
    return {
        SERIES: {
            **means(rows, "mse", "psnr", "ssim", "mse_other"),
            "mse_least": min(row.mse.mean for row in rows),
            "noise": statistics.fmean(shown),
            **({"eigenvalue": value} if "removed" in settings else {}),
        }
    }


def patient(model: str, iterations: int) -> Any:
    """IG as elsewhere, and as patient as DLG: L-BFGS on a sigmoid network still gains 20 dB below IG's tolerance."""
    return attack_settings(SERIES, model, iterations, tolerance=1e-9)


MEASURE = Measure("channel-inversion", rebuilt, control={"channel": NONE, "kappa": NONE, "removed": NONE})
