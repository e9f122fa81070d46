"""What attacks adapted to one defense share: their own dummy, the engine's distance, prior, descent and label scouting.

An adapted attack differs from ``attacks.engine.inversion`` in what a guess would have sent. It gives that as a
differentiable function of images and soft or hard labels, whose value is one flat vector.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn.functional import softmax

from prunella.attacks.engine.image_priors import total_variation
from prunella.attacks.engine.inversion import (
    Guess,
    Inversion,
    Labels,
    Objective,
    descend_alone,
    first_guess,
    labels_to_try,
    over_labels,
)
from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.objectives import OBJECTIVES
from prunella.attacks.engine.resume import ResumeStore
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

Dummy = Callable[[Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class AdaptedTarget:
    """``wanted`` [M] is what arrived, ``support`` [M] where it is compared, ``dummy`` what a guess would have sent;
    the labels are read from ``target``."""

    dummy: Dummy
    wanted: Tensor
    support: Tensor | None
    target: Target


def evaluator(adapted: AdaptedTarget, attack: Inversion, guess: Guess) -> Objective:
    """A closure that puts the gradient of the objective on the guess and returns the objective, 0-d."""
    distance, variables = OBJECTIVES[attack.objective], guess.variables()

    def evaluate() -> Tensor:
        with torch.enable_grad():
            dummy = adapted.dummy(guess.x, softmax(guess.y, dim=1) if guess.soft else guess.y)
        value, slope = distance(dummy.detach(), adapted.wanted, adapted.support)
        for variable, gradient in zip(variables, torch.autograd.grad(dummy, variables, slope), strict=True):
            variable.grad = gradient
        if attack.tv and guess.x.grad is not None:
            prior, smooth = total_variation(guess.x.detach())
            value = value + attack.tv * prior
            guess.x.grad.add_(smooth, alpha=attack.tv)
        return value

    return evaluate


def solve(
    adapted: AdaptedTarget,
    view: ServerView,
    task: Task,
    attack: Inversion,
    generator: Generator,
    resume: ResumeStore | None = None,
) -> Reconstruction:
    """The best explanation over the labels the target suggests; at batch 1 the others are scouted, as in the engine."""
    target, store = adapted.target, resume or ResumeStore()
    candidates = labels_to_try(view, target, task, attack, generator)

    def attempt(labels: Tensor | None, settings: Inversion) -> Reconstruction:
        guess = first_guess(target, task, labels, generator)
        saved = store.next_file(settings, [*guess.variables(), adapted.wanted])
        return descend_alone(settings, guess, evaluator(adapted, settings, guess), target.module, saved)

    def attempts(labels: Labels, settings: Inversion) -> list[Reconstruction]:
        return [attempt(each, settings) for each in labels]

    found = over_labels(candidates, attack, target.plan.images, attempt, attempts)
    found += attempts([candidates[i % len(candidates)] for i in range(len(found), attack.restarts)], attack)
    return min(found, key=lambda reconstruction: reconstruction.objective)
