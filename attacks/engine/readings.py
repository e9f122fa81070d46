"""Other readings of one image's update, where the client may have trained or sent otherwise than its view says.

any loss    The gradient of a loss L is J^T s: J is the Jacobian of the logits, s = dL/dlogits. A bias that is added to
            the logits has the gradient s itself. So s is read there, and the gradient of <s, logits> takes the place of
            cross-entropy's. It is the same whatever L is: several labels at once (binary cross-entropy), focal loss,
            soft labels (mixup, smoothing, distillation), weights of classes, a clipped gradient.
what moved  An app may send few values (a top-k of its own) and say nothing of it. Then a zero is no gradient of zero,
            and what moved is all that is compared.

Both are for one image in one step. The bias is told by its gradient, not by its name.
"""

import dataclasses

import torch
from torch import Tensor

from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.objectives import split

ANY_LOSS, MOVED = "of any loss", "of what moved"
_SAME = 1e-4  # relative distance up to which the gradient of a parameter is the slope that was put in
_EVEN = 1.01  # the largest value of an update over its least one, up to which only signs arrived
_STILL = 0.5  # share of the update that did not move, from which on a zero may be a value that was not sent


def logit_bias(target: Target, x: Tensor) -> str | None:
    """The parameter that is added to the logits, found with an image x [1, C, H, W]; None where there is none."""
    with torch.enable_grad():
        logits = target.logits(x)
        slope = torch.linspace(-1.0, 2.0, logits.numel(), device=x.device).view_as(logits)
        found = torch.autograd.grad((logits * slope).sum(), list(target.params.values()), allow_unused=True)
    for name, gradient in zip(target.params, found, strict=True):
        if gradient is not None and gradient.shape == slope.shape[1:]:
            if float((gradient - slope[0]).norm()) <= _SAME * float(slope.norm()):
                return name
    return None


def of_any_loss(target: Target, x: Tensor) -> Target | None:
    """``target`` with the slope that the update tells in the place of cross-entropy's; None where it tells none."""
    name = logit_bias(target, x)
    if name is None or (target.support is not None and not bool(split(target.support, target.params)[name].all())):
        return None
    slope = split(target.flat, target.params)[name]
    few = of_what_moved(target) is not None  # then a slope of zero may be one that was not sent
    told = bool(slope.all()) if few else bool(slope.any())
    return dataclasses.replace(target, slope=slope[None], network=None) if told else None


def of_what_moved(target: Target) -> Target | None:
    """``target`` compared where the update is not zero; None where most of it moved, or that is done already."""
    moved = (target.flat != 0).to(target.flat)
    known = target.support is not None and bool((target.support == moved).all())
    return None if known or float(moved.mean()) > _STILL else dataclasses.replace(target, support=moved)


def readings(target: Target, x: Tensor) -> dict[str, Target]:
    """What else the update of one image may be, by how it is read; x [1, C, H, W] is any image."""
    sizes = target.flat[target.flat != 0].abs()
    if not len(sizes) or float(sizes.max()) <= _EVEN * float(sizes.min()):
        return {}  # signs (Adam's first step, sign SGD): no gradient of any loss
    found = {ANY_LOSS: of_any_loss(target, x), MOVED: of_what_moved(target)}
    return {how: each for how, each in found.items() if each is not None}
