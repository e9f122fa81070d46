"""Many guesses of one image each in one batch: objectives and slopes, weight gradients formed only where that is cheap.

For views of one local step on one image at the same weights (several clients of a round), or one view with several
labels. A layer's weight gradient is g = delta a^T, with ``a`` its input [K, P] (patches of a convolution; P = 1 if it
is linear) and ``delta`` the gradient in its output [O, P]. All an objective asks of g is |g|^2 and <g, t>, and its
slope in g is alpha g + beta t (``attacks.objectives``), so that only products of g are wanted, which need no g:

|g|^2 = <a^T a, delta^T delta>,    g a = delta (a^T a),    g^T delta = a (delta^T delta)

Where P is large, or g is compared on a support only, g itself costs less. The target of an undefended linear layer is
an outer product too, and its two factors are used. Batch norm sees every image alone, as its client did.

``folded`` replaces the layers of a ``Network`` by such layers; its passes are the same. Their "gradient" is a tensor
[2, B] of |g|^2 and <g, t> for every guess, and a direction of the weights is the two vectors alpha and beta, [B] each.
Equal to one guess at a time (``attacks.unrolled``) up to rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from attacks.layers import Affine, BatchNorm, Convolution, Layer
from attacks.matching import Target
from attacks.network import Network
from attacks.objectives import COEFFICIENTS, split
from core.errors import AttackError
from core.trees import Mask, Tree

_OUTER = 1e-6  # relative error up to which a target is an outer product


class Matrices:
    """Targets of one weight, [B, O, K] or [1, O, K] for all guesses, as factors where they are outer products."""

    def __init__(self, dense: Tensor) -> None:
        self.dense = dense
        row = dense.norm(dim=2).argmax(dim=1)[:, None, None].expand(-1, 1, dense.shape[2])
        right = dense.gather(1, row)
        right = right / right.norm(dim=2, keepdim=True).clamp_min(torch.finfo(dense.dtype).tiny)
        left = dense @ right.mT
        rest = (dense - left * right).norm(dim=(1, 2))
        self.factors = (left, right) if bool((rest <= _OUTER * dense.norm(dim=(1, 2))).all()) else None

    def times(self, a: Tensor) -> Tensor:
        """t a for a [B, K, P]."""
        return self.dense @ a if self.factors is None else self.factors[0] @ (self.factors[1] @ a)

    def transposed(self, delta: Tensor) -> Tensor:
        """t^T delta for delta [B, O, P]."""
        return self.dense.mT @ delta if self.factors is None else self.factors[1].mT @ (self.factors[0].mT @ delta)


@dataclass
class Kept:
    """What the passes of a folded layer leave each other, for one evaluation."""

    a: Tensor
    shape: Any
    delta: Tensor | None = None
    gradient: Tensor | None = None
    grams: tuple[Tensor, Tensor] | None = None
    aimed: Tensor | None = None  # t a
    bias: Tensor | None = None


class FoldedAffine(Layer):
    """A linear or convolution layer whose weight gradients are one for each image."""

    def __init__(self, layer: Affine, target: Tree, support: Tree | None) -> None:
        self.layer, self.weights = layer, layer.weights
        self.target = Matrices(target[layer.weight].flatten(2))
        self.bias = target.get(layer.bias)
        self.support = None if support is None else support[layer.weight].flatten(1)
        self.bias_support = None if support is None else support.get(layer.bias)

    def forms(self, a: Tensor) -> bool:
        """Whether the gradient itself is cheaper than products with it."""
        outputs, (inputs, places) = self.target.dense.shape[1], a.shape[1:]
        return self.support is not None or 2 * places * (inputs + outputs) > 3 * inputs * outputs

    def up(self, weight: Tensor, a: Tensor) -> Tensor:
        """W a, for a [B, K, P]."""
        return weight.flatten(1) @ a if a.shape[2] > 1 else (a.squeeze(2) @ weight.flatten(1).t()).unsqueeze(2)

    def down(self, weight: Tensor, delta: Tensor) -> Tensor:
        """W^T delta, for delta [B, O, P]."""
        flat = weight.flatten(1)
        return flat.t() @ delta if delta.shape[2] > 1 else (delta.squeeze(2) @ flat).unsqueeze(2)

    def lift(self, x: Tensor) -> Tensor:
        return self.layer.patches(x) if isinstance(self.layer, Convolution) else x.unsqueeze(2)

    def drop(self, patches: Tensor, shape: Any) -> Tensor:
        return self.layer.image(patches, shape) if isinstance(self.layer, Convolution) else patches.squeeze(2)

    def shaped(self, y: Tensor, shape: Any) -> Tensor:
        if isinstance(self.layer, Convolution):
            return y.reshape(*y.shape[:2], *self.layer.out(shape))
        return y.squeeze(2)

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        a = self.lift(x)
        y = self.up(w[self.layer.weight], a)
        if self.layer.bias in self.weights:
            y = y.add_(w[self.layer.bias][:, None])
        return self.shaped(y, x.shape), Kept(a, x.shape)

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        kept: Kept = saved
        kept.delta = delta.flatten(2) if delta.dim() > 2 else delta.unsqueeze(2)
        before = self.drop(self.down(w[self.layer.weight], kept.delta), kept.shape) if inner else None
        if self.forms(kept.a):
            kept.gradient = kept.delta @ kept.a.mT
            if self.support is not None:
                kept.gradient = kept.gradient * self.support
            sums = _sums(kept.gradient, self.target.dense)
        else:
            kept.grams = kept.a.mT @ kept.a, kept.delta.mT @ kept.delta
            kept.aimed = self.target.times(kept.a)
            sums = torch.stack([(kept.grams[0] * kept.grams[1]).sum((1, 2)), (kept.delta * kept.aimed).sum((1, 2))])
        if self.bias is not None:
            kept.bias = kept.delta.sum(2) if self.bias_support is None else kept.delta.sum(2) * self.bias_support
            sums = sums + _sums(kept.bias, self.bias)
        return before, {self.layer.weight: sums}

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        kept: Kept = saved
        alpha, beta = v["alpha"][:, None, None], v["beta"][:, None, None]
        direction = None
        if kept.gradient is not None:
            direction = torch.addcmul(beta * self.target.dense, kept.gradient, alpha)
            y_dot = direction @ kept.a
        else:
            grams, delta = cast(tuple[Tensor, Tensor], kept.grams), cast(Tensor, kept.delta)
            y_dot = torch.addcmul(beta * cast(Tensor, kept.aimed), delta @ grams[0], alpha)
        if kept.bias is not None and self.bias is not None:
            y_dot = y_dot + alpha * kept.bias[:, :, None] + beta * self.bias[:, :, None]
        if x_dot is not None:
            y_dot = y_dot + self.up(w[self.layer.weight], self.lift(x_dot))
        return self.shaped(y_dot, kept.shape), (alpha, beta, direction)

    def tangent_backward(
        self, w: Tree, v: Tree, saved: Any, moved: Any, delta: Tensor, delta_dot: Tensor, curved: bool
    ) -> tuple[Tensor, Tree]:
        kept: Kept = saved
        alpha, beta, direction = moved
        flat, flat_dot = (
            cast(Tensor, kept.delta),
            delta_dot.flatten(2) if delta_dot.dim() > 2 else delta_dot[:, :, None],
        )
        patches = self.down(w[self.layer.weight], flat_dot)
        if direction is not None:
            patches = patches + direction.mT @ flat
        else:
            grams = cast(tuple[Tensor, Tensor], kept.grams)
            patches = patches + alpha * (kept.a @ grams[1]) + beta * self.target.transposed(flat)
        return self.drop(patches, kept.shape), {}


class FoldedNorm(Layer):
    """Batch norm over each image alone: the images' channels side by side as channels of one."""

    def __init__(self, layer: BatchNorm, target: Tree, support: Tree | None) -> None:
        self.layer, self.weights = layer, layer.weights
        self.target = {name: target[name] for name in layer.weights}
        self.support = None if support is None else {name: support[name] for name in layer.weights}

    def beside(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).unsqueeze(0)

    def repeated(self, w: Tree, images: int) -> Tree:
        return {name: w[name].repeat(images) for name in self.weights}

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        many = self.repeated(w, len(x))
        y, saved = self.layer.forward(many, self.beside(x))
        return y.view(x.shape), [saved, many, x.shape, {}]

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        before, gradient = self.layer.backward(saved[1], saved[0], self.beside(delta), inner)
        for name, found in gradient.items():
            each = found.view(len(delta), -1)
            saved[3][name] = each if self.support is None else each * self.support[name]
        sums = sum(_sums(saved[3][name], self.target[name]) for name in self.weights)
        return None if before is None else before.view(saved[2]), {self.layer.weight: cast(Tensor, sums)}

    def direction(self, v: Tree, saved: Any) -> Tree:
        alpha, beta = v["alpha"][:, None], v["beta"][:, None]
        return {name: (alpha * saved[3][name] + beta * self.target[name]).flatten() for name in self.weights}

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        direction = self.direction(v, saved)
        dot = None if x_dot is None else self.beside(x_dot)
        y_dot, moved = self.layer.tangent(saved[1], direction, saved[0], dot)
        return cast(Tensor, y_dot).view(saved[2]), (moved, direction)

    def tangent_backward(
        self, w: Tree, v: Tree, saved: Any, moved: Any, delta: Tensor, delta_dot: Tensor, curved: bool
    ) -> tuple[Tensor, Tree]:
        given = saved[1], moved[1], saved[0], moved[0], self.beside(delta), self.beside(delta_dot), False
        return self.layer.tangent_backward(*given)[0].view(saved[2]), {}


