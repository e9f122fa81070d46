"""GradInversion, "See through gradients" (Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov 2021); "GI" in DGP.

    minimise over x_1 ... x_G:  |g(x_i) - target|^2 + tv TV(x_i) + bn R_BN(x_i) + group |x_i - mean_j x_j|^2

(Eqs. 2 to 12), by Adam on G starts at once that are held together (group consistency); the one that explains the
update best is kept. R_BN is the mean over batch-norm layers of |mean(x) - mean|^2 + |deviation(x) - deviation|^2.

Threat model: an honest-but-curious server that knows the model, the update, the number of images, the learning rate
and, where the model has batch norm, its statistics: those of the client's own batch, solved from the buffers that came
back, or the running ones where none did. It takes every coordinate it did not receive for zero unless ``mask_aware``.

Departures: labels by ``attacks.engine.label_inference`` instead of the paper's column minima, which name no class
twice; the group's mean is not registered first; no pixel noise; deviations instead of variances, so that layers weigh
alike; the relative Euclidean distance of ``attacks.engine.objectives``. Without batch norm there is no R_BN.

>>> shared_mean([torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)]).item()
0.5
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.descent import UNSAVED, Problem, descend
from prunella.attacks.engine.inversion import (
    Guess,
    Inversion,
    evaluator,
    explained,
    file_of,
    first_guess,
    labels_to_try,
    optimizer_of,
)
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.progress import Progress
from prunella.attacks.engine.resume import DescentFile, ResumeStore
from prunella.attacks.engine.statistics import Statistics, batch_statistics, statistics_gap
from prunella.core.config import Count, Weight
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task


@dataclass(frozen=True)
class GradInversion(Inversion):
    """A group of starts that are held together, with batch-norm statistics where there are any."""

    objective: Literal["cosine", "euclidean"] = "euclidean"
    signed: bool = False
    mask_aware: bool = False
    tolerance: Weight = 1e-9
    iterations: Count = 1000
    bn: Weight = 0.1  #: weight of the distance from the batch-norm statistics
    group: Weight = 0.01  #: weight of the distance from the group's mean
    restarts: Count = 2  #: starts in the group


def shared_mean(members: Sequence[Tensor]) -> Tensor:
    return torch.stack([member.detach() for member in members]).mean(dim=0)


def joint_problem(attack: GradInversion, target: Target, wanted: Statistics, guesses: Sequence[Guess]) -> Problem:
    """The group's problem: its minimum takes in the priors, but they do not choose between the members."""
    objectives = [evaluator(target, attack, guess) for guess in guesses]

    def evaluate() -> tuple[Tensor, Tensor]:
        middle, total = shared_mean([guess.x for guess in guesses]), target.flat.new_zeros(())
        own: list[Tensor] = []
        for guess, objective in zip(guesses, objectives, strict=True):
            own.append(objective())
            apart = guess.x.detach() - middle
            total = total + own[-1] + attack.group * apart.square().mean()
            pull = apart * (2 * attack.group / apart.numel())
            if wanted and attack.bn:
                gap, slope = statistics_gap(target, wanted, guess.x)
                total, pull = total + attack.bn * gap, pull + attack.bn * slope
            guess.x.grad = pull if guess.x.grad is None else guess.x.grad + pull
        return total, torch.stack(own)

    variables = [variable for guess in guesses for variable in guess.variables()]
    return Problem(variables, evaluate, [Progress(attack, guess.snapshot) for guess in guesses], joint=True)


def descend_group(
    attack: GradInversion, target: Target, wanted: Statistics, guesses: Sequence[Guess], saved: DescentFile = UNSAVED
) -> Reconstruction:
    """The best that any member of the group came to. L-BFGS takes whole chunks only."""
    optimizer = optimizer_of(attack, target.module, guesses)
    iterations = attack.iterations - attack.iterations % optimizer.chunk
    found = descend(joint_problem(attack, target, wanted, guesses), optimizer, iterations, saved)
    return min(found, key=lambda best: best.objective)


def reconstruct(
    view: ServerView, task: Task, attack: GradInversion, generator: Generator, resume: ResumeStore | None = None
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that explain the view best, over up to ``labels_tried`` labels."""
    store = resume or ResumeStore()
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    wanted = batch_statistics(target.module, view)
    found: list[Reconstruction] = []
    for labels in labels_to_try(view, target, task, attack, generator)[: attack.labels_tried]:
        guesses = [first_guess(target, task, labels, generator) for _ in range(attack.restarts)]
        saved = file_of(store, attack, [target], guesses)
        found.append(descend_group(attack, target, wanted, guesses, saved))
        if explained(found[-1], attack):
            break
    return min(found, key=lambda reconstruction: reconstruction.objective)
