"""Representation: the input of the first linear layer, read off its gradient, and the images that have it.

Threat model: an honest-but-curious server that knows the model, the update and the number of images. What it reads is
what every layer of the model before the first linear one made of the image, whatever the model draws behind it: that is
how PRECODE falls (arXiv 2208.04767). ``attacks.engine.outer_products`` reads it; then

    minimise over x:  |f(x) - a|^2 / |a|^2 + tv TV(x),  f the layers before

by L-BFGS and, where that does not explain the input, by signed Adam. Of several images, the span of their inputs is
matched. The gradient of the layers before is matched, too, where the loss gradient behind them is known. Of one image
no label is needed, and none is told where the last layer did not arrive: that which explains the update best is named.
Where none does, since the client's last layer or loss is another, an image that the reading determines still explains
the layer that it was read of, and the answer is one in part (``attacks.engine.parts``). A reading that
leaves pixels undetermined (columns that did not arrive, a batch) is followed by a descent on the whole gradient, except
where that is random (PRECODE's bottleneck) or holds made-up values (mask hiding).

Errors: ``AttackError`` for a model without a linear layer, or one that takes several rows for an image.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.adapted import AdaptedTarget, evaluator
from prunella.attacks.engine.inversion import (
    EXPLAINED,
    Guess,
    Inversion,
    descend_alone,
    descents,
    first_guess,
    labels_to_try,
)
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.objectives import cosine, flatten, split
from prunella.attacks.engine.outer_products import Reading, first_linear, front_gradient, input_of, read, span_of
from prunella.attacks.engine.resume import ResumeStore
from prunella.core.config import Count, Weight
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models.precode import Bottleneck
from prunella.tasks.task import Task

_TV = 0.03  # CIFAR-10 and MNIST behind dgp,mask-hiding: 19 and 32 dB; 0.01 and 0.1 are 1 to 10 dB behind
_MATCHED = 1e-9  # a reading matched this well is the image's own: no other start is needed


@dataclass(frozen=True)
class Representation(Inversion):
    """Reads the input of the first linear layer and looks for the image that has it.

    ``optimizer=auto`` is L-BFGS, then Adam where that does not explain the input; Adam where columns of it are missing.
    """

    objective: Literal["cosine", "euclidean"] = "euclidean"
    tolerance: Weight = 1e-12
    restarts: Count = 2
    #: a descent on the whole gradient follows, where the input leaves something open and no value was made up
    polish: bool = True


def adapted(target: Target, layer: str, reading: Reading, task: Task) -> AdaptedTarget:
    """The reading as a problem of the engine: the inputs of ``layer`` and, where the loss gradient at its output is
    known, the gradient of what lies before it take the place of the whole gradient. Both weigh alike."""
    seen = split(target.flat, target.params)
    held = None if target.support is None else split(target.support, target.params)
    wanted, support, before = [reading.rows.flatten()], [reading.known.repeat(len(reading.rows))], list[str]()
    if reading.slope is not None:
        blank = input_of(target, layer, torch.zeros(len(reading.rows), *task.shape, device=target.flat.device))
        before = [name for name in front_gradient(target, layer, blank, reading.slope) if bool(seen[name].any())]
    if before:
        wanted.append(flatten(seen[name] for name in before))
        support.append(torch.ones_like(wanted[1]) if held is None else flatten(held[name] for name in before))
    sizes = [part.norm() for part in wanted]

    def dummy(x: Tensor, y: Tensor) -> Tensor:
        rows = input_of(target, layer, x)
        parts = [(span_of(rows, reading) if reading.mixed else rows).flatten() / sizes[0]]
        if reading.slope is not None and before:
            gradient = front_gradient(target, layer, rows, reading.slope)
            parts.append(flatten(gradient[name] for name in before) / sizes[1])
        return torch.cat([part.to(target.flat.dtype) for part in parts])

    scaled = [part / size for part, size in zip(wanted, sizes, strict=True)]
    weights = torch.cat([part.to(target.flat) for part in support])
    compared = None if bool((weights == 1).all()) else weights
    return AdaptedTarget(dummy, torch.cat([part.to(target.flat) for part in scaled]), compared, target)


def settings_for(reading: Reading, attack: Representation) -> Representation:
    """Where columns are missing, L-BFGS leaves the box: Adam with a little TV takes its place."""
    if not reading.scaled and not reading.mixed:
        attack = dataclasses.replace(attack, objective="cosine")
    if reading.mixed or bool((reading.known == 1).all()) or attack.optimizer != "auto":
        return attack
    return dataclasses.replace(attack, optimizer="adam", tv=attack.tv or _TV, restarts=1)


def match(
    problem: AdaptedTarget, task: Task, attack: Representation, labels: Tensor, generator: Generator, store: ResumeStore
) -> Reconstruction:
    """The images whose inputs of the layer are nearest to what was read, over starts and optimizers."""
    found: list[Reconstruction] = []
    for _ in range(attack.restarts):
        start = first_guess(problem.target, task, labels, generator).x.detach()
        for optimizer in ("lbfgs", "adam") if attack.optimizer == "auto" else (attack.optimizer,):
            settings = dataclasses.replace(attack, optimizer=optimizer)
            guess = Guess(start.clone().requires_grad_(), labels, False)
            saved = store.next_file(settings, [*guess.variables(), problem.wanted])
            found.append(
                descend_alone(settings, guess, evaluator(problem, settings, guess), problem.target.module, saved)
            )
            if found[-1].objective <= _MATCHED:
                return found[-1]
    return min(found, key=lambda each: each.objective)


def by_label(target: Target, found: Reconstruction, tried: Sequence[Tensor]) -> Reconstruction:
    """The images ``found`` with the first labels that explain the update, or that explain it best, and one minus the
    cosine of theirs."""
    best = None
    for y in tried:
        missed = float(cosine(linearised(target, found.x, y)[0], target.flat, target.support)[0])
        if best is None or missed < best.objective:
            best = dataclasses.replace(found, y=y, objective=missed)
        if missed <= EXPLAINED:
            break
    return best or found


def reconstruct(
    view: ServerView, task: Task, attack: Representation, generator: Generator, resume: ResumeStore | None = None
) -> Reconstruction:
    """The images [N, C, H, W] whose inputs of the first linear layer were read off the view, and their labels [N]."""
    store = resume or ResumeStore()
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    layer, _ = first_linear(target.module, task.shape)
    reading = read(target, layer, view.shared)
    settings = settings_for(reading, attack)
    tried = [y for y in labels_to_try(view, target, task, attack, generator) if y is not None]
    tried = tried or [torch.zeros(target.plan.images, dtype=torch.int64, device=target.flat.device)]
    labels = tried[0]
    found = match(adapted(target, layer, reading, task), task, settings, labels, generator, store)
    told = found.objective
    exact = not reading.mixed and bool((reading.known == 1).all())
    random = any(isinstance(part, Bottleneck) for part in target.module.modules())
    if random or reading.filled:  # what fits a reading of drawn or made-up values explains nothing
        return dataclasses.replace(found, compared=False)
    if exact or not attack.polish:  # what fits the reading may miss the update: noise is read, too
        found = by_label(target, found, tried[: attack.labels_tried])
        # Fewer inputs than pixels are those of many images, unless the gradient of the layers before was matched, too.
        whole = reading.slope is not None or reading.rows.shape[1] >= math.prod(task.shape)
        if whole and found.objective > EXPLAINED and (left := max(reading.left, told)) <= EXPLAINED:
            return dataclasses.replace(found, objective=left, explained=False, compared=False)
        return found
    polish = dataclasses.replace(attack, tolerance=1e-9)
    start = Guess(found.x.clone().requires_grad_(), labels, False)
    return descents([target], polish, [start], store)[0]
