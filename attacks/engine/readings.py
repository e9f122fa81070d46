"""Other readings of an update, where the client may have trained or sent otherwise than its view says.

any loss     The gradient of a loss L is J^T s: J is the Jacobian of the logits, s = dL/dlogits. A bias that is added to
             the logits has the gradient s itself. So s is read there, and the gradient of <s, logits> takes the place
             of cross-entropy's. It is the same whatever L is: several labels at once (binary cross-entropy), focal
             loss, soft labels (mixup, smoothing, distillation), weights of classes, a clipped gradient.
what moved   An app may send few values (a top-k of its own) and say nothing of it. Then a zero is no gradient of zero,
             and what moved is all that is compared.
own scales   Each tensor has a factor of its own: LARS, rates by layer, gradients clipped layer by layer. Then each is
             compared but for its size.
the weights  A multiple of the weights is in the update: weight decay that the view does not tell, AdamW's, or an app
             that answers with differences, gradients or weighted weights, of which the weights were subtracted once
             more. The multiple is the median of update over weight, by the size of the weights: exact where
             many values have no gradient, and near where gradients have either sign; what it may be off is not
             compared. Minus one is the weights themselves.
signs        Each value has a factor of its own that is above zero: Adam's and Adagrad's steps, RMSprop's, sign SGD,
             values clipped one by one. What is left of a gradient are its signs, and these are compared, softly, since
             the descent needs a slope. They are fewer bits than an image has, so that what they fit is no explanation.

The first two are for one image in one step, the third is for one step, of several images where the sizes of the tensors
tell of it. The bias is told by its gradient, not by its name.
"""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from prunella.attacks.engine.matching import Target, target_gradient
from prunella.attacks.engine.objectives import flatten, split
from prunella.core.trees import Tree, map_trees
from prunella.core.types import ServerView

ANY_LOSS, MOVED, SCALES = "of any loss", "of what moved", "at any scale of each tensor"
WEIGHTS, OPPOSITE, SIGNS = "less the weights", "as a gradient", "by its signs"
NORMALISED = "of images normalised"  # how is said behind it (``engine.otherwise``)
READINGS = (ANY_LOSS, MOVED, SCALES, WEIGHTS, OPPOSITE)  # all that images may explain
_SAME = 1e-4  # relative distance up to which the gradient of a parameter is the slope that was put in
_STILL = 0.5  # share of the update that did not move, from which on a zero may be a value that was not sent
_MANY = 100  # values of a tensor from which on their sizes, or their share of the weights, say something
# Mean size squared over mean square: 0.64 of normal values, 1 of signs, and less than 0.6 of most gradients. Where it
# is plainly more, signs are compared before all else. One linear layer of two classes has that of its inputs, up
# to 0.94 of photographs: what the view says is asked about afterwards.
_FLAT, _FLATTEST = 0.65, 0.75
_SOFT = 0.2  # of the usual size: what is far above it counts as its sign
# The weights are in an update where without them so little of its size is left, or so many values are still.
_LESS, _STILLED = 0.9, 0.01
MOSTLY = 0.5  # the same, where an update is hardly anything but the weights
_WHOLE = 0.01  # how far from -1 the multiple may be, where the weights were subtracted once more
_PRUNED = 0.1  # how far from 1 the multiple of the weights may be that is left then where a client pruned
_ASKED = 2**20  # values that a median is of, at most
_ALIKE = 0.02  # relative deviation of sizes that are one
_ROUNDED = 2.0**-22  # of a weight: what float32 leaves of it where nothing moved


class OtherReading(NamedTuple):
    """How an update is read, and the view and the problem that it then is."""

    how: str
    view: ServerView
    target: Target


class Less(NamedTuple):
    """A ``view`` whose update is less a multiple of the weights, the share of its size that is ``kept``, and whether
    the ``whole`` weights were subtracted, so that the update may be a gradient as well."""

    view: ServerView
    kept: float
    whole: bool


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


def at_own_scales(target: Target) -> Target:
    """``target`` compared but for the size of each tensor."""
    sizes = {name: seen.norm() for name, seen in split(target.flat, target.params).items()}

    def made(gradient: Tree) -> Tree:
        return {name: g * (sizes[name] / g.norm().clamp_min(1e-30)) for name, g in gradient.items()}

    return dataclasses.replace(target, made=made, network=None)


