"""Which label belongs to which image and local step, where the last layer tells no more than how often each occurs.

Labels fixed into the wrong step cost 20 dB: every step sees other weights, and an image in a wrong one explains less of
the update. How much less grows with their number. On 4 steps of 4 digits (``cnn``, two seeds) L-BFGS comes to a
relative distance of 2e-6 to 3e-6 with the right labels (400 iterations), and in 240 to 4e-3 to 9e-3 with one pair
exchanged between steps, 1.0e-2 to 1.2e-2 with two, 1.2e-2 to 1.8e-2 with four, and 2.2e-2 to 3.6e-2 in a random order.
So a search by single changes can find its way:

1. ``starts`` starts descend with labels optimised, by L-BFGS; the best goes on and its likeliest labels are fixed;
2. ``moves``, a new label for an image or an exchange between two images of different steps, are ranked by the slope of
   the distance in the labels at these images, which costs one evaluation. In those 16 cases, an exchange
   that puts more steps right was among the best six of about ninety wherever at most four pairs were wrong (12 of 12),
   and in none of the four random orders;
3. the images descend a little from each of the first moves; the one that explains the update best is kept, and 2.
   starts again. Where none is better, other starts are searched, and the best of all is returned.

Images may leave [0, 1] on the way, since cutting them in every turn would undo most of a descent. What the search may
cost is counted in evaluations of the objective, so that its answer depends on nothing else.

Not from a paper: ours. Shapes: images [N, C, H, W], labels [N], slopes [N, K].
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from prunella.attacks.engine.descent import LBFGS_CHUNK, Lbfgs
from prunella.attacks.engine.inversion import EXPLAINED, Guess, Inversion, evaluator, first_guess
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.objectives import euclidean
from prunella.tasks.task import Task

Move = tuple[tuple[int, int], ...]  # (image, its new label), one or two of them

_HOW = Inversion(objective="euclidean", optimizer="lbfgs")
_SCOUT, _SOFT, _FIX, _TRY = 60, 60, 40, 20  # iterations of a start, of the best start, with labels fixed, of a move
_TRIED = 4  # moves of a kind that are tried, the best first
_CLEARLY = 0.6  # of the distance: a move that leaves less is taken at once
_UNSURE = 0.1  # deviation of the first logits: all labels are about as likely


class Assigned(NamedTuple):
    """Images, which may lie outside [0, 1], their labels, and the relative distance of their update."""

    x: Tensor
    y: Tensor
    objective: float


class Budget:
    """Evaluations of the objective that may still be made; none once ``late``."""

    def __init__(self, evaluations: int, late: Callable[[], bool] = lambda: False) -> None:
        self.evaluations, self.late = evaluations, late

    def left(self) -> int:
        return 0 if self.late() else max(0, self.evaluations)

    def spend(self, evaluations: int) -> None:
        self.evaluations -= evaluations


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


class LabelSearch:
    """The search on one target."""

    def __init__(self, target: Target, task: Task, budget: Budget) -> None:
        self.target, self.task, self.budget = target, task, budget
        self.steps = [
            tuple(step for step, rows in enumerate(target.plan.batches) if image in rows)
            for image in range(target.plan.images)
        ]

    def descended(self, guess: Guess, iterations: int) -> float:
        """Improve the guess in place, by L-BFGS. Returns the distance it comes to."""
        objective = evaluator(self.target, _HOW, guess)
        optimizer = Lbfgs(guess.variables(), min(iterations, LBFGS_CHUNK))
        for _ in range(0, iterations, LBFGS_CHUNK):
            if not self.budget.left():
                break
            optimizer.step(lambda: (objective(), torch.empty(0)), 0)
            self.budget.spend(LBFGS_CHUNK)
        value = float(objective())
        return value if value < float("inf") else float("inf")

    def fixed(self, x: Tensor, y: Tensor, iterations: int) -> Assigned:
        """A descent of the images with these labels."""
        guess = Guess(x.clone().requires_grad_(), y, False)
        value = self.descended(guess, iterations)
        return Assigned(guess.x.detach(), y, value)

    def started(self, generator: Generator) -> tuple[Guess, float]:
        """A descent of images and labels from a random start."""
        guess = first_guess(self.target, self.task, None, generator)
        guess = Guess(guess.x, (guess.y.detach() * _UNSURE).requires_grad_(), True)
        return guess, self.descended(guess, _SCOUT)

    def ranked_moves(self, at: Assigned) -> list[Move]:
        y = one_hot(at.y, self.task.classes).to(at.x)
        dummy, pullback = linearised(self.target, at.x, y)
        slope = pullback(euclidean(dummy, self.target.flat, self.target.support)[1])[1]
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
                tried = self.fixed(at.x, y, _TRY)
                if tried.objective < (at if better is None else better).objective:
                    better = tried
                if tried.objective < _CLEARLY * at.objective:
                    break
            if better is not None:
                better = self.fixed(better.x, better.y, _TRY)
                yield better


def search(target: Target, task: Task, generator: Generator, budget: Budget) -> Assigned:
    """The images and labels that explain the target best, over as many searches as the budget pays for, at least one.
    Raises ``AttackError`` as the objective does."""
    work, best = LabelSearch(target, task, budget), None
    while best is None or (best.objective > EXPLAINED and budget.left()):
        guess, _ = min((work.started(generator) for _ in range(2)), key=lambda start: start[1])
        work.descended(guess, _SOFT)
        at = work.fixed(guess.x.detach(), guess.y.detach().argmax(dim=1), _FIX)
        for found in (at, *work.improvements(at)):
            best = found if best is None or found.objective < best.objective else best
    return best