def _sums(gradient: Tensor, target: Tensor) -> Tensor:
    """|g|^2 and <g, t> over all but the first dimension, [2, B]."""
    g = gradient.flatten(1)
    return torch.stack([g.square().sum(1), (g * target.flatten(1)).sum(1)])


Evaluation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def foldable(targets: Sequence[Target]) -> bool:
    """Whether guesses at these targets can share a batch: one image, one step, the same weights and support."""
    first = targets[0]

    def fits(target: Target) -> bool:
        if target.network is None or target.plan.images != 1 or len(target.plan.batches) != 1:
            return False
        same = all(torch.equal(tensor, first.params[name]) for name, tensor in target.params.items())
        if target.support is None or first.support is None:
            return same and target.support is first.support
        return same and torch.equal(target.support, first.support)

    return all(fits(target) for target in targets)


def evaluator(targets: Sequence[Target], objective: str) -> Evaluation:
    """(x [B, C, H, W], y [B]) -> objectives [B] and their slopes in x. One target serves all guesses, or one each.

    Raises ``AttackError`` where they are not ``foldable``.
    """
    if not foldable(targets):
        raise AttackError("these views cannot be attacked in one batch: other weights, another support or more images")
    first = targets[0]
    w = {name: tensor.detach() for name, tensor in first.params.items()}
    trees = [split(target.flat, w) for target in targets]
    stacked = {name: torch.stack([tree[name] for tree in trees]) for name in w}
    network = folded(cast(Network, first.network), stacked, None if first.support is None else split(first.support, w))
    squares = torch.stack([torch.dot(target.flat, target.flat) for target in targets])

    def evaluate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        at = network.gradient(w, x, y)
        square, dot = torch.stack(list(at.gradient.values())).sum(0)
        value, alpha, beta = COEFFICIENTS[objective](square, dot, squares)
        return value, network.derivative(w, at, {"alpha": alpha, "beta": beta}, curved=False)[0]

    return evaluate


def folded(network: Network, target: Tree, support: Mask | None) -> Network:
    """The network with a gradient for each image; ``target`` has [B, ...] or [1, ...] of every parameter."""

    def fold(layer: Layer | None) -> Layer | None:
        if isinstance(layer, Affine):
            return FoldedAffine(layer, target, support)
        return FoldedNorm(layer, target, support) if isinstance(layer, BatchNorm) else layer

    return Network(tuple(replace(step, layer=fold(step.layer)) for step in network.steps), alone=True)