def sized_apart(moved: Tree, weights: Tree) -> bool:
    """Whether the weights of all layers moved by like amounts, or by like shares of themselves, as no gradient does:
    gradients clipped layer by layer, LARS (You et al. 2017).

    >>> weights = {"a": torch.ones(2, 2), "b": torch.ones(2, 8)}
    >>> moved = [{"a": a * weights["a"], "b": weights["b"]} for a in (1.0, 2.0, 3.0)]
    >>> [sized_apart(each, weights) for each in moved]
    [True, True, False]
    """
    layers = [name for name, weight in weights.items() if weight.dim() > 1]
    sizes = torch.tensor([float(moved[name].norm()) for name in layers])
    shares = sizes / torch.tensor([float(weights[name].detach().norm()) for name in layers])
    return len(layers) > 1 and any(float(each.std() / each.mean()) < _ALIKE for each in (sizes, shares))


def signs(gradient: Tree) -> Tree:
    """The signs of a gradient, softly: h / sqrt(h^2 + 1) of h = g / s, s far below the usual size of a tensor's values.

    >>> signs({"w": torch.tensor([-1.0, 0.0, 2.0])})["w"]
    tensor([-0.9601,  0.0000,  0.9896])
    """

    def soft(g: Tensor) -> Tensor:
        moved = g.detach()[g.detach() != 0].abs()
        h = g / (_SOFT * moved.sqrt().mean().square()) if len(moved) else g
        return h / (h.square() + 1).sqrt()

    return {name: soft(g) for name, g in gradient.items()}


def by_signs(target: Target) -> Target:
    """``target`` of which the signs alone are compared."""
    flat = flatten(signs(split(target.flat, target.params)).values())
    return dataclasses.replace(target, flat=flat, made=signs, network=None)


def evenness(target: Target) -> float:
    """How far the update's values are of one size, each tensor's for itself: 1 for signs."""
    seen = [g[g != 0].abs() for g in split(target.flat, target.params).values()]
    large = [each for each in seen if len(each) >= _MANY]
    sizes = sum(len(each) * float(each.mean().square() / each.square().mean()) for each in large)
    return sizes / max(1, sum(map(len, large)))


def even(target: Target) -> bool:
    """Whether the update is plainly no gradient, of any loss. Of one of which an app sent the largest values, or drew
    which to send (TernGrad), these are of more like sizes, too."""
    return evenness(target) > _FLAT and of_what_moved(target) is None


def multiple(update: Tensor, weights: Tensor) -> float:
    """The median of update over weight, each weighed by the weight's size."""
    told = weights != 0
    if not bool(told.any()):
        return 0.0
    stride = 1 + int(told.sum()) // _ASKED
    ratios, order = (update[told] / weights[told])[::stride].sort()
    below = weights[told][::stride][order].abs().cumsum(0)
    return float(ratios[int(torch.searchsorted(below, below[-1] / 2))])


def less_weights(view: ServerView) -> Less | None:
    """``view`` without the multiple of the weights that is in its update, of each tensor its own where that is large
    enough to tell, else that of all or none; None where none is, which of a large model is told by some of its
    values."""
    stride = 1 + sum(u.numel() for u in view.update.values()) // _ASKED
    if stride > 1:
        some = [{name: t.flatten()[::stride] for name, t in tree.items()} for tree in (view.params, view.update)]
        if less_weights(dataclasses.replace(view, params=some[0], update=some[1])) is None:
            return None
    known = (view.learning_rate or 1.0) * (view.steps or 1) * view.weight_decay
    weights = {name: view.params[name].double() for name in view.update}
    moved = {name: u.double() + known * weights[name] for name, u in view.update.items()}
    every = multiple(flatten(moved.values()), flatten(weights.values()))
    whole = abs(every + 1) <= _WHOLE

    def without(u: Tensor, w: Tensor) -> Tensor:
        own = [-1.0] if whole else [multiple(u.flatten(), w.flatten())] if u.numel() >= _MANY else [every, 0.0]
        rest, much = min(((u - m * w, m) for m in own), key=lambda each: float(each[0].abs().sum()))
        return torch.where(rest.abs() <= _ROUNDED * max(1.0, abs(1 + much)) * w.abs(), 0.0, rest)

    rest = map_trees(without, moved, weights)
    before, after, own = (flatten(tree.values()) for tree in (moved, rest, weights))
    size, left = float(before.abs().sum()), float(after.abs().sum())
    stilled = (after == 0) & (before.abs() > _ROUNDED * own.abs())
    if not left or (left > _LESS * size and float(stilled.double().mean()) < _STILLED):
        return None
    if whole and abs(multiple(after[after != 0], own[after != 0]) - 1) <= _PRUNED:
        return None  # what is not minus the weights is next to nothing: the client has zeroed the others
    update = {name: (r - known * weights[name]).to(view.update[name].dtype) for name, r in rest.items()}
    return Less(dataclasses.replace(view, update=update), left / size, whole)


