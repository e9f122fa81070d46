"""What rounding alone costs an explanation of an update whose values were rounded.

A run's ``values`` (``wire.rounding``) or an app may send fewer bits for a value. Then even the client's own images miss
some of what arrived: of one image on LeNet-Zhu 4e-5 with int8. How it was rounded is told by the values: all are whole
multiples of the 127th part of the largest of their tensor (int8), or have no more bits than bfloat16 or float16. What
images would have sent is rounded in the same way, and what that changes is what the rounding costs.

Not told: the rounding of weights, which an app that trains in bfloat16 or float16 does in every step.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.objectives import cosine, flatten, split
from prunella.attacks.engine.readings import signs
from prunella.core.trees import Tree
from prunella.core.types import ServerView

Rounder = Callable[[Tensor, float], Tensor]  # of values, and the largest magnitude of their tensor in the update
_DISTINCT = 8  # magnitudes of a tensor on the grid: fewer lie there by chance, or by a defense that sends signs
_OFF = 1e-6  # of the largest: what float32 leaves of a multiple of a step


def _int8(values: Tensor, most: float) -> Tensor:
    return ((values.double() * (127 / most)).round() * (most / 127)).float()


def _bfloat16(values: Tensor, most: float) -> Tensor:
    return values.bfloat16().float()


def _float16(values: Tensor, most: float) -> Tensor:
    power = 2.0 ** (math.frexp(most)[1] - 15)  # as the wire has it: nothing overflows
    return ((values.double() / power).half().double() * power).float()


def largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def rounder(update: Tree) -> Rounder | None:
    """How an update's values were rounded, None where they were not.

    >>> rounder({"w": torch.arange(-127, 128) * 0.01})(torch.tensor([0.0052]), 1.27)
    tensor([0.0100])
    >>> rounder({"w": torch.rand(255)})
    """
    sent = [(values.float(), largest(values)) for values in update.values() if bool(values.any())]
    for made, off in ((_int8, _OFF), (_bfloat16, 0.0), (_float16, 0.0)):
        if all(bool(((made(each, most) - each).abs() <= off * most).all()) for each, most in sent):
            return made if any(len(torch.unique(each.abs())) >= _DISTINCT for each, _ in sent) else None
    return None


def lost(view: ServerView, target: Target, sent: Tensor) -> float:
    """One minus the cosine of a gradient that images would have ``sent`` and the same, rounded as the update was."""
    if target.made is signs:  # the sizes of all values, which are more than what is compared
        return 1.0
    made = rounder(view.update)
    if made is None:
        return 0.0
    steps, rate = view.steps or 1, view.learning_rate or 1.0
    decay = view.weight_decay if steps == 1 else 0.0
    rounded = split(sent.clone(), target.params)
    for name, values in view.update.items():
        less = decay * view.params[name].float()  # what ``target_gradient`` took away
        if most := largest(values):
            rounded[name] = made((rounded[name] + less) * (-rate * steps), most) / (-rate * steps) - less
    flat = flatten(rounded.values())
    support = target.support
    return float(cosine(sent, flat if support is None else flat * support, support)[0])
