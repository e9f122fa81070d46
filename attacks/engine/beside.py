"""What leaves beside the update, around its defenses, and tells the images by itself: each matched without the update.

*Squared gradients* of pruned weights (``engine.squares``), where a defense changed the update; and *batch norm's
statistics* of the client's one batch (``engine.statistics``), from public images that have nearly the same ones and
from random starts. Either is asked where it has enough numbers for the pixels, and an image that has these numbers is
the answer. Behind a defense of the images these are noisy, and neither is asked. Not from a paper: ours.

On digits and two convolutions with batch norm (97 % accurate, 160 statistics for 64 pixels) 7 of 8 images came back, at
52 to 99 dB in one to three seconds each; without public starts 1 of 6.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from prunella.attacks.engine.adapted import AdaptedTarget, solve
from prunella.attacks.engine.case import SOLVED, Case, Found
from prunella.attacks.engine.choice import explains
from prunella.attacks.engine.inversion import Guess, Inversion, descend_alone, descended_by, first_guess
from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.engine.squares import squares_target
from prunella.attacks.engine.statistics import Statistics, batch_statistics, determined_by, moved, statistics_of
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models.precode import Bottleneck

SQUARES, STATISTICS = "squared gradients", "batch-norm statistics"
_SHARE = 0.2  # of the budget, of each
_STARTS = 4  # public ones, and random ones
_RANKED = 256  # groups of public images that the first are taken from
_FITTED = 1e-5  # relative squared distance of statistics that are the image's own
_SMALL = 0.1  # of the mean statistic: below, a statistic is not weighed up


def told(case: Case, shadow: Shadow | None) -> Found | None:
    """The images that explain what left beside the update, if anything did."""
    if case.setting.merged or case.setting.noisy_images:
        return None
    return _attempted(lambda: _by_squares(case)) or _attempted(lambda: _by_statistics(case, shadow))


def _attempted(attempt: Callable[[], Found | None]) -> Found | None:
    try:
        return attempt()
    except (AttackError, RuntimeError, LookupError):  # diverged, memory that is not there, a layer of another kind
        return None


def _by_squares(case: Case) -> Found | None:
    if case.setting.has(Bottleneck) or not case.setting.disturbed:
        return None
    if (posed := squares_target(case.view, case.task, case.setting.target)) is None:
        return None
    starts, begin = case.attack.restarts, time.monotonic()
    most = case.iterations(_SHARE / starts, case.attack.iterations)
    settings = Inversion(iterations=most, restarts=starts, tolerance=SOLVED)
    answer = solve(posed, case.view, case.task, settings, case.generator, ResumeStore(stopped=case.budget.late))
    case.budget.spend(answer.iterations * starts, time.monotonic() - begin)
    found = Found(SQUARES, answer, None, answer.objective)
    return found if explains([found]) else None


def statistics_target(view: ServerView, target: Target) -> AdaptedTarget:
    """The problem that the statistics pose: each mean and deviation, by its own size."""
    wanted = batch_statistics(target.module, view, moved(target.module, view))
    flat = _flat(wanted)
    size = flat.abs().clamp_min(_SMALL * float(flat.abs().mean()))
    return AdaptedTarget(lambda x, _: _flat(statistics_of(target, wanted, x)) / size, flat / size, None, target)


def _flat(statistics: Statistics) -> Tensor:
    return torch.cat([each for pair in statistics.values() for each in pair])


def _by_statistics(case: Case, shadow: Shadow | None) -> Found | None:
    target, budget = case.setting.target, case.budget
    if len(target.plan.batches) > 1 or not determined_by(target.module, case.view, case.task.shape, case.images):
        return None
    most = case.iterations(_SHARE / (2 * _STARTS), 2 * case.attack.iterations)
    settings = Inversion(
        objective="euclidean", optimizer="adam", signed=False, learning_rate=0.03, iterations=most, tolerance=SOLVED
    )
    adapted, store = statistics_target(case.view, target).measure(settings), ResumeStore(stopped=budget.late)
    none = torch.zeros(case.images, dtype=torch.long, device=target.flat.device)  # statistics have no labels

    def measure(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        budget.spend(1)
        return adapted(x, labels)

    for x in _starts(case, shadow, lambda x: float(measure(x.clone(), none)[0])):
        guess = Guess(x.requires_grad_(), none, False)
        objective = descended_by(measure, settings, guess)
        answer = descend_alone(settings, guess, objective, target.module, store.next_file(settings, [x]))
        if answer.objective <= _FITTED:
            return Found(STATISTICS, replace(answer, y=_labels(case, answer.x)), None, answer.objective)
        if budget.late():
            break
    return None


def _labels(case: Case, x: Tensor) -> Tensor:
    """The labels [N] with which the images x explain the update best, one image after the other."""
    if case.view.labels is not None and len(case.view.labels) == len(x):
        return case.view.labels
    y = torch.zeros(len(x), dtype=torch.long, device=x.device)

    def missed(image: int, label: int) -> float:
        y[image] = label
        return case.missed(Reconstruction(x, y, 0.0, 0))

    for image in range(len(x)):
        y[image] = min(range(case.task.classes), key=lambda label: missed(image, label))
    return y


def _starts(case: Case, shadow: Shadow | None, missed: Callable[[Tensor], float]) -> Iterator[Tensor]:
    """Public images [N, C, H, W], of those at hand the groups with the nearest statistics, then random ones."""
    device = case.setting.target.flat.device
    if shadow is not None:
        groups = torch.split(shadow.public.x[: _RANKED * case.images], case.images)
        ranked = [(missed(x.to(device)), x) for x in groups if len(x) == case.images and not case.budget.late()]
        yield from (x.to(device, copy=True) for _, x in sorted(ranked, key=lambda each: each[0])[:_STARTS])
    for _ in range(_STARTS):
        yield first_guess(case.setting.target, case.task, torch.zeros(case.images), case.generator).x.detach()
