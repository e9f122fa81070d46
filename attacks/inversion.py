"""The engine under every attack that matches gradients: guess images, compare what they would have sent, improve.

minimise over x (and y): distance(gradient(x, y), target) + tv * TV(x), with x in [0, 1]
(DLG: Zhu et al. 2019, Algorithm 1; IG: Geiping et al. 2020, Eq. 4; SGI: PRI Algorithm 2). ``attacks.matching`` makes
the target and the support, ``attacks.labels`` the labels. Restarts differ in their random start, and take the next
plausible labels where these are inferred; the lowest objective is kept, and a start that explains the update is the
last. The truth is nowhere to be seen here.

Adam follows Geiping's published settings: the sign of the image gradient, and the learning rate divided by ten at 3/8,
5/8 and 7/8 of the iterations. L-BFGS counts its iterations, not its function calls, and is kept in the box at the end
only, since a clipped step would spoil its curvature.

Stops early when the objective is below ``tolerance`` or has not improved by a thousandth for ``patience`` iterations.

Shapes: images [N, C, H, W] in [0, 1], soft labels [N, K]. Errors: ``AttackError``, names and shapes only.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.nn.functional import softmax

from attacks.folded import Evaluation, foldable
from attacks.folded import evaluator as folded_evaluator
from attacks.labels import label_candidates
from attacks.matching import Target, target_of
from attacks.objectives import OBJECTIVES
from attacks.priors import into_box, total_variation, total_variation_each
from attacks.unrolled import linearised
from core.config import Count, Positive
from core.errors import AttackError
from core.types import Reconstruction, ServerView
from tasks.task import Task

Weight = Annotated[float, Field(ge=0)]
_DECAY_AT = (3 / 8, 5 / 8, 7 / 8)
_LBFGS_CHUNK = 20  # iterations between two looks at the stopping rule
_START = (0.5, 0.25)  # mean and deviation of the first guess, clipped to the box
_IMPROVEMENT = 1e-3
_SCOUT = 60  # iterations of a first look at a label; the right one is ahead long before
_EXPLAINED = 1e-4  # an update matched this well needs no further start


@dataclass(frozen=True)
class Inversion:
    """``labels`` counts only where the view has none; ``mask_aware`` compares on the recovered support only.

    At batch 1 up to ``labels_tried`` classes are tried, likeliest first, until one explains the update. ``auto`` is
    Adam, and L-BFGS for a network of sigmoids, on which Adam stays below 16 dB.
    """

    objective: Literal["cosine", "euclidean"] = "cosine"
    tv: Weight = 0.0
    optimizer: Literal["auto", "adam", "lbfgs"] = "auto"
    signed: bool = True
    learning_rate: Positive = 0.1
    iterations: Count = 300
    restarts: Count = 1
    labels_tried: Count = 10
    mask_aware: bool = True
    labels: Literal["infer", "optimise"] = "infer"
    patience: Count = 200
    tolerance: Weight = 1e-6
    max_images: Count = 16


Evaluate = Callable[[], Tensor]
Labels = list[Tensor | None]


@dataclass(frozen=True)
class Guess:
    """What is optimised: images, and logits of the labels or, where labels are known, the labels themselves."""

    x: Tensor
    y: Tensor
    soft: bool

    def variables(self) -> list[Tensor]:
        return [self.x, self.y] if self.soft else [self.x]

    def frozen(self, objective: float, iterations: int) -> Reconstruction:
        labels = self.y.detach().argmax(dim=1) if self.soft else self.y.clone()
        return Reconstruction(into_box(self.x.detach().clone()), labels, objective, iterations)


def first_guess(target: Target, task: Task, labels: Tensor | None, generator: Generator) -> Guess:
    images, device = target.plan.images, target.flat.device
    x = into_box(torch.randn((images, *task.shape), generator=generator) * _START[1] + _START[0]).to(device)
    if labels is not None:
        return Guess(x.requires_grad_(), labels, False)
    y = torch.randn((images, task.classes), generator=generator).to(device)
    return Guess(x.requires_grad_(), y.requires_grad_(), True)


def evaluator(target: Target, attack: Inversion, guess: Guess) -> Evaluate:
    """A closure that puts the gradient of the objective on the guess and returns the objective, 0-d."""
    distance = OBJECTIVES[attack.objective]

    def evaluate() -> Tensor:
        x, labels = guess.x.detach(), softmax(guess.y.detach(), dim=1) if guess.soft else guess.y
        dummy, pullback = linearised(target, x, labels)
        value, slope = distance(dummy, target.flat, target.support)
        on_x, on_labels = pullback(slope)
        if attack.tv:
            prior, smooth = total_variation(x)
            value = value + attack.tv * prior
            on_x = on_x.add(smooth, alpha=attack.tv)
        guess.x.grad = on_x
        if on_labels is not None:  # through the softmax
            guess.y.grad = labels * (on_labels - (labels * on_labels).sum(dim=1, keepdim=True))
        return value

    return evaluate


class Progress:
    """The best objective so far, the guess that had it, and whether to stop."""

    def __init__(self, attack: Inversion, guess: Guess) -> None:
        self.attack, self.guess, self.stale = attack, guess, 0
        self.best = guess.frozen(float("inf"), 0)
        self.mark = float("inf")

    def stop(self, objective: float, iterations: int) -> bool:
        """Note the objective of the present guess; True when going on is not worth it."""
        if not objective < float("inf"):
            raise AttackError("the objective is not finite: the attack diverged")
        self.stale = 0 if objective < self.mark * (1 - _IMPROVEMENT) else self.stale + 1
        self.mark = min(self.mark, objective) if self.stale == 0 else self.mark
        if objective < self.best.objective:
            self.best = self.guess.frozen(objective, iterations)
        return objective <= self.attack.tolerance or self.stale >= self.attack.patience


def by_adam(attack: Inversion, guess: Guess, evaluate: Evaluate) -> Reconstruction:
    optimizer = torch.optim.Adam(guess.variables(), lr=attack.learning_rate)
    milestones = [int(share * attack.iterations) for share in _DECAY_AT]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    progress = Progress(attack, guess)
    for iteration in range(attack.iterations):
        if progress.stop(float(evaluate()), iteration):
            return progress.best
        if attack.signed and guess.x.grad is not None:
            guess.x.grad.sign_()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            guess.x.clamp_(0.0, 1.0)
    progress.stop(float(evaluate()), attack.iterations)
    return progress.best


def by_lbfgs(attack: Inversion, guess: Guess, evaluate: Evaluate) -> Reconstruction:
    optimizer = torch.optim.LBFGS(
        guess.variables(),
        max_iter=min(_LBFGS_CHUNK, attack.iterations),
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    progress = Progress(attack, guess)
    for iteration in range(0, attack.iterations, _LBFGS_CHUNK):
        if progress.stop(float(evaluate()), iteration):
            return progress.best
        optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    progress.stop(float(evaluate()), attack.iterations)
    return progress.best


def labels_to_try(view: ServerView, target: Target, task: Task, attack: Inversion, generator: Generator) -> Labels:
    """Known labels, or those the last layer suggests, or None: to be optimised with the images."""
    if view.labels is not None:
        return [view.labels[: target.plan.images].detach().clone()]
    if attack.labels == "optimise":
        return [None]
    return label_candidates(target, task, view.learning_rate is not None, generator)


def descent(attack: Inversion, module: nn.Module) -> Literal["adam", "lbfgs"]:
    """The optimizer an attack uses on this model."""
    if attack.optimizer != "auto":
        return attack.optimizer
    return "lbfgs" if any(isinstance(layer, nn.Sigmoid) for layer in module.modules()) else "adam"


def scouted(target: Target, task: Task, short: Inversion, others: Labels, generator: Generator) -> list[float]:
    """The objectives short descents reach from these labels, in batches of at most ``max_images`` where possible."""
    guesses = [first_guess(target, task, labels, generator) for labels in others]
    optimizer = descent(short, target.module)
    if optimizer != "adam" or any(guess.soft for guess in guesses) or not foldable([target]):
        descend = by_adam if optimizer == "adam" else by_lbfgs
        return [descend(short, guess, evaluator(target, short, guess)).objective for guess in guesses]
    evaluate, best = folded_evaluator([target], short.objective), list[float]()
    for first in range(0, len(guesses), short.max_images):
        batch = guesses[first : first + short.max_images]
        x, y = torch.cat([guess.x.detach() for guess in batch]), torch.cat([guess.y for guess in batch])
        best += [found.objective for found in together(short, x, y, evaluate)]
    return best


def together(attack: Inversion, x: Tensor, y: Tensor, evaluate: Evaluation) -> list[Reconstruction]:
    """``by_adam`` of many guesses x [B, C, H, W], y [B] in one batch; each stops by its own rule, the batch when all
    have. What stopped goes on unseen: its best guess is kept."""
    x = x.clone()
    guesses = [Guess(image[None], label[None], False) for image, label in zip(x, y, strict=True)]
    progress, open_ = [Progress(attack, guess) for guess in guesses], set(range(len(x)))
    guess = Guess(x, y, False)  # of which every single guess is a view
    optimizer = torch.optim.Adam(guess.variables(), lr=attack.learning_rate)
    milestones = [int(share * attack.iterations) for share in _DECAY_AT]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for iteration in range(attack.iterations + 1):
        values, slopes = evaluate(x, y)
        if attack.tv:
            prior, smooth = total_variation_each(x)
            values, slopes = values + attack.tv * prior, slopes.add(smooth, alpha=attack.tv)
        for place, value in enumerate(values.tolist()):
            if place in open_ and progress[place].stop(value, iteration):
                open_.remove(place)
        if not open_ or iteration == attack.iterations:
            break
        x.grad = slopes.sign() if attack.signed else slopes
        optimizer.step()
        schedule.step()
        x.clamp_(0.0, 1.0)
    return [each.best for each in progress]


def explained(reconstruction: Reconstruction, attack: Inversion) -> bool:
    return reconstruction.objective <= max(attack.tolerance, _EXPLAINED)


def reconstruct(view: ServerView, task: Task, attack: Inversion, generator: Generator) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that best explain the view, over all starts.

    At batch 1, where the likeliest label does not explain the update, the others are scouted with short descents and
    the most promising one gets a full one.
    """
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    candidates = labels_to_try(view, target, task, attack, generator)
    descend = by_adam if descent(attack, target.module) == "adam" else by_lbfgs

    def attempt(labels: Tensor | None, settings: Inversion) -> Reconstruction:
        guess = first_guess(target, task, labels, generator)
        return descend(settings, guess, evaluator(target, settings, guess))

    found = [attempt(candidates[0], attack)]
    others = candidates[1 : attack.labels_tried] if target.plan.images == 1 else []
    if others and not explained(found[0], attack):
        short = dataclasses.replace(attack, iterations=min(_SCOUT, attack.iterations))
        scouts = scouted(target, task, short, others, generator)
        found.append(attempt(others[scouts.index(min(scouts))], attack))
    for start in range(len(found), attack.restarts):
        if explained(found[-1], attack):
            break
        found.append(attempt(candidates[start % len(candidates)], attack))
    return min(found, key=lambda reconstruction: reconstruction.objective)
