"""The engine under every attack that matches gradients: guess images, compare what they would have sent, improve.

minimise over x (and y): distance(gradient(x, y), target) + tv * TV(x), with x in [0, 1]
(DLG: Zhu et al. 2019, Algorithm 1; IG: Geiping et al. 2020, Eq. 4; SGI: PRI Algorithm 2). ``attacks.engine.matching``
makes the target and the support, ``attacks.engine.labels`` the labels. Restarts differ in their random start, and take
the next plausible labels where these are inferred; the lowest objective is kept, and a start that explains the update
is the last. The truth is nowhere to be seen here.

Adam follows Geiping's published settings: the sign of the image gradient, and the learning rate divided by ten at 3/8,
5/8 and 7/8 of the iterations. L-BFGS counts its iterations, not its function calls, and is kept in the box at the end
only, since a clipped step would spoil its curvature.

Guesses of one image each, be they restarts or the views of several clients in one round (``reconstruct_views``),
descend in batches of at most ``max_images``, which bounds the memory. A long attack can be stopped and taken up again
(``attacks.engine.resume``).

Stops early when the objective is below ``tolerance`` or has not improved by a thousandth for ``patience`` iterations.

Shapes: images [N, C, H, W] in [0, 1], soft labels [N, K]. Errors: ``AttackError``, names and shapes only.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.nn.functional import softmax

from prunella.attacks.engine.folded import Evaluation, foldable
from prunella.attacks.engine.folded import evaluator as folded_evaluator
from prunella.attacks.engine.labels import label_candidates
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.objectives import OBJECTIVES
from prunella.attacks.engine.priors import into_box, total_variation, total_variation_each
from prunella.attacks.engine.resume import Descent, Shelf, Slot
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

Weight = Annotated[float, Field(ge=0)]
DECAY_AT = (3 / 8, 5 / 8, 7 / 8)
LBFGS_CHUNK = 20  # iterations between two looks at the stopping rule
_START = (0.5, 0.25)  # mean and deviation of the first guess, clipped to the box
IMPROVEMENT = 1e-3
_SCOUT = 60  # iterations of a first look at a label; the right one is ahead long before
_EXPLAINED = 1e-4  # an update matched this well needs no further start
NOWHERE = Slot()


@dataclass(frozen=True)
class Inversion:
    """``labels`` counts only where the view has none; ``mask_aware`` compares on the recovered support only.

    At batch 1 up to ``labels_tried`` classes are tried, likeliest first, until one explains the update. ``auto`` is
    Adam, and L-BFGS for a network of sigmoids, on which Adam stays below 16 dB.
    """

    objective: Literal["cosine", "euclidean"] = "cosine"
    tv: Weight = 0.0
    optimizer: Literal["auto", "adam", "lbfgs"] = "auto"
    signed: bool = True
    learning_rate: Positive = 0.1
    iterations: Count = 300
    restarts: Count = 1
    labels_tried: Count = 10
    mask_aware: bool = True
    labels: Literal["infer", "optimise"] = "infer"
    patience: Count = 200
    tolerance: Weight = 1e-6
    max_images: Count = 16
    bf16: bool = False


Evaluate = Callable[[], Tensor]
Labels = list[Tensor | None]


@dataclass(frozen=True)
class Guess:
    """What is optimised: images, and logits of the labels or, where labels are known, the labels themselves."""

    x: Tensor
    y: Tensor
    soft: bool

    def variables(self) -> list[Tensor]:
        return [self.x, self.y] if self.soft else [self.x]

    def frozen(self, objective: float, iterations: int) -> Reconstruction:
        labels = self.y.detach().argmax(dim=1) if self.soft else self.y.clone()
        return Reconstruction(into_box(self.x.detach().clone()), labels, objective, iterations)


def first_guess(target: Target, task: Task, labels: Tensor | None, generator: Generator) -> Guess:
    images, device = target.plan.images, target.flat.device
    x = into_box(torch.randn((images, *task.shape), generator=generator) * _START[1] + _START[0]).to(device)
    if labels is not None:
        return Guess(x.requires_grad_(), labels, False)
    y = torch.randn((images, task.classes), generator=generator).to(device)
    return Guess(x.requires_grad_(), y.requires_grad_(), True)


def evaluator(target: Target, attack: Inversion, guess: Guess) -> Evaluate:
    """A closure that puts the gradient of the objective on the guess and returns the objective, 0-d."""
    distance = OBJECTIVES[attack.objective]

    def evaluate() -> Tensor:
        x, labels = guess.x.detach(), softmax(guess.y.detach(), dim=1) if guess.soft else guess.y
        dummy, pullback = linearised(target, x, labels)
        value, slope = distance(dummy, target.flat, target.support)
        on_x, on_labels = pullback(slope)
        if attack.tv:
            prior, smooth = total_variation(x)
            value = value + attack.tv * prior
            on_x = on_x.add(smooth, alpha=attack.tv)
        guess.x.grad = on_x
        if on_labels is not None:  # through the softmax
            guess.y.grad = labels * (on_labels - (labels * on_labels).sum(dim=1, keepdim=True))
        return value

    return evaluate


class Progress:
    """The best objective so far, the guess that had it, and whether to stop."""

    def __init__(self, attack: Inversion, guess: Guess) -> None:
        self.attack, self.guess, self.stale = attack, guess, 0
        self.best = guess.frozen(float("inf"), 0)
        self.mark = float("inf")

    def stop(self, objective: float, iterations: int) -> bool:
        """Note the objective of the present guess; True when going on is not worth it."""
        if not objective < float("inf"):
            raise AttackError("the objective is not finite: the attack diverged")
        self.stale = 0 if objective < self.mark * (1 - IMPROVEMENT) else self.stale + 1
        self.mark = min(self.mark, objective) if self.stale == 0 else self.mark
        if objective < self.best.objective:
            self.best = self.guess.frozen(objective, iterations)
        return objective <= self.attack.tolerance or self.stale >= self.attack.patience


def by_adam(attack: Inversion, guess: Guess, evaluate: Evaluate, slot: Slot = NOWHERE) -> Reconstruction:
    over = slot.over()
    if over is not None:
        return over[0]
    optimizer, schedule = _adam(attack, guess)
    progress = Progress(attack, guess)
    state = Descent(optimizer, guess.variables(), [progress])
    schedule.last_epoch = begin = slot.take_up(state)[0]
    for iteration in range(begin, attack.iterations + 1):
        slot.keep(state, iteration, [0])
        if progress.stop(float(evaluate()), iteration) or iteration == attack.iterations:
            break
        if attack.signed and guess.x.grad is not None:
            guess.x.grad.sign_()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            guess.x.clamp_(0.0, 1.0)
    slot.finish(state)
    return progress.best


def _adam(attack: Inversion, guess: Guess) -> tuple[torch.optim.Adam, torch.optim.lr_scheduler.MultiStepLR]:
    optimizer = torch.optim.Adam(guess.variables(), lr=attack.learning_rate)
    milestones = [int(share * attack.iterations) for share in DECAY_AT]
    return optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)


def lbfgs(variables: Sequence[Tensor], iterations: int) -> torch.optim.LBFGS:
    """An L-BFGS whose step is a chunk of ``LBFGS_CHUNK`` iterations, and which leaves it to its caller when to stop."""
    return torch.optim.LBFGS(
        list(variables),
        max_iter=min(LBFGS_CHUNK, iterations),
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )


def by_lbfgs(attack: Inversion, guess: Guess, evaluate: Evaluate, slot: Slot = NOWHERE) -> Reconstruction:
    over = slot.over()
    if over is not None:
        return over[0]
    optimizer = lbfgs(guess.variables(), attack.iterations)
    progress = Progress(attack, guess)
    state = Descent(optimizer, guess.variables(), [progress])
    for iteration in range(slot.take_up(state)[0], attack.iterations + LBFGS_CHUNK, LBFGS_CHUNK):
        slot.keep(state, iteration, [0])
        done = min(iteration, attack.iterations)
        if progress.stop(float(evaluate()), done) or done == attack.iterations:
            break
        optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    slot.finish(state)
    return progress.best


def labels_to_try(view: ServerView, target: Target, task: Task, attack: Inversion, generator: Generator) -> Labels:
    """Known labels, or those the last layer suggests, or None: to be optimised with the images."""
    if view.labels is not None:
        return [view.labels[: target.plan.images].detach().clone()]
    if attack.labels == "optimise":
        return [None]
    return label_candidates(target, task, view.learning_rate is not None, generator)


def descent(attack: Inversion, module: nn.Module) -> Literal["adam", "lbfgs"]:
    """The optimizer an attack uses on this model."""
    if attack.optimizer != "auto":
        return attack.optimizer
    return "lbfgs" if any(isinstance(layer, nn.Sigmoid) for layer in module.modules()) else "adam"


def descents(
    targets: Sequence[Target], attack: Inversion, guesses: Sequence[Guess], shelf: Shelf
) -> list[Reconstruction]:
    """Every guess's descent towards its target, or towards the one there is: in batches of at most ``max_images``
    guesses where the engine can fold them, else one after the other."""
    each = list(targets) if len(targets) > 1 else [targets[0]] * len(guesses)
    if descent(attack, each[0].module) != "adam" or any(guess.soft for guess in guesses) or not foldable(targets):
        descend = by_adam if descent(attack, each[0].module) == "adam" else by_lbfgs
        return [
            descend(attack, guess, evaluator(target, attack, guess), slot_of(shelf, attack, [target], [guess]))
            for guess, target in zip(guesses, each, strict=True)
        ]
    best: list[Reconstruction] = []
    for first in range(0, len(guesses), attack.max_images):
        batch, wanted = guesses[first : first + attack.max_images], each[first : first + attack.max_images]
        x, y = torch.cat([guess.x.detach() for guess in batch]), torch.cat([guess.y for guess in batch])
        evaluate = folded_evaluator(wanted if len(targets) > 1 else targets, attack.objective)
        best += together(attack, x, y, evaluate, slot_of(shelf, attack, wanted, batch))
    return best


def slot_of(shelf: Shelf, attack: Inversion, targets: Sequence[Target], guesses: Sequence[Guess]) -> Slot:
    variables = [variable for guess in guesses for variable in guess.variables()]
    return shelf.slot(attack, [*variables, *(target.flat for target in targets)])


def together(
    attack: Inversion, x: Tensor, y: Tensor, evaluate: Evaluation, slot: Slot = NOWHERE
) -> list[Reconstruction]:
    """``by_adam`` of many guesses x [B, C, H, W], y [B] in one batch; each stops by its own rule, the batch when all
    have. What stopped goes on unseen: its best guess is kept."""
    over = slot.over()
    if over is not None:
        return over
    x = x.clone()
    guesses = [Guess(image[None], label[None], False) for image, label in zip(x, y, strict=True)]
    progress, open_ = [Progress(attack, guess) for guess in guesses], set(range(len(x)))
    optimizer, schedule = _adam(attack, Guess(x, y, False))  # of which every single guess is a view
    state = Descent(optimizer, [x], progress)
    begin, left = slot.take_up(state)
    schedule.last_epoch, open_ = begin, open_ if left is None else set(left)
    for iteration in range(begin, attack.iterations + 1):
        slot.keep(state, iteration, open_)
        values, slopes = evaluate(x, y)
        if attack.tv:
            prior, smooth = total_variation_each(x)
            values, slopes = values + attack.tv * prior, slopes.add(smooth, alpha=attack.tv)
        for place, value in enumerate(values.tolist()):
            if place in open_ and progress[place].stop(value, iteration):
                open_.remove(place)
        if not open_ or iteration == attack.iterations:
            break
        x.grad = slopes.sign() if attack.signed else slopes
        optimizer.step()
        schedule.step()
        x.clamp_(0.0, 1.0)
    slot.finish(state)
    return [each.best for each in progress]


def explained(reconstruction: Reconstruction, attack: Inversion) -> bool:
    return reconstruction.objective <= max(attack.tolerance, _EXPLAINED)


def reconstruct(
    view: ServerView, task: Task, attack: Inversion, generator: Generator, shelf: Shelf | None = None
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that best explain the view, over all starts.

    At batch 1, where the likeliest label does not explain the update, the others are scouted with short descents and
    the most promising one gets a full one. ``shelf`` is where a long attack is taken up again.
    """
    target, shelf = target_of(view, task.build(), attack.mask_aware, attack.max_images, attack.bf16), shelf or Shelf()
    candidates = labels_to_try(view, target, task, attack, generator)

    def attempts(labels: Labels, settings: Inversion) -> list[Reconstruction]:
        return descents([target], settings, [first_guess(target, task, each, generator) for each in labels], shelf)

    found = [_alone(target, attack, first_guess(target, task, candidates[0], generator), shelf)]
    others = candidates[1 : attack.labels_tried] if target.plan.images == 1 else []
    if others and not explained(found[0], attack):
        short = dataclasses.replace(attack, iterations=min(_SCOUT, attack.iterations))
        scouts = [each.objective for each in attempts(others, short)]
        chosen = others[scouts.index(min(scouts))]
        found.append(_alone(target, attack, first_guess(target, task, chosen, generator), shelf))
    if attack.restarts > len(found) and not explained(found[-1], attack):
        found += _restarts(found, candidates, attack, attempts)
    return min(found, key=lambda reconstruction: reconstruction.objective)