def beside_weights(target: Target) -> Target:
    """``target`` compared but for the multiple of each tensor's weights that is in it: the one that was taken away is
    an estimate."""
    axes = {name: p.detach() / p.detach().norm().clamp_min(1e-30) for name, p in target.params.items()}

    def made(gradient: Tree) -> Tree:
        return {name: g - (g * axes[name]).sum() * axes[name] for name, g in gradient.items()}

    flat = flatten(made(split(target.flat, target.params)).values())
    return dataclasses.replace(target, flat=flat, made=made, network=None)


def seen_as(target: Target, view: ServerView) -> Target:
    """``target`` of a view of the same model with another update."""
    flat = flatten(target_gradient(view).values())
    return dataclasses.replace(target, flat=flat if target.support is None else flat * target.support)


def opposite(view: ServerView, target: Target) -> OtherReading:
    """The update as a gradient, which an app may send in its place."""
    rate = (view.learning_rate or 1.0) * (view.steps or 1)
    turned = dataclasses.replace(view, update={name: -rate * u for name, u in view.update.items()})
    return OtherReading(OPPOSITE, turned, seen_as(target, turned))


def at_once(view: ServerView, target: Target) -> OtherReading | None:
    """How an update is to be read before all else, where it is plainly no gradient as the view says: without the
    weights that it mostly is, or, of one step, by its signs; None where it is not."""
    less = less_weights(view)
    seen, before = (view, "") if less is None else (less.view, f"{WEIGHTS}, ")
    problem = target if less is None else seen_as(target, seen)
    if view.steps in (None, 1) and even(problem) and evenness(problem) > _FLATTEST:
        return OtherReading(before + SIGNS, seen, by_signs(problem))
    if less is None or less.kept > MOSTLY:
        return None
    return OtherReading(WEIGHTS, seen, problem if less.whole else beside_weights(problem))


def readings(view: ServerView, target: Target, x: Tensor) -> list[OtherReading]:
    """What else the update of a ``view``, of which ``target`` is the problem, may be; x [1, C, H, W] is any image."""
    found, less, before = list[OtherReading](), less_weights(view), ""
    if less is not None:
        view, target, before = less.view, seen_as(target, less.view), f"{WEIGHTS}, "
        found.append(OtherReading(WEIGHTS, view, target if less.whole else beside_weights(target)))
        found += [opposite(view, target)] if less.whole else []
    if not even(target) and view.steps in (None, 1):
        single = view.images_used == 1
        more = {ANY_LOSS: of_any_loss(target, x), MOVED: of_what_moved(target)} if single else {}
        # Of several images each reading costs those that are merely hard.
        if single or sized_apart(split(target.flat, target.params), target.params):
            more[SCALES] = at_own_scales(target)
        # Labels of several images are counted by the size of a slope, unless no rate says what that is.
        seen = {SCALES: view if view.weight_decay else dataclasses.replace(view, learning_rate=None)}
        found += [OtherReading(before + how, seen.get(how, view), t) for how, t in more.items() if t is not None]
    if evenness(target) > _FLAT:  # last, since it explains nothing
        found.append(OtherReading(before + SIGNS, view, by_signs(target)))
    return found
