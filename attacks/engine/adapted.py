"""What attacks adapted to one defense share: their own dummy, the engine's distance, prior, descent and label scouting.

An adapted attack differs from ``attacks.engine.inversion`` in what a guess would have sent, which is given as a
function of images and soft or hard labels, differentiable, one flat vector.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn.functional import softmax

from prunella.attacks.engine.inversion import (
    Evaluate,
    Guess,
    Inversion,
    by_adam,
    by_lbfgs,
    descent,
    explained,
    first_guess,
    labels_to_try,
)
from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.objectives import OBJECTIVES
from prunella.attacks.engine.priors import total_variation
from prunella.attacks.engine.resume import Shelf
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

Dummy = Callable[[Tensor, Tensor], Tensor]
_SCOUT = 60  # iterations of a first look at a label, as in ``attacks.engine.inversion``


@dataclasses.dataclass(frozen=True)
class Problem:
    """``wanted`` [M] is what arrived, ``support`` [M] where it is compared, ``dummy`` what a guess would have sent;
    the labels are read from ``target``."""

    dummy: Dummy
    wanted: Tensor
    support: Tensor | None
    target: Target


def evaluator(problem: Problem, attack: Inversion, guess: Guess) -> Evaluate:
    """A closure that puts the gradient of the objective on the guess and returns the objective, 0-d."""
    distance, variables = OBJECTIVES[attack.objective], guess.variables()

    def evaluate() -> Tensor:
        with torch.enable_grad():
            dummy = problem.dummy(guess.x, softmax(guess.y, dim=1) if guess.soft else guess.y)
        value, slope = distance(dummy.detach(), problem.wanted, problem.support)
        for variable, gradient in zip(variables, torch.autograd.grad(dummy, variables, slope), strict=True):
            variable.grad = gradient
        if attack.tv and guess.x.grad is not None:
            prior, smooth = total_variation(guess.x.detach())
            value = value + attack.tv * prior
            guess.x.grad.add_(smooth, alpha=attack.tv)
        return value

    return evaluate


def solve(
    problem: Problem, view: ServerView, task: Task, attack: Inversion, generator: Generator, shelf: Shelf | None = None
) -> Reconstruction:
    """The best explanation over the labels the target suggests; at batch 1 the others are scouted, as in the engine."""
    target, shelf = problem.target, shelf or Shelf()
    candidates = labels_to_try(view, target, task, attack, generator)
    descend = by_adam if descent(attack, target.module) == "adam" else by_lbfgs

    def attempt(labels: Tensor | None, settings: Inversion) -> Reconstruction:
        guess = first_guess(target, task, labels, generator)
        slot = shelf.slot(settings, [*guess.variables(), problem.wanted])
        return descend(settings, guess, evaluator(problem, settings, guess), slot)

    found = [attempt(candidates[0], attack)]
    others = candidates[1 : attack.labels_tried] if target.plan.images == 1 else []
    if others and not explained(found[0], attack):
        short = dataclasses.replace(attack, iterations=min(_SCOUT, attack.iterations))
        scouts = [attempt(labels, short).objective for labels in others]
        found.append(attempt(others[scouts.index(min(scouts))], attack))
    for start in range(len(found), attack.restarts):
        found.append(attempt(candidates[start % len(candidates)], attack))
    return min(found, key=lambda reconstruction: reconstruction.objective)
