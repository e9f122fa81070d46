"""Which label belongs to which image and local step, where the last layer tells no more than how often each occurs.

Labels fixed into the wrong step cost 20 dB: every step sees other weights, and an image in a wrong one explains less of
the update. There are too many assignments to try, so they are relaxed:

1. ``Mixture``: every local step trains on one image of each class, weighted, and weights and images descend together.
   What a client did is a mixture whose weights are counts of images over the batch size, and the update is linear in
   the weights of its own step, which it is not in the probabilities of a label. Of 8 steps of 16 digits (``cnn``, one
   seed) 160 evaluations put 86 to 124 of 128 labels right, and the lowest objective of nine starts had most. So the
   better half of the starts goes on, until one is left;
2. the weights are rounded to counts, each count becomes so many images, and these descend with their labels fixed;
3. ``moves``, a new label for an image or an exchange between two images of different steps, are ranked by the slope of
   the distance in the labels at these images, which costs one evaluation. On 4 steps of 4 digits (two seeds), an
   exchange that puts more steps right was among the best six of about ninety wherever at most four pairs were wrong
   (12 of 12), and in none of four random orders;
4. the images descend a little from each of the first moves; the one that explains the update best is kept, and 3.
   starts again. Where none is better, other starts are searched, and the best of all descends once more.

Where images come again in later steps, all steps share one mixture, as if each step saw them all.

Images are searched in the coordinates of a ``Latent``: pixels, or the principal components of public images
(``attacks.components``). They may leave [0, 1] on the way, since cutting them in every turn would undo most of a
descent. What the search may cost is counted in evaluations of the objective at all images, so that its answer depends
on nothing else.

Not from a paper: ours. Shapes: z [N, ...], images [N, C, H, W], labels [N], slopes [N, K]. Errors: ``AttackError``
where no objective is finite.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot, softmax

from prunella.attacks.engine.descent import LBFGS_CHUNK, Lbfgs
from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.label_inference import evidence_of, repeated
from prunella.attacks.engine.latent import PIXELS, Latent
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, TrainingPlan
from prunella.attacks.engine.objectives import cosine, euclidean
from prunella.core.errors import AttackError
from prunella.tasks.task import Task

Move = tuple[tuple[int, int], ...]  # (image, its new label), one or two of them

_STARTS, _CLASSES = 8, 20  # mixtures to begin with, at most; classes in one, the likeliest
_UNSURE = 0.5  # deviation of their first logits
_SCOUT, _MIX, _FIX, _TRY = 40, 120, 60, 20  # iterations: of a start, of the best, with labels fixed, of a move
_SHARE = 0.8  # of the budget for searches, the rest for the last descent
_PACE = 20  # evaluations: fewer, as of what solves in closed form, tell no pace
_TRIED = 4  # moves of a kind that are tried, the best first
_CLEARLY = 0.6  # of the distance: a move that leaves less is taken at once
_APART = 0.05  # deviation between images of one class and step where a mixture has but one
_SOLVED = 1e-9
_VALUES = 2**24  # in what a mixture's L-BFGS remembers of either kind: 64 MiB


class Assigned(NamedTuple):
    """Images in the search's coordinates, their labels, and the relative distance of their update."""

    z: Tensor
    y: Tensor
    objective: float


class Budget:
    """Evaluations of the objective that may still be made: none once it is ``stopped`` or past ``end``, by
    ``time.monotonic``, and no more than the time until then is enough for at the pace of those that were timed. Who is
    asked first would else take the shares of all others where that time is ``short``; where it is not, the pace changes
    nothing."""

    def __init__(self, evaluations: float, stopped: Callable[[], bool] = lambda: False, end: float = math.inf) -> None:
        self.evaluations, self.stopped, self.end = evaluations, stopped, end
        self._timed = self._seconds = 0.0
        self.short = False

    def late(self) -> bool:
        return time.monotonic() >= self.end or self.stopped()

    def left(self) -> int:
        in_time = (self.end - time.monotonic()) * self._timed / self._seconds if self._seconds > 0 else math.inf
        self.short = self.short or in_time < self.evaluations
        return 0 if self.late() else max(0, int(min(self.evaluations, in_time)))

    def spend(self, evaluations: float, seconds: float = 0.0) -> None:
        """``seconds``: how long they took, where that is known."""
        self.evaluations -= evaluations
        if seconds > 0 and evaluations >= _PACE:
            self._timed, self._seconds = self._timed + evaluations, self._seconds + seconds


