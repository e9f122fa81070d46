"""What other images miss of an update, which says what missing little of it is worth.

An objective is relative to the whole update: 0 is all of it, and about 1 none. But much of an update may be the same
whatever the image is. The gradient of the last layer is its inputs times an error that the label nearly fixes, and
behind layers that saturate or add a constant (sigmoid, softplus, GELU, SiLU), with hardly trained weights, these
inputs are nearly those of any other image: of scikit-learn's digits, one of the same class misses 3e-5 of an update
behind softplus and 7e-4 behind GELU, where it misses a tenth in an MLP of ReLUs. There any image explains an update,
and what an attack found need not be the client's.

So what is found is held against pictures that are not the client's whatever was found: the same pixels, mirrored and
moved (``turned``). They miss about what another person's image of the class does: on seven small networks, untrained
and after 60 steps, 0.5 to 3 times as much. Images are an explanation of their own where they miss at most ``SHARE`` of
that. On the way down to one digit behind softplus and GELU, with all of the update and with its largest tenth, guesses
at 10 dB or less missed 5 % to all of it, and those that missed 0.3 % or less had 16 dB and more, while the plain
objective of a guess at 10 or 11 dB was anything from 5e-6 to 0.007.
"""

import math
import statistics
from typing import NamedTuple

import torch
from torch import Tensor

from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, dummy_gradient, target_of
from prunella.attacks.engine.objectives import cosine, flatten
from prunella.attacks.engine.rounding import lost
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

SHARE = 0.003  # of what others miss


class OtherImages(NamedTuple):
    """What other images miss of an update, infinity where nothing was held against them, and what its ``rounding``
    makes even the client's own miss (``attacks.engine.rounding``)."""

    missed: float = math.inf
    rounding: float = 0.0

    def beaten(self, missed: float) -> bool:
        """Whether images that miss so much are an explanation of their own. None are where others miss little more than
        rounding costs."""
        told = self.missed > 2 * self.rounding or not self.rounding
        return told and missed <= self.rounding + SHARE * (self.missed - self.rounding)

    def outside(self, limit: float, missed: float) -> bool:
        """Whether what misses so much says more than other images, where no more than a ``limit`` may be missed."""
        return self.missed > limit or self.beaten(missed)


def turned(x: Tensor) -> list[Tensor]:
    """Images x [N, C, H, W] mirrored along each side and both, and moved by half of each: all that differ from them. Of
    what is the same all along (a table [C, 1, 1], a blank page), its values moved by half, and half a range brighter.

    >>> len(turned(torch.rand(1, 1, 4, 4))), len(turned(torch.rand(1, 1, 1, 4))), len(turned(torch.rand(1, 6, 1, 1)))
    (4, 3, 2)
    >>> len(turned(torch.ones(1, 1, 4, 4)))
    1
    """
    height, width = x.shape[-2:]
    made = [x.flip(-1), x.flip(-2), x.flip(-1, -2), x.roll((height // 2, width // 2), (-2, -1))]
    if all(torch.equal(each, x) for each in made):
        made = [x.flatten(1).roll(x[0].numel() // 2, -1).view_as(x), (x + 0.5) % 1]
    return [each for each in made if not torch.equal(each, x)]


def sent(target: Target, x: Tensor, y: Tensor) -> Tensor:
    """What images x [N, C, H, W] with labels y [N] would have sent, without a graph."""
    if target.network is not None:
        return linearised(target, x, y)[0]
    return flatten(dummy_gradient(target, x, y, graph=False)).detach()


def missed(target: Target, x: Tensor, y: Tensor) -> float:
    """One minus the cosine of what images would have sent and what arrived."""
    return float(cosine(sent(target, x, y), target.flat, target.support)[0])


def missed_by_others(target: Target, x: Tensor, y: Tensor) -> float:
    """What other images with these labels miss: the median of those that are ``turned``."""
    return statistics.median(missed(target, each, y) for each in turned(x))


def others_of(view: ServerView, target: Target, x: Tensor, y: Tensor) -> OtherImages:
    return OtherImages(missed_by_others(target, x, y), lost(view, target, sent(target, x, y)))


def as_near(view: ServerView, task: Task, found: Reconstruction) -> bool:
    """Whether other images explain the update about as well as those ``found``. Not asked, and so False, where these
    are no images with labels of the task, are not as many as the view is of, or cannot be compared with it at all."""
    x, y = found.x.detach(), found.y
    if y is None or y.shape != x.shape[:1] or x.shape[1:] != tuple(task.shape) or not len(x):
        return False
    if not bool(((y >= 0) & (y < task.classes)).all()):
        return False
    try:
        target = target_of(view, task.build(), True, len(x))
        if target.plan.images != len(x):
            return False
        x, y = x.to(target.flat), y.to(target.flat.device, torch.long)
        return not others_of(view, target, x, y).beaten(missed(target, x, y))
    except (AttackError, RuntimeError, LookupError):  # somebody's own model, or memory that is not there
        return False
