"""What attacks adapted to one defense share: their own dummy, the engine's distance, prior, descent and label scouting.

An adapted attack differs from ``attacks.engine.inversion`` in what a guess would have sent. It gives that as an
``AdaptedTarget``: a differentiable function of images and soft or hard labels, whose value is one flat vector; or it
measures the distance of a guess by itself (``Adapted``).
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.inversion import (
    Guess,
    Inversion,
    Labels,
    Measure,
    Objective,
    descend_alone,
    descended_by,
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


class Adapted(Protocol):
    """A problem of its own: what arrived (``wanted``), how far a guess is from it, and the ``target`` that its labels
    and the number of its images are read from."""

    @property
    def wanted(self) -> Tensor: ...

    @property
    def target(self) -> Target: ...

    def measure(self, attack: Inversion) -> Measure: ...


@dataclasses.dataclass(frozen=True)
class AdaptedTarget:
    """``wanted`` [M] is what arrived, ``support`` [M] where it is compared, ``dummy`` what a guess would have sent;
    the labels are read from ``target``."""

    dummy: Dummy
    wanted: Tensor
    support: Tensor | None
    target: Target

    def measure(self, attack: Inversion) -> Measure:
        """``attacks.engine.inversion.matched``, by autograd."""
        distance = OBJECTIVES[attack.objective]

        def measure(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            variables = [x.requires_grad_()] + ([labels.requires_grad_()] if labels.is_floating_point() else [])
            with torch.enable_grad():
                dummy = self.dummy(x, labels)
            value, slope = distance(dummy.detach(), self.wanted, self.support)
            slopes = torch.autograd.grad(dummy, variables, slope)
            return value, slopes[0], slopes[1] if len(slopes) > 1 else None

        return measure


def evaluator(adapted: Adapted, attack: Inversion, guess: Guess) -> Objective:
    """``attacks.engine.inversion.evaluator`` of an adapted problem."""
    return descended_by(adapted.measure(attack), attack, guess)


def solve(
    adapted: Adapted,
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
