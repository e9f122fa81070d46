"""Searching for images among those a decoder can make, by matching gradients: what GGL and ROG share.

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

from prunella.attacks.engine.folded import Evaluation, foldable
from prunella.attacks.engine.folded import evaluator as folded_evaluator
from prunella.attacks.engine.inversion import (
    DECAY_AT,
    IMPROVEMENT,
    LBFGS_CHUNK,
    Inversion,
    Weight,
    descent,
    labels_to_try,
    lbfgs,
)
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.objectives import OBJECTIVES
from prunella.attacks.engine.priors import total_variation_each
from prunella.attacks.engine.resume import Descent, Shelf, Slot
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

Decode = Callable[[Tensor, Tensor], Tensor]  # z [M, ...] and labels [M] to images [M, C, H, W]


@dataclass(frozen=True)
class Search:
    """``prior`` is the file of the network learnt from public images; every start takes each of ``labels_tried``."""

    prior: str = ""
    objective: Literal["cosine", "euclidean"] = "cosine"
    tv: Weight = 0.0
    optimizer: Literal["auto", "adam", "lbfgs"] = "auto"
    learning_rate: Positive = 0.1
    iterations: Count = 300
    restarts: Count = 4
    labels_tried: Count = 1
    mask_aware: bool = True
    patience: Count = 100
    tolerance: Weight = 1e-6
    max_images: Count = 16
    bf16: bool = False


@dataclass(frozen=True)
class Latent:
    """What is searched: a decoder, the weight of the penalty on its z, and whether z are pixels, kept in [0, 1]."""

    decode: Decode
    weight: float = 0.0
    box: bool = False


def candidates(view: ServerView, target: Target, task: Task, search: Search, generator: Generator) -> Tensor:
    """Labels [S, N] of every start: the likeliest ones, ``restarts`` times each."""
    tried = labels_to_try(view, target, task, Inversion(), generator)
    known = [labels for labels in tried if labels is not None][: search.labels_tried]
    return torch.stack(known).repeat_interleave(search.restarts, dim=0).to(target.flat.device)


def evaluation(target: Target, objective: str) -> Evaluation:
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


@dataclass
class _Problem:
    """The starts, their labels and what is minimised; ``step`` leaves its slope on z."""

    z: Tensor
    y: Tensor
    latent: Latent
    evaluate: Evaluation
    tv: float = 0.0

    def images(self) -> Tensor:
        made = self.latent.decode(self.z.flatten(0, 1), self.y.flatten())
        return made.view(*self.z.shape[:2], *made.shape[1:])

    def step(self) -> tuple[Tensor, Tensor]:
        """Distances [S] and what is minimised [S]."""
        with torch.enable_grad():
            x = self.images()
        distance, slope = self.evaluate(x.detach(), self.y)
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


class _Best:
    """The start and moment of the lowest distance so far, and whether to stop: ``attacks.engine.resume.Progress``."""

    def __init__(self, problem: _Problem, search: Search) -> None:
        self.problem, self.search, self.stale = problem, search, 0
        self.best, self.mark = Reconstruction(torch.empty(0), None, float("inf"), 0), float("inf")

    def stop(self, distance: Tensor, iteration: int, chunk: int = 1) -> bool:
        if not bool(torch.isfinite(distance).all()):
            raise AttackError("the objective is not finite: the attack diverged")
        place = int(distance.argmin())
        value = float(distance[place])
        if value < self.best.objective:
            with torch.no_grad():
                x = self.problem.images()[place]
            self.best = Reconstruction(x.detach().clone(), self.problem.y[place].clone(), value, iteration)
        self.stale = 0 if value < self.mark * (1 - IMPROVEMENT) else self.stale + chunk
        self.mark = min(self.mark, value) if self.stale == 0 else self.mark
        return value <= self.search.tolerance or self.stale >= self.search.patience


def _by_adam(problem: _Problem, search: Search, slot: Slot) -> Reconstruction:
    optimizer = torch.optim.Adam([problem.z], lr=search.learning_rate)
    milestones = [int(share * search.iterations) for share in DECAY_AT]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.3)
    best = _Best(problem, search)
    state = Descent(optimizer, [problem.z], [best])
    schedule.last_epoch = begin = slot.take_up(state)[0]
    for iteration in range(begin, search.iterations + 1):
        slot.keep(state, iteration, [0])
        distance, _ = problem.step()
        if best.stop(distance, iteration) or iteration == search.iterations:
            break
        if problem.latent.box and problem.z.grad is not None:
            problem.z.grad.sign_()  # z are pixels: as Geiping
        optimizer.step()
        schedule.step()
        if problem.latent.box:
            with torch.no_grad():
                problem.z.clamp_(0.0, 1.0)
    slot.finish(state)
    return best.best


def _by_lbfgs(problem: _Problem, search: Search, slot: Slot) -> Reconstruction:
    optimizer = lbfgs([problem.z], search.iterations)
    best = _Best(problem, search)
    state = Descent(optimizer, [problem.z], [best])
    for iteration in range(slot.take_up(state)[0], search.iterations + LBFGS_CHUNK, LBFGS_CHUNK):
        slot.keep(state, iteration, [0])
        if (
            best.stop(problem.step()[0], min(iteration, search.iterations), LBFGS_CHUNK)
            or iteration >= search.iterations
        ):
            break
        optimizer.step(lambda: problem.step()[1].sum())  # type: ignore[no-untyped-call]
    slot.finish(state)
    return best.best


def search_latent(
    target: Target, search: Search, latent: Latent, z: Tensor, y: Tensor, shelf: Shelf | None = None
) -> Reconstruction:
    """The best of the starts z [S, N, ...] with labels y [S, N]: images [N, C, H, W] and labels [N]."""
    evaluate, shelf = evaluation(target, search.objective), shelf or Shelf()
    by_newton = descent(Inversion(optimizer=search.optimizer), target.module) == "lbfgs"
    width = 1 if by_newton else max(1, search.max_images // z.shape[1])
    found: list[Reconstruction] = []
    for first in range(0, len(z), width):
        rows = slice(first, first + width)
        problem = _Problem(z[rows].clone().requires_grad_(), y[rows], latent, evaluate, search.tv)
        with torch.no_grad():  # the images stand for the decoder: another network is another attack
            slot = shelf.slot(search, [problem.z, problem.y, problem.images(), target.flat])
        over = slot.over()
        descend = _by_lbfgs if by_newton else _by_adam
        found.append(descend(problem, search, slot) if over is None else over[0])
    return min(found, key=lambda each: each.objective)
