"""Searching for images among those a decoder can make, by matching gradients: what GGL, ROG, the components and the
label search share.

minimise over z:  distance(gradient(decode(z), y), target) + tv TV(decode(z)) + weight |z|^2 / dim z

The slope in the images is the engine's (``attacks.engine.folded`` where views allow it, else
``attacks.engine.local_steps``); autograd takes it through the decoder. All starts, each with labels of its own, are
searched in one batch by Adam; by L-BFGS, on networks of sigmoids, one after the other.

Shapes: z [S, N, ...] for S starts of N images, labels [S, N], images [S, N, C, H, W]. Errors: ``AttackError`` where the
objective is not finite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.descent import Adam, Lbfgs, OptimizerSetting, Problem, descend, optimizer_name
from prunella.attacks.engine.folded import Evaluation, foldable
from prunella.attacks.engine.folded import evaluator as folded_evaluator
from prunella.attacks.engine.image_priors import total_variation_each
from prunella.attacks.engine.inversion import Inversion, labels_to_try
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.objectives import OBJECTIVES
from prunella.attacks.engine.progress import Progress
from prunella.attacks.engine.resume import ResumeStore
from prunella.core.config import Count, Positive, Weight
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

_DECAY = 0.3  # of the learning rate
Decode = Callable[[Tensor, Tensor], Tensor]  # z [M, ...] and labels [M] to images [M, C, H, W]


@dataclass(frozen=True)
class LatentSearch:
    """Every start takes each of ``labels_tried``."""

    objective: Literal["cosine", "euclidean"] = "cosine"  #: distance of the guess's update from the one received
    tv: Weight = 0.0  #: weight of the total-variation prior, which prefers smooth images
    optimizer: OptimizerSetting = "auto"  #: auto is L-BFGS for a network with sigmoids and Adam for any other
    learning_rate: Positive = 0.1  #: of the search
    iterations: Count = 300  #: most iterations of a start
    restarts: Count = 4  #: random starts; the lowest objective is kept
    labels_tried: Count = 1  #: classes that every start takes, the likeliest first
    mask_aware: bool = True  #: compare only where values arrived; off takes what did not arrive for zero
    patience: Count = 100  #: iterations without an improvement of a thousandth before a start ends
    tolerance: Weight = 1e-6  #: objective at which an update counts as explained
    max_images: Count = 16  #: images in memory at a time


@dataclass(frozen=True)
class Latent:
    """What is searched: a decoder, the weight of the penalty on its z, whether z are pixels, kept in [0, 1], and the
    deviation of the first z where the search draws it."""

    decode: Decode
    weight: float = 0.0
    box: bool = False
    deviation: float = 1.0


PIXELS = Latent(lambda z, labels: z + 0.5, deviation=0.25)
"""Every image, none likelier than another."""


def candidates(view: ServerView, target: Target, task: Task, search: LatentSearch, generator: Generator) -> Tensor:
    """Labels [S, N] of every start: the likeliest ones, ``restarts`` times each."""
    tried = labels_to_try(view, target, task, Inversion(), generator)
    known = [labels for labels in tried if labels is not None][: search.labels_tried]
    return torch.stack(known).repeat_interleave(search.restarts, dim=0).to(target.flat.device)


def evaluation_of(target: Target, objective: str) -> Evaluation:
    """(x [S, N, C, H, W], y [S, N]) -> distances [S] and their slopes in x."""
    if foldable([target]):
        folded = folded_evaluator([target], objective)

        def together(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            values, slopes = folded(x[:, 0], y[:, 0])
            return values, slopes[:, None]

        return together
    distance = OBJECTIVES[objective]

    def each(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = [], []
        for images, labels in zip(x, y, strict=True):
            dummy, pullback = linearised(target, images, labels)
            value, slope = distance(dummy, target.flat, target.support)
            values.append(value)
            slopes.append(pullback(slope)[0])
        return torch.stack(values), torch.stack(slopes)

    return each


class Starts:
    """What is searched from: z [S, N, ...] with labels y [S, N]. The starts share one progress, that of the best."""

    def __init__(self, z: Tensor, y: Tensor, latent: Latent, evaluation: Evaluation, tv: float = 0.0) -> None:
        self.z, self.y, self.latent, self.tv = z, y, latent, tv
        self.evaluation, self.distance = evaluation, torch.empty(0)

    def images(self) -> Tensor:
        made = self.latent.decode(self.z.flatten(0, 1), self.y.flatten())
        return made.view(*self.z.shape[:2], *made.shape[1:])

    def step(self) -> tuple[Tensor, Tensor]:
        """Distances [S] and what is minimised [S], whose slope is left on z."""
        with torch.enable_grad():
            x = self.images()
        distance, slope = self.evaluation(x.detach(), self.y)
        total = distance
        if self.tv:
            flat = x.detach().flatten(0, 1)
            rough, smooth = total_variation_each(flat)
            total = total + self.tv * rough.view(x.shape[:2]).mean(1)
            slope = slope + smooth.view(x.shape) * (self.tv / x.shape[1])
        (self.z.grad,) = torch.autograd.grad(x, self.z, slope)
        if self.latent.weight:
            z, size = self.z.detach(), self.z[0].numel()
            total = total + self.latent.weight * z.square().flatten(1).mean(1)
            self.z.grad = self.z.grad + z * (2 * self.latent.weight / size)
        return distance, total

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """What is minimised, 0-d, and the lowest distance, [1]: infinite where one of the distances is not finite."""
        self.distance, total = self.step()
        lowest = torch.where(torch.isfinite(self.distance).all(), self.distance.min(), torch.inf)
        return total.sum(), lowest.reshape(1)

    def snapshot(self, objective: float, iteration: int) -> Reconstruction:
        """A copy of the start with the lowest distance as it is now."""
        place = int(self.distance.argmin())
        with torch.no_grad():
            x = self.images()[place]
        return Reconstruction(x.detach().clone(), self.y[place].clone(), objective, iteration)


def search_latent(
    target: Target, search: LatentSearch, latent: Latent, z: Tensor, y: Tensor, resume: ResumeStore | None = None
) -> Reconstruction:
    """The best of the starts z [S, N, ...] with labels y [S, N]: images [N, C, H, W] and labels [N]."""
    evaluation, store = evaluation_of(target, search.objective), resume or ResumeStore()
    by_adam = optimizer_name(search.optimizer, target.module) == "adam"
    width = max(1, search.max_images // z.shape[1]) if by_adam else 1
    found: list[Reconstruction] = []
    for first in range(0, len(z), width):
        rows = slice(first, first + width)
        starts = Starts(z[rows].clone().requires_grad_(), y[rows], latent, evaluation, search.tv)
        with torch.no_grad():  # the images stand for the decoder: another network is another attack
            saved = store.next_file(search, [starts.z, starts.y, starts.images(), target.flat])
        optimizer = _adam(starts, search) if by_adam else Lbfgs([starts.z], search.iterations)
        progress = Progress(search, starts.snapshot, optimizer.chunk)
        problem = Problem([starts.z], starts.evaluate, [progress])
        found += descend(problem, optimizer, search.iterations, saved)
    return min(found, key=lambda each: each.objective)


def _adam(starts: Starts, search: LatentSearch) -> Adam:
    pixels = [starts.z] if starts.latent.box else []
    return Adam([starts.z], pixels, search.learning_rate, search.iterations, signed=True, decay=_DECAY)
