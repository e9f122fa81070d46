"""Label inference: which classes a batch had, from the last layer of its update and nothing else.

Threat model: an honest-but-curious server that knows the model and the number of images; the learning rate helps. Which
diagnoses a hospital has is private even where no image can be rebuilt, and it takes no optimisation to learn it.
``attacks.engine.label_inference`` has the rules (iDLG for one image; expected counts, or LLG's impact, for a batch).

The answer is a ``Reconstruction`` whose images are flat and grey, so that it can be sent, scored and stored as any
other: what counts is its label accuracy, and its PSNR is that of knowing nothing. The objective is 1 - cosine of the
evidence r and p - counts / N; 0 where the labels explain r.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator
from torch.nn.functional import cosine_similarity

from prunella.attacks.engine.label_inference import count_by_impact, count_by_probability, evidence_of
from prunella.attacks.engine.matching import target_of
from prunella.core.config import Count
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

GREY = 0.5


@dataclass(frozen=True)
class Label:
    """Which classes a batch had, from the last layer alone."""

    #: probability needs the learning rate; auto takes it where that is known, and the sign rule for one image
    rule: Literal["auto", "probability", "impact"] = "auto"
    max_images: Count = 1024  #: most images that are counted


def reconstruct(view: ServerView, task: Task, attack: Label, generator: Generator) -> Reconstruction:
    """Labels [N], ascending, and flat images [N, C, H, W]."""
    target = target_of(view, task.build(), False, attack.max_images)
    images, (evidence, probabilities) = target.plan.images, evidence_of(target, task, generator)
    rule = attack.rule if attack.rule != "auto" else "impact" if view.learning_rate is None else "probability"
    if images == 1:
        labels = evidence.argmin().reshape(1).cpu()
    elif rule == "probability":
        labels = count_by_probability(evidence, probabilities, images)
    else:
        labels = count_by_impact(evidence, images)
    counts = torch.bincount(labels, minlength=task.classes).to(evidence)
    misfit = 1 - float(cosine_similarity(evidence, probabilities - counts / images, dim=0))
    flat = torch.tensor(GREY, device=target.flat.device).expand(images, *task.shape)  # one number, however many
    return Reconstruction(flat, labels.to(target.flat.device), misfit, 1)
