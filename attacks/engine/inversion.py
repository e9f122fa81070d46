"""The engine under every attack that matches gradients: guess images, compare what they would have sent, improve.

minimise over x (and y): distance(gradient(x, y), target) + tv * TV(x), with x in [0, 1]
(DLG: Zhu et al. 2019, Algorithm 1; IG: Geiping et al. 2020, Eq. 4; SGI: PRI Algorithm 2). ``attacks.engine.matching``
makes the target and the support, ``attacks.engine.label_inference`` the labels, ``attacks.engine.descent`` the steps.
Restarts differ in their random start, and take the next plausible labels where these are inferred. The reconstruction
with the lowest objective is kept, and no start follows one that explains the update. This module never sees the truth.

Restarts and scouted labels of one image descend in batches of at most ``max_images``, which bounds the memory. A long
attack can be stopped and resumed (``attacks.engine.resume``).

Shapes: images [N, C, H, W] in [0, 1], soft labels [N, K]. Errors: ``AttackError``, names and shapes only.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softmax

from prunella.attacks.engine.descent import UNSAVED, Adam, Lbfgs, OptimizerSetting, Problem, descend, optimizer_name
from prunella.attacks.engine.folded import Evaluation, foldable
from prunella.attacks.engine.folded import evaluator as folded_evaluator
from prunella.attacks.engine.image_priors import into_box, total_variation, total_variation_each
from prunella.attacks.engine.label_inference import label_candidates
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.objectives import OBJECTIVES
from prunella.attacks.engine.progress import Progress
from prunella.attacks.engine.resume import DescentFile, ResumeStore
from prunella.core.config import Count, Positive, Weight
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

_START = (0.5, 0.25)  # mean and deviation of the first guess, clipped to the box
_SCOUT = 60  # iterations of a first look at a label; the right one is ahead long before
_CACHED = 1 << 20  # weights up to which targets of several views stay in a processor's cache: above, turns are faster
EXPLAINED = 1e-4  # an update matched this well needs no further start


@dataclass(frozen=True)
class Inversion:
    """``labels`` counts only where the view has none; ``mask_aware`` compares on the recovered support only.

    At batch 1 up to ``labels_tried`` classes are tried, likeliest first, until one explains the update. ``auto`` is
    Adam, and L-BFGS for a network of sigmoids, on which Adam stays below 16 dB.
    """

    objective: Literal["cosine", "euclidean"] = "cosine"  #: distance of the guess's update from the one received
    tv: Weight = 0.0  #: weight of the total-variation prior, which prefers smooth images
    optimizer: OptimizerSetting = "auto"  #: auto is L-BFGS for a network with sigmoids and Adam for any other
    signed: bool = True  #: Adam takes the sign of the image's gradient
    learning_rate: Positive = 0.1  #: of the descent on the image
    iterations: Count = 300  #: most iterations of a start
    restarts: Count = 1  #: random starts; the lowest objective is kept
    #: for one image: classes that are tried, the likeliest first, until one explains the update
    labels_tried: Count = 10
    mask_aware: bool = True  #: compare only where values arrived; off takes what did not arrive for zero
    #: where the view has none: infer them from the last layer, or optimise them with the image
    labels: Literal["infer", "optimise"] = "infer"
    patience: Count = 200  #: iterations without an improvement of a thousandth before a start ends
    tolerance: Weight = 1e-6  #: objective at which an update counts as explained
    max_images: Count = 16  #: images in memory at a time


Objective = Callable[[], Tensor]
Measure = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]  # see ``matched``
Labels = list[Tensor | None]
Attempt = Callable[[Tensor | None, Inversion], Reconstruction]
Attempts = Callable[[Labels, Inversion], list[Reconstruction]]


@dataclass(frozen=True)
class Guess:
    """What is optimised: images, and logits of the labels or, where labels are known, the labels themselves."""

    x: Tensor
    y: Tensor
    soft: bool

    def variables(self) -> list[Tensor]:
        return [self.x, self.y] if self.soft else [self.x]

    def snapshot(self, objective: float, iterations: int) -> Reconstruction:
        """A copy of the guess as it is now."""
        labels = self.y.detach().argmax(dim=1) if self.soft else self.y.clone()
        return Reconstruction(into_box(self.x.detach().clone()), labels, objective, iterations)


def first_guess(target: Target, task: Task, labels: Tensor | None, generator: Generator) -> Guess:
    images, device = target.plan.images, target.flat.device
    x = into_box(torch.randn((images, *task.shape), generator=generator) * _START[1] + _START[0]).to(device)
    if labels is not None:
        return Guess(x.requires_grad_(), labels, False)
    y = torch.randn((images, task.classes), generator=generator).to(device)
    return Guess(x.requires_grad_(), y.requires_grad_(), True)


def matched(target: Target, attack: Inversion) -> Measure:
    """(x [N, C, H, W], labels [N] or [N, K]) -> how far they are from the target, 0-d, and its slopes on both; None for
    labels that are numbers."""
    distance = OBJECTIVES[attack.objective]

    def measure(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        dummy, pullback = linearised(target, x, labels)
        value, slope = distance(dummy, target.flat, target.support)
        return value, *pullback(slope)

    return measure


def descended_by(measure: Measure, attack: Inversion, guess: Guess) -> Objective:
    """A closure that puts the gradient of the objective on the guess and returns the objective, 0-d."""

    def evaluate() -> Tensor:
        x, labels = guess.x.detach(), softmax(guess.y.detach(), dim=1) if guess.soft else guess.y
        value, on_x, on_labels = measure(x, labels)
        if attack.tv:
            prior, smooth = total_variation(x)
            value = value + attack.tv * prior
            on_x = on_x.add(smooth, alpha=attack.tv)
        guess.x.grad = on_x.contiguous()  # of a layer that folds it is a view, which L-BFGS cannot flatten
        if on_labels is not None:  # through the softmax
            guess.y.grad = labels * (on_labels - (labels * on_labels).sum(dim=1, keepdim=True))
        return value

    return evaluate


def evaluator(target: Target, attack: Inversion, guess: Guess) -> Objective:
    """``descended_by`` what a guess at ``target`` misses."""
    return descended_by(matched(target, attack), attack, guess)


def optimizer_of(attack: Inversion, module: nn.Module, guesses: Sequence[Guess]) -> Adam | Lbfgs:
    """What takes the steps of these guesses."""
    variables = [variable for guess in guesses for variable in guess.variables()]
    if optimizer_name(attack.optimizer, module) == "lbfgs":
        return Lbfgs(variables, attack.iterations)
    images = [guess.x for guess in guesses]
    return Adam(variables, images, attack.learning_rate, attack.iterations, signed=attack.signed)


def descend_alone(
    attack: Inversion, guess: Guess, objective: Objective, module: nn.Module, saved: DescentFile = UNSAVED
) -> Reconstruction:
    """The best of one guess."""

    def evaluate() -> tuple[Tensor, Tensor]:
        value = objective()
        return value, value.reshape(1)

    problem = Problem(guess.variables(), evaluate, [Progress(attack, guess.snapshot)])
    return descend(problem, optimizer_of(attack, module, [guess]), attack.iterations, saved)[0]


def descend_together(
    attack: Inversion, x: Tensor, y: Tensor, evaluation: Evaluation, saved: DescentFile = UNSAVED
) -> list[Reconstruction]:
    """The best of many guesses x [B, C, H, W], y [B], which are evaluated and moved by Adam in one batch."""
    x = x.clone()
    guesses = [Guess(image[None], label[None], False) for image, label in zip(x, y, strict=True)]  # views of x

    def evaluate() -> tuple[Tensor, Tensor]:
        values, slopes = evaluation(x, y)
        if attack.tv:
            prior, smooth = total_variation_each(x)
            values, slopes = values + attack.tv * prior, slopes.add(smooth, alpha=attack.tv)
        x.grad = slopes
        return values.sum(), values

    problem = Problem([x], evaluate, [Progress(attack, guess.snapshot) for guess in guesses])
    optimizer = Adam([x], [x], attack.learning_rate, attack.iterations, signed=attack.signed)
    return descend(problem, optimizer, attack.iterations, saved)


def labels_to_try(view: ServerView, target: Target, task: Task, attack: Inversion, generator: Generator) -> Labels:
    """Known labels, or those the last layer suggests, or None: to be optimised with the images."""
    if view.labels is not None:
        return [view.labels[: target.plan.images].detach().clone()]
    if attack.labels == "optimise":
        return [None]
    return label_candidates(target, task, view.learning_rate is not None, generator)


def folds(targets: Sequence[Target], attack: Inversion) -> bool:
    """Whether several guesses with given labels can descend in one batch."""
    return optimizer_name(attack.optimizer, targets[0].module) == "adam" and foldable(targets)


def descents(
    targets: Sequence[Target], attack: Inversion, guesses: Sequence[Guess], store: ResumeStore
) -> list[Reconstruction]:
    """The best of every guess at the one target, or at one each: in batches of at most ``max_images`` guesses where the
    engine can fold them, else one after the other."""
    aims = list(targets) * len(guesses) if len(targets) == 1 else list(targets)
    if any(guess.soft for guess in guesses) or not folds(targets, attack):
        return [
            descend_alone(
                attack, guess, evaluator(aim, attack, guess), aim.module, file_of(store, attack, [aim], [guess])
            )
            for guess, aim in zip(guesses, aims, strict=True)
        ]
    best: list[Reconstruction] = []
    for first in range(0, len(guesses), attack.max_images):
        batch, aimed = guesses[first : first + attack.max_images], aims[first : first + attack.max_images]
        x, y = torch.cat([guess.x.detach() for guess in batch]), torch.cat([guess.y for guess in batch])
        evaluation = folded_evaluator(targets if len(targets) == 1 else aimed, attack.objective)
        best += descend_together(attack, x, y, evaluation, file_of(store, attack, aimed, batch))
    return best


def file_of(store: ResumeStore, attack: Inversion, targets: Sequence[Target], guesses: Sequence[Guess]) -> DescentFile:
    """The file of the next descent, from these guesses towards these targets."""
    variables = [variable for guess in guesses for variable in guess.variables()]
    return store.next_file(attack, [*variables, *(target.flat for target in targets)])


def explained(reconstruction: Reconstruction, attack: Inversion) -> bool:
    return reconstruction.objective <= max(attack.tolerance, EXPLAINED)


def over_labels(
    candidates: Labels, attack: Inversion, images: int, attempt: Attempt, attempts: Attempts
) -> list[Reconstruction]:
    """A descent from the likeliest labels and, at batch 1 and where these do not explain the update, one more: from the
    most promising of the other labels, which are scouted with short descents."""
    found = [attempt(candidates[0], attack)]
    others = candidates[1 : attack.labels_tried] if images == 1 else []
    if others and not explained(found[0], attack):
        short = dataclasses.replace(attack, iterations=min(_SCOUT, attack.iterations))
        scouts = [each.objective for each in attempts(others, short)]
        found.append(attempt(others[scouts.index(min(scouts))], attack))
    return found


def reconstruct(
    view: ServerView, task: Task, attack: Inversion, generator: Generator, resume: ResumeStore | None = None
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that best explain the view, over all starts.

    A long attack that is given the same ``resume`` store again goes on where it was stopped.
    """
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    store = resume or ResumeStore()
    candidates = labels_to_try(view, target, task, attack, generator)

    def attempts(labels: Labels, settings: Inversion) -> list[Reconstruction]:
        return descents([target], settings, [first_guess(target, task, each, generator) for each in labels], store)

    def attempt(labels: Tensor | None, settings: Inversion) -> Reconstruction:
        return attempts([labels], settings)[0]

    found = over_labels(candidates, attack, target.plan.images, attempt, attempts) if len(candidates) > 1 else []
    width = attack.max_images if folds([target], attack) else 1
    while len(found) < attack.restarts and not any(explained(each, attack) for each in found):
        starts = range(len(found), min(len(found) + width, attack.restarts))
        found += attempts([candidates[start % len(candidates)] for start in starts], attack)
    return min(found, key=lambda reconstruction: reconstruction.objective)


def reconstruct_each(
    views: Sequence[ServerView], task: Task, attack: Inversion, generators: Sequence[Generator]
) -> list[Reconstruction]:
    """``reconstruct`` of every view, with draws of its own. From one start each, views of one image at the same weights
    whose labels are given descend in batches of at most ``max_images``, all others one after the other."""
    targets = [target_of(view, task.build(), attack.mask_aware, attack.max_images) for view in views]
    given = [view.labels for view in views if view.labels is not None]
    several = bool(views) and len(given) == len(views) and attack.restarts == 1
    fit = several and (targets[0].flat.device.type != "cpu" or len(targets[0].flat) <= _CACHED)
    if not fit or not folds(targets, attack):
        each = zip(views, generators, strict=True)
        return [reconstruct(view, task, attack, generator) for view, generator in each]
    starts = zip(targets, given, generators, strict=True)
    guesses = [first_guess(target, task, labels[:1], generator) for target, labels, generator in starts]
    return descents(targets, attack, guesses, ResumeStore())