def moves(slope: Tensor, y: Tensor, steps: list[tuple[int, ...]]) -> list[Move]:
    """Changes of the labels ``y`` that lower the distance to first order, the largest decrease first. ``steps`` says
    for every image in which local steps it is used; an exchange within these would change nothing.

    >>> slope = torch.tensor([[0.0, -1.0], [-2.0, 0.0]])
    >>> moves(slope, torch.tensor([0, 1]), [(0,), (1,)])
    [((0, 1), (1, 0)), ((1, 0),), ((0, 1),)]
    """
    gain = (slope - slope.gather(1, y[:, None])).tolist()  # [N, K]: what another label of an image changes
    label, found = y.tolist(), list[tuple[float, Move]]()
    for i, row in enumerate(gain):
        found += [(value, ((i, c),)) for c, value in enumerate(row) if c != label[i]]
        for j in range(i + 1, len(gain)):
            if label[i] != label[j] and steps[i] != steps[j]:
                found.append((row[label[j]] + gain[j][label[i]], ((i, label[j]), (j, label[i]))))
    return [move for value, move in sorted(found) if value < 0]


def made(y: Tensor, move: Move) -> Tensor:
    """The labels after the move."""
    y = y.clone()
    for image, label in move:
        y[image] = label
    return y


def mixed_plan(plan: TrainingPlan, classes: int) -> TrainingPlan:
    """The plan of a mixture: an image of each class in every step, the same ones in all steps where images come again.

    >>> from prunella.tasks.training import Sgd
    >>> mixed_plan(TrainingPlan(4, ((0, 1), (2, 3)), Sgd(0.1)), 3).batches
    ((0, 1, 2), (3, 4, 5))
    >>> mixed_plan(TrainingPlan(2, ((0, 1), (1, 0)), Sgd(0.1)), 3).batches
    ((0, 1, 2), (0, 1, 2))
    """
    steps = len(plan.batches)
    apart = sum(len(rows) for rows in plan.batches) == plan.images
    rows = [tuple(range(classes * step * apart, classes * (step * apart + 1))) for step in range(steps)]
    return TrainingPlan(classes * (steps if apart else 1), tuple(rows), plan.sgd)


def likeliest(target: Target, task: Task, generator: Generator) -> Tensor:
    """The classes of a mixture, ascending: at most ``_CLASSES``, those whose images the update is likeliest to hold."""
    try:
        evidence, probabilities = evidence_of(target, task, generator)
    except AttackError:  # no linear layer tells
        return torch.arange(min(task.classes, _CLASSES))
    return (probabilities - evidence).topk(min(task.classes, _CLASSES)).indices.sort().values.cpu()


