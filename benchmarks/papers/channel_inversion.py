"""What gradient inversion rebuilds of images with a direction left out (C7) or from the gradient of a batch (C6), and
what a channel costs (C5). Images that went through a channel (C3) are those of ``channel_denoised``.

``MEASURE`` (CHN Fig. 8): a cell trains on images without their component along one direction of the client's own
covariance (``removed``), 0 the one of the largest eigenvalue. The first ``images`` images of one of ``clients`` clients
with the same distribution are attacked, each from the update of one step at batch 1, at the model's initial weights,
where attacks are strongest. Scores are means over all images, against the images as they were; an attack that diverges
ends the cell with an error. The attack knows the label, and that pixels lie in [0, 1]. It is IG with the Euclidean
distance and L-BFGS on sigmoid networks, with what IG chooses itself elsewhere. The positive control is the cell with
all directions.

``BATCHED`` (CHN Fig. 6): a cell is one batch size and one defense of the gradient. A client takes one step on ``batch``
of its images; IG, which takes the gradient for that of a single image with a soft label, rebuilds one image, and its
error is against the *mean* of the batch: the paper's way to keep the problem equally hard for every batch size
(Appendix D). ``images`` such batches are attacked and averaged over. mse_flat is the error of a flat grey image, which
comes nearer to a mean the more images it is of: read ``mse`` beside it. The positive control is no defense at batch 1.

none        the mean gradient as it is
dp-sgd      every example clipped to 1, noise multiplier 1.3, both over the batch size, as printed
gaussian    noise of one deviation on every coordinate of the mean gradient, whatever the batch size

``TIMED`` (CHN Table 2): ratios over plain SGD of local training on the same batches, in processor time of one thread,
arms in turns, medians over turns (``benchmarks.speed.defenses``). ``dp-sgd (ours)`` is this project's, on models
without batch norm; ``dp-sgd (opacus)`` the library's, with group norm in its place. Fitting a channel, once per client,
is not in the ratio: its seconds are a column.
"""

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.leakage import Leakage, psnr, score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.images import client_images, means, part, task_of
from prunella.benchmarks.engine.views import NONE, Sender, answer, attack_settings, draws, initial_sender, seen
from prunella.benchmarks.speed.defenses import epochs
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.privacy.channel import centre
from prunella.tasks.data import Examples, Partition

SERIES, GREY = "ig", 0.5
TOLERANCE = 1e-9  # as patient as DLG: L-BFGS on a sigmoid network still gains 20 dB below IG's tolerance
CHANNELS = ("channel-natural", "channel-white", "channel-personalized")
OPACUS, OURS = "dp-sgd (opacus)", "dp-sgd (ours)"
NAMES = {"opacus": OPACUS, "dp-sgd": OURS}


def without_direction(images: Tensor, number: int) -> tuple[Tensor, float]:
    """Images [N, C, H, W] less their component along a principal direction of theirs, and its eigenvalue.

    0 is the direction of the largest. The mean stays, as a constant that tells nothing of one image.
    """
    centred = centre(images)
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    along = torch.outer(centred @ directions[number], directions[number]).view(images.shape)
    return images - along.to(images.dtype), float(singular[number] ** 2 / (len(centred) - 1))


def client_of(
    settings: Settings, seed: int, data: Path | None, defense: str, raw: dict[str, Any], batch: int
) -> tuple[Examples, Sender]:
    """What a client has, and the client behind a defense."""
    own = client_images(settings["dataset"], data, Partition("iid", clients=settings["clients"], seed=seed))
    return own, initial_sender(task_of(settings, data), seed, defense, raw, own.x, batch)


def rebuilt(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell of C7, as one series: the attack."""
    own, one = client_of(settings, seed, data, NONE, {}, 1)
    trained, value = own.x, 0.0
    if settings["removed"] != NONE:
        trained, value = without_direction(own.x, settings["removed"])
    rows, shown = list[Leakage](), list[float]()
    for number in range(settings["images"]):
        truth, private = own.x[number : number + 1], part(Examples(trained, own.y), number)
        got, draw = seen(one, private, draws(seed, number)), stream(seed, round=number, purpose="claim-attack")
        found = answer(SERIES, got.view, one.task, settings["iterations"], draw, tolerance=TOLERANCE)
        rows.append(score(found, PrivateBatch(truth, private.y)))
        shown.append(float((got.shown.x - truth).square().mean()))
    scores = {**means(rows, "mse", "psnr", "ssim"), "noise": statistics.fmean(shown)}
    return {SERIES: {**scores, "eigenvalue": value}}


def rebuilt_mean(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell of C6, as one series: the attack."""
    batch = settings["batch"]
    own, one = client_of(settings, seed, data, settings["defense"], settings["options"], batch)
    how = attack_settings(SERIES, one.task.model, settings["iterations"], tolerance=TOLERANCE, labels="optimise")
    rows = []
    for number in range(settings["images"]):
        chosen = torch.randperm(len(own), generator=stream(seed, round=number, purpose="claim-images"))[:batch]
        private = Examples(own.x[chosen], own.y[chosen])
        view = seen(one, private, draws(seed, number)).view
        single = dataclasses.replace(view, num_examples=1, batch_size=1, labels=None)
        found = reconstruct(single, one.task, how, stream(seed, round=number, purpose="claim-attack")).x.cpu()
        mean = private.x.mean(dim=0, keepdim=True)
        errors = [float((other - mean).square().mean()) for other in (found, torch.full_like(mean, GREY))]
        rows.append((*errors, psnr(mean, found)[0]))
    return {SERIES: dict(zip(("mse", "mse_flat", "psnr"), map(statistics.fmean, zip(*rows, strict=True)), strict=True))}


def training_time(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell of C5: every arm's ratio over plain SGD, milliseconds a step, and the seconds of fitting."""
    done = epochs(settings["model"], settings["steps"], settings["repeat"], CHANNELS, seed)
    return {
        NAMES.get(arm, arm): {
            "ratio": cost["ratio"],
            "milliseconds": 1000 * cost["seconds"] / settings["steps"],
            "fit_seconds": done["fit_seconds"].get(arm, 0.0),
        }
        for arm, cost in done["arms"].items()
    }


MEASURE = Measure("channel-inversion", rebuilt, control={"removed": NONE})
BATCHED = Measure("batch-inversion", rebuilt_mean, control={"defense": NONE, "options": {}, "batch": 1})
TIMED = Measure("channel-time", training_time, version=2)