def _alone(target: Target, attack: Inversion, guess: Guess, shelf: Shelf) -> Reconstruction:
    descend = by_adam if descent(attack, target.module) == "adam" else by_lbfgs
    return descend(attack, guess, evaluator(target, attack, guess), slot_of(shelf, attack, [target], [guess]))


def _restarts(
    found: Sequence[Reconstruction],
    candidates: Labels,
    attack: Inversion,
    attempts: Callable[[Labels, Inversion], list[Reconstruction]],
) -> list[Reconstruction]:
    """The starts that are left, a batch at a time, until one explains the update."""
    more: list[Reconstruction] = []
    left = [candidates[start % len(candidates)] for start in range(len(found), attack.restarts)]
    width = attack.max_images if len(found[0].x) == 1 else 1
    for first in range(0, len(left), width):
        more += attempts(left[first : first + width], attack)
        if any(explained(each, attack) for each in more):
            break
    return more


def reconstruct_views(
    views: Sequence[ServerView], task: Task, attack: Inversion, generator: Generator, shelf: Shelf | None = None
) -> list[Reconstruction]:
    """The views of several clients in one round attacked together, ``restarts`` starts each: one image and one step a
    client, from the same weights. Raises ``AttackError`` for other views: attack those one by one."""
    targets = [target_of(view, task.build(), attack.mask_aware, attack.max_images, attack.bf16) for view in views]
    if not targets or not foldable(targets):
        raise AttackError("these views cannot be attacked in one batch: other weights, another support or more images")
    guesses, each = [], []
    for view, target in zip(views, targets, strict=True):
        labels = labels_to_try(view, target, task, attack, generator)
        for start in range(attack.restarts):
            guesses.append(first_guess(target, task, labels[start % len(labels)], generator))
            each.append(target)
    found = descents(each, attack, guesses, shelf or Shelf())
    rows = [found[first : first + attack.restarts] for first in range(0, len(found), attack.restarts)]
    return [min(row, key=lambda reconstruction: reconstruction.objective) for row in rows]
