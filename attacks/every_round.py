"""SGI on every round of one client at once: a single guess of its images must explain all that it sent.

Threat model: an honest-but-curious server that keeps what it received, and a client that trains on the same images in
every round (few images, or one: its worst case). What a defense draws anew in each round (noise, a mask, a channel)
does not agree between rounds, and the image does. All rounds are one problem, each at its own weights and compared
where its values arrived (``attacks.engine.inversion``):

    minimise over x (and y): distance((gradient(w_1, x), ..., gradient(w_T, x)), (g_1, ..., g_T)) + tv * TV(x)

A distance of each round's own, averaged, would be led astray: once the model has fitted the image, its gradient sinks
below the noise, and such a round would count as much as the first. A client with error feedback (DGP, Top-k) sends in
round t what earlier rounds withheld as well. Nobody tells a server whether it does, so where that would make a
difference both are tried, each coordinate's gradients added up since it last arrived or not, and what explains the
rounds better is kept. ``unrolling`` takes the first for granted.

A defense that learns, as PriPrune, has nothing to hide by in a client's first round, and later trains from weights of
its own, which no guess explains. So where nothing explains all rounds, the oldest is tried alone, and kept if that is
explained.

Of one round this is SGI. A client that draws other images in every round does not fit, and neither do updates of
different clients: then the objective stays high, and ``explained`` is false. Not from a paper: ours. Errors:
``AttackError`` for views of different models, or of different numbers of images or steps.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.adapted import solve
from prunella.attacks.engine.case import noisy_images
from prunella.attacks.engine.inversion import Inversion, Measure, explained
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, determined, target_of
from prunella.attacks.engine.objectives import OBJECTIVES
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.unrolling import feedback_of, merged_view
from prunella.core.config import Count
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

Walk = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class EveryRound(Inversion):
    """SGI on every round of one client at once."""

    mask_aware: bool = True
    rounds: Count = 16  #: the latest rounds of the client that are used; each costs as much as the first


@dataclass(frozen=True)
class Rounds:
    """``attacks.engine.adapted.Adapted``: all rounds' problems. ``sent`` and its adjoint ``back`` say what a client
    sends of its gradients; labels are read from ``target``."""

    each: Sequence[Target]
    target: Target
    sent: Walk
    back: Walk

    @cached_property
    def wanted(self) -> Tensor:
        return torch.cat([round.flat for round in self.each])

    @cached_property
    def support(self) -> Tensor | None:
        if all(round.support is None for round in self.each):
            return None
        return torch.cat([torch.ones_like(r.flat) if r.support is None else r.support for r in self.each])

    def measure(self, attack: Inversion) -> Measure:
        distance, sizes = OBJECTIVES[attack.objective], [len(round.flat) for round in self.each]

        def measure(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            made = [linearised(round, x, labels) for round in self.each]
            value, slope = distance(torch.cat(self.sent([dummy for dummy, _ in made])), self.wanted, self.support)
            backs = self.back(torch.split(slope, sizes))
            slopes = [pullback(each) for (_, pullback), each in zip(made, backs, strict=True)]
            on_labels = [each for _, each in slopes if each is not None]
            on_x = torch.stack([each for each, _ in slopes]).sum(0)
            return value, on_x, torch.stack(on_labels).sum(0) if on_labels else None

        return measure


def problems(views: Sequence[ServerView], task: Task, attack: EveryRound) -> list[Rounds]:
    """The problem without and, where a round may bring what an earlier one withheld, with error feedback."""
    each = [target_of(view, task.build(), attack.mask_aware, attack.max_images) for view in views]
    if any(target.plan.batches != each[0].plan.batches for target in each):
        raise AttackError("the rounds are of different numbers of images or steps")
    read = target_of(merged_view(views), task.build(), False, attack.max_images)
    feedback = feedback_of(views, each)
    found = [Rounds(each, read, list, list)]
    late = any(bool((b > a).any()) for a, b in zip(feedback.arrived, feedback.arrived[1:], strict=False))
    return [*found, Rounds(each, read, feedback.sent, feedback.back)] if late else found


def reconstruct(
    view: ServerView,
    task: Task,
    attack: EveryRound,
    generator: Generator,
    earlier: Sequence[ServerView] = (),
    resume: ResumeStore | None = None,
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that best explain this view and the ``earlier`` ones, oldest first."""
    views = [each for each in (*earlier, view) if any(bool(u.any()) for u in each.update.values())]
    views = views[-attack.rounds :] or [view]  # rounds in which nothing arrived tell nothing
    store = resume or ResumeStore()
    found = [solve(each, view, task, attack, generator, store) for each in problems(views, task, attack)]
    best = min(found, key=lambda reconstruction: reconstruction.objective)
    if len(views) == 1:
        return best
    if not explained(best, attack) and determined(views[0], task, len(best.x)) and not noisy_images(view):
        oldest = solve(problems(views[:1], task, attack)[0], views[0], task, attack, generator, store)
        if explained(oldest, attack):
            # It explains that round, and what is asked is how well all are explained.
            by = f"the oldest of {len(views)} rounds"
            return dataclasses.replace(oldest, objective=best.objective, found_by=by)
    return dataclasses.replace(best, found_by=f"{len(views)} rounds")