class Mixture:
    """Images z [S, ...] of the ``classes``, one of each in every group of steps, and the logits [G, K] of their
    weights. ``objective`` is one minus the cosine at the last evaluation."""

    def __init__(self, target: Target, task: Task, latent: Latent, classes: Tensor, generator: Generator) -> None:
        plan = mixed_plan(target.plan, len(classes))
        self.target, self.latent, self.objective = replace(target, plan=plan), latent, float("inf")
        groups, device = plan.images // len(classes), target.flat.device
        z = torch.randn((plan.images, *task.shape), generator=generator) * latent.deviation
        logits = torch.randn((groups, len(classes)), generator=generator) * _UNSURE
        self.z, self.logits = (each.to(device).requires_grad_() for each in (z, logits))
        self.y = classes.repeat(groups).to(device)
        self.one = one_hot(self.y, task.classes).to(z.dtype)
        history = max(5, min(100, _VALUES // z.numel()))
        self.optimizer = Lbfgs([self.z, self.logits], LBFGS_CHUNK, history)

    @property
    def rows(self) -> int:
        """Images that pass the model in an evaluation."""
        return sum(len(rows) for rows in self.target.plan.batches)

    def evaluate(self) -> Tensor:
        """What is minimised, 0-d; leaves its slopes on z and the logits."""
        with torch.enable_grad():
            weights = softmax(self.logits, dim=1)
            x = self.latent.decode(self.z, self.y)
        # The loss is a mean over the K images of a step, of which each counts as its weight says.
        y = self.one * (weights.detach().reshape(-1, 1) * weights.shape[1])
        dummy, pullback = linearised(self.target, x.detach(), y)
        value, slope = cosine(dummy, self.target.flat, self.target.support)
        on_x, on_y = pullback(slope)
        assert on_y is not None
        on_weights = (on_y * self.one).sum(dim=1).view_as(weights) * weights.shape[1]
        self.z.grad, self.logits.grad = torch.autograd.grad([x, weights], [self.z, self.logits], [on_x, on_weights])
        self.objective = finite(value)
        return value + penalised(self.z, self.latent)

    def rounded(self, plan: TrainingPlan, generator: Generator) -> tuple[Tensor, Tensor]:
        """z and labels of the ``plan``'s images, as many of a class and group as its weight says."""
        weights, size = softmax(self.logits.detach(), dim=1), self.logits.shape[1]
        groups = plan.batches if len(weights) > 1 else [tuple(range(plan.images))]
        z = self.z.new_empty((plan.images, *self.z.shape[1:]))
        y = self.y.new_empty(plan.images)
        for group, rows in enumerate(groups):
            places = repeated(weights[group] * len(rows), len(rows)).to(y.device) + group * size
            z[list(rows)], y[list(rows)] = self.z.detach()[places], self.y[places]
        return z + (_APART * torch.randn(z.shape, generator=generator)).to(z), y


def finite(value: Tensor) -> float:
    """The value, infinite where it is not a number."""
    number = float(value)
    return number if number < float("inf") else float("inf")


def penalised(z: Tensor, latent: Latent) -> Tensor:
    """The penalty of the coordinates z [N, ...], 0-d; its slope is added to theirs."""
    size, plain = z[0].numel(), z.detach()
    if latent.weight and z.grad is not None:
        z.grad = z.grad + plain * (2 * latent.weight / size)
    return latent.weight * plain.square().sum() / size


class LabelSearch:
    """The search on one target."""

    def __init__(self, target: Target, task: Task, budget: Budget, latent: Latent = PIXELS) -> None:
        self.target, self.task, self.budget, self.latent = target, task, budget, latent
        self.used = sum(len(rows) for rows in target.plan.batches)
        self.steps = [
            tuple(step for step, rows in enumerate(target.plan.batches) if image in rows)
            for image in range(target.plan.images)
        ]

    def descended(self, optimizer: Lbfgs, evaluate: Callable[[], Tensor], iterations: int, rows: int) -> None:
        """Take so many steps, and evaluate once more; an evaluation passes so many rows through the model."""

        def paid() -> tuple[Tensor, Tensor]:
            self.budget.spend(rows / self.used)
            return evaluate(), torch.empty(0)

        for _ in range(0, iterations, optimizer.chunk):
            if not self.budget.left():
                break
            optimizer.step(paid, 0)
        paid()

    def mixture(self, generator: Generator) -> Mixture:
        """The most promising of as many starts as the budget pays for: the better half goes on until one is left."""
        classes = likeliest(self.target, self.task, generator)
        pool = [Mixture(self.target, self.task, self.latent, classes, generator)]
        paid = self.budget.left() * self.used / pool[0].rows - _MIX
        while len(pool) < _STARTS and 4 * len(pool) * _SCOUT <= paid:  # twice as many, and as many in all halves
            pool += [Mixture(self.target, self.task, self.latent, classes, generator) for _ in pool]
        while len(pool) > 1:
            for each in pool:
                self.descended(each.optimizer, each.evaluate, _SCOUT, each.rows)
            pool = sorted(pool, key=lambda each: each.objective)[: len(pool) // 2]
        self.descended(pool[0].optimizer, pool[0].evaluate, _MIX, pool[0].rows)
        return pool[0]

    def fixed(self, z: Tensor, y: Tensor, iterations: int) -> Assigned:
        """A descent of the images with these labels."""
        z, value = z.clone().requires_grad_(), [torch.tensor(float("inf"))]

        def evaluate() -> Tensor:
            value[0], z.grad, _ = self.slopes(z, y, y)
            return value[0] + penalised(z, self.latent)

        self.descended(Lbfgs([z], iterations), evaluate, iterations, self.used)
        return Assigned(z.detach(), y, finite(value[0]))

    def settled(self, at: Assigned, objective: float) -> Assigned:
        """The images after further descents with their labels, while these help and it misses more than that."""
        while at.objective > objective and self.budget.left():
            further = self.fixed(at.z, at.y, _FIX)
            if further.objective > _CLEARLY * at.objective:
                return min(at, further, key=lambda each: each.objective)
            at = further
        return at

    def slopes(self, z: Tensor, y: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The distance and its slopes: in z, and in the labels where these are probabilities, for each class with the
        image that z stands for in it."""
        with torch.enable_grad():
            variable = z.detach().clone().requires_grad_()
            x = self.latent.decode(variable, y)
        dummy, pullback = linearised(self.target, x.detach(), labels)
        value, slope = euclidean(dummy, self.target.flat, self.target.support)
        on_x, on_y = pullback(slope)
        (on_z,) = torch.autograd.grad(x, variable, on_x)
        if on_y is not None:
            classes = torch.arange(self.task.classes, device=y.device)
            with torch.no_grad():
                means = self.latent.decode(torch.zeros_like(z[:1]).expand(len(classes), *z.shape[1:]), classes)
            on_y = on_y + on_x.flatten(1) @ means.flatten(1).T
        return value, on_z, on_y

    def ranked_moves(self, at: Assigned) -> list[Move]:
        slope = self.slopes(at.z, at.y, one_hot(at.y, self.task.classes).to(at.z))[2]
        self.budget.spend(1)
        ranked = [] if slope is None else moves(slope, at.y, self.steps)
        # New labels for one image promise more than they hold, so they may not crowd out the exchanges.
        kinds = [[move for move in ranked if len(move) == length][:_TRIED] for length in (1, 2)]
        return [move for move in ranked if any(move in kind for kind in kinds)]

    def improvements(self, at: Assigned) -> Iterator[Assigned]:
        """Better and better assignments, each a move away from the one before."""
        seen = {tuple(at.y.tolist())}
        better: Assigned | None = at
        while better is not None and better.objective > EXPLAINED and self.budget.left():
            at, better = better, None
            for move in self.ranked_moves(at):
                y = made(at.y, move)
                if tuple(y.tolist()) in seen or not self.budget.left():
                    continue
                seen.add(tuple(y.tolist()))
                tried = self.fixed(at.z, y, _TRY)
                if tried.objective < (at if better is None else better).objective:
                    better = tried
                if tried.objective < _CLEARLY * at.objective:
                    break
            if better is not None:
                better = self.fixed(better.z, better.y, _TRY)
                yield better


class Searched(NamedTuple):
    """What the first round of a search came to, and the best of all."""

    first: Assigned
    best: Assigned


def search(target: Target, task: Task, generator: Generator, budget: Budget, latent: Latent = PIXELS) -> Searched:
    """The images and labels that explain the target best, over as many rounds as the budget pays for, at least one.
    Raises ``AttackError`` where none has a finite objective."""
    paid = Budget(_SHARE * budget.left(), budget.late)
    budget.spend(paid.evaluations)
    work, found = LabelSearch(target, task, paid, latent), list[Assigned]()
    while not found or (min(each.objective for each in found) > EXPLAINED and paid.left()):
        z, y = work.mixture(generator).rounded(target.plan, generator)
        found.append(work.settled(work.fixed(z, y, _FIX), EXPLAINED))
        found += work.improvements(found[-1])
    budget.spend(-paid.evaluations)  # what was not needed, or too much
    found = [each for each in found if each.objective < float("inf")]
    if not found:
        raise AttackError("the objective is not finite: the search for labels diverged")
    best = min(found, key=lambda each: each.objective)
    return Searched(found[0], LabelSearch(target, task, budget, latent).settled(best, _SOLVED))
