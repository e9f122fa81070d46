"""One image rebuilt from the gradient of a batch (CHN Fig. 6): the cells of C6.

A cell is one batch size and one defense of the gradient. A client of ``clients`` takes one step on ``batch`` of its
images from the model's initial weights; IG, which takes the gradient for that of a single image with a soft label,
rebuilds one image, and its error is against the *mean* of the batch: the paper's way to keep the problem equally hard
for every batch size (Appendix D). ``images`` such batches are attacked and averaged over.

none        the mean gradient as it is
dp-sgd      every example clipped to 1, noise multiplier 1.3, both over the batch size, as printed
gaussian    noise of one deviation on every coordinate of the mean gradient, whatever the batch size

mse_flat is the error of a flat grey image, which comes nearer to a mean the more images it is of: read ``mse`` beside
it. The positive control is no defense at batch 1: IG must rebuild the image to ``PSNR_FLOOR`` in the mean.
"""

import dataclasses
import statistics
from pathlib import Path

import torch

from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.images import client_images, place
from prunella.benchmarks.engine.views import NONE, draws, initial_sender, seen
from prunella.benchmarks.papers.channel_inversion import SERIES, patient
from prunella.core.randomness import stream
from prunella.tasks.data import Examples, Partition, make_task

GREY = 0.5


def rebuilt_mean(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: the attack."""
    batch = settings["batch"]
    own = client_images(settings["dataset"], data, Partition("iid", clients=settings["clients"], seed=seed))
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    one = initial_sender(task, seed, settings["defense"], settings["options"], own.x, batch)
    how = dataclasses.replace(patient(task.model, settings["iterations"]), labels="optimise")
    errors, flats, ratios = [], [], []
    for number in range(settings["images"]):
        rows = torch.randperm(len(own), generator=stream(seed, round=number, purpose="claim-images"))[:batch]
        private = Examples(own.x[rows], own.y[rows])
        view = seen(one, private, draws(seed, number)).view
        single = dataclasses.replace(view, num_examples=1, batch_size=1, labels=None)
        found = reconstruct(single, task, how, stream(seed, round=number, purpose="claim-attack"))
        mean = private.x.mean(dim=0, keepdim=True)
        errors.append(float((found.x - mean).square().mean()))
        flats.append(float((mean - GREY).square().mean()))
        ratios.append(psnr(mean, found.x)[0])
    return {
        SERIES: {
            "mse": statistics.fmean(errors),
            "mse_flat": statistics.fmean(flats),
            "psnr": statistics.fmean(ratios),
        }
    }


BATCHED = Measure("batch-inversion", rebuilt_mean, control={"defense": NONE, "options": {}, "batch": 1})
