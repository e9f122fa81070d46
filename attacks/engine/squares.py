"""What squared gradients beside a defended update tell: the images whose own are these.

PruneFL and FedTiny have clients send the mean squared gradient of every weight over the round's steps. Defenses of the
update leave those of pruned weights as they are: without a sign, and as exact as a gradient. So a guess is trained on
as the client trained (``matching``), and the root of its mean squares is compared with theirs, where no value of the
update arrived. Not from a paper: ours. Errors: ``AttackError``, as the engine raises it.
"""

import math

import torch
from torch import Tensor

from prunella.attacks.engine.adapted import AdaptedTarget
from prunella.attacks.engine.matching import Target, recovered_support, step_gradient
from prunella.core.trees import Mask, Tree
from prunella.core.types import ServerView
from prunella.tasks.task import Task
from prunella.tasks.training import sgd_step

_EQUATIONS = 4  # squares per unknown pixel from which on images that explain them are the client's
_LEAST = 1e-14  # of a square, where the root has no slope


def beside(view: ServerView) -> Mask:
    """Where a square came and no value of the update."""
    arrived = recovered_support(view)
    return {name: (square != 0) & ~arrived[name] for name, square in (view.importance or {}).items()}


def mean_squares(target: Target, x: Tensor, y: Tensor) -> Tree:
    """Mean over the steps of the guess's squared gradients, of all parameters, with its graph."""
    params, velocity, batches = target.params, dict[str, Tensor](), target.plan.batches
    total: Tree = {}
    for rows in batches:
        gradient = step_gradient(target, params, x[list(rows)], y[list(rows)])
        total = {name: g.square() + total.get(name, 0.0) for name, g in gradient.items()}
        if len(batches) > 1:
            params, velocity = sgd_step(params, gradient, velocity, target.plan.sgd, target.mask)
    return {name: square / len(batches) for name, square in total.items()}


def squares_target(view: ServerView, task: Task, target: Target) -> AdaptedTarget | None:
    """The problem that the squares pose; None where there are too few to tell images from others."""
    places = {name: at.to(target.flat.device) for name, at in beside(view).items()}
    count = sum(int(at.sum()) for at in places.values())
    if view.importance is None or count < _EQUATIONS * target.plan.images * math.prod(task.shape):
        return None
    told = {name: view.importance[name].to(target.flat) for name in places}

    def dummy(x: Tensor, y: Tensor) -> Tensor:
        squares = mean_squares(target, x, y)
        return torch.cat([(squares[name][at] + _LEAST).sqrt() for name, at in places.items()])

    wanted = torch.cat([told[name][at].clamp_min(0).sqrt() for name, at in places.items()])
    return AdaptedTarget(dummy, wanted, None, target)
