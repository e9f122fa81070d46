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

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.views import seen, sender
from prunella.benchmarks.papers.inversion import attack_settings, place
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch
from prunella.privacy.channel import centre
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples, Partition, load_client, make_task
from prunella.tasks.task import initial

NONE = "none"
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
    torch.set_num_threads(1)
    name, channel = settings["dataset"], settings["channel"]
    root = data / name if data is not None and (data / name).is_dir() else None
    own = load_client(name, Partition("iid", clients=settings["clients"], seed=seed), 0, root)
    task = make_task(settings["model"], place(name, data), None)
    params, buffers = initial(task, seed)
    defense = NONE if channel == NONE else f"channel-{channel}"
    raw = {} if channel == NONE else {f"{defense}.kappa": float(settings["kappa"])}
    one = sender(task, Received(params, full_mask(params), buffers), defense, raw, own.x, 1)
    trained, value = own.x, 0.0
    if settings.get("removed", NONE) != NONE:
        trained, value = without_direction(own.x, settings["removed"])
    how, rows, shown = strong(task.model, settings["iterations"]), [], []
    for number in range(settings["images"]):
        truth = own.x[number : number + 1]
        private = Examples(trained[number : number + 1], own.y[number : number + 1])
        got = seen(one, private, lambda purpose, n=number: rehearsal(seed, round=n, purpose=f"claim-{purpose}"))  # type: ignore[misc]
        found = reconstruct(got.view, task, how, stream(seed, round=number, purpose="claim-attack"))
        rows.append(score(found, PrivateBatch(truth, private.y)))
        shown.append(float((got.shown.x - truth).square().mean()))
    return {
        SERIES: {
            "mse": statistics.fmean(row.mse.mean for row in rows),
            "mse_least": min(row.mse.mean for row in rows),
            "psnr": statistics.fmean(row.psnr.mean for row in rows),
            "ssim": statistics.fmean(row.ssim.mean for row in rows),
            "mse_other": statistics.fmean(row.mse.other for row in rows),
            "noise": statistics.fmean(shown),
            **({"eigenvalue": value} if "removed" in settings else {}),
        }
    }


def strong(model: str, iterations: int) -> Any:
    """IG as elsewhere, and as patient as DLG: L-BFGS on a sigmoid network still gains 20 dB below IG's tolerance."""
    return dataclasses.replace(attack_settings("gi", model, iterations), tolerance=1e-9)


def control(settings: Settings) -> Settings:
    whole = {"removed": NONE} if "removed" in settings else {}
    return {**settings, "channel": NONE, "kappa": NONE, **whole}


def works(found: Found) -> bool:
    """IG rebuilds the images that nothing was done to."""
    return found[SERIES]["psnr"] >= PSNR_FLOOR


MEASURE = Measure("channel-inversion", rebuilt, control=control, works=works)
