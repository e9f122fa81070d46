"""Many guesses of one image each in one batch: objectives and slopes, weight gradients formed only where that is cheap.

For views of one local step on one image at the same weights (several clients of a round, each behind a mask of its
own), or one view with several labels. A layer's weight gradient is g = delta a^T, with ``a`` its input [K, P] (patches
of a convolution; P = 1 if it is linear) and ``delta`` the gradient in its output [O, P]. All an objective asks of g is
|g|^2 and <g, t>, and its slope in g is alpha g + beta t (``attacks.engine.objectives``), so that only products of g are
wanted, which need no g:

|g|^2 = <a^T a, delta^T delta>,    g a = delta (a^T a),    g^T delta = a (delta^T delta)

On a support M the same holds for P = 1, where g * M has the products a * a and delta * delta with M instead:

|g * M|^2 = (delta * delta)^T M (a * a),    (g * M) a = delta * M (a * a),    (g * M)^T delta = a * M^T (delta * delta)

A support of whole rows and columns (filters that are pruned, units that stayed silent) is taken into the two factors of
g instead. Where P is large, or larger than one with any other support, g itself costs less. The target of an undefended
linear layer is an outer product too, so its two factors are used. Batch norm normalises every image by itself, as the
client did.

``folded`` replaces the layers of a ``Network`` by such layers; its passes are the same. Their "gradient" is a tensor
[2, B] of |g|^2 and <g, t> for every guess, and a direction of the weights is the two vectors alpha and beta, [B] each.
Equal to one guess at a time (``attacks.engine.local_steps``) up to rounding.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from prunella.attacks.engine.layer_rules import Affine, BatchNorm, Convolution, LayerRule
from prunella.attacks.engine.matching import Target
from prunella.attacks.engine.network import Network
from prunella.attacks.engine.objectives import COEFFICIENTS, split
from prunella.core.errors import AttackError
from prunella.core.trees import Tree

_DIRECT = 1 << 15  # floats of an image's patches from which on the library convolves
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
        return _each(self.dense, a) if self.factors is None else self.factors[0] @ (self.factors[1] @ a)

    def transposed(self, delta: Tensor) -> Tensor:
        """t^T delta for delta [B, O, P]."""
        if self.factors is None:
            return _each(self.dense.mT, delta)
        left, right = self.factors
        found: Tensor = right.mT @ (left.mT @ delta)
        return found


@dataclass
class PassState:
    """What the passes of a folded layer keep for each other in an evaluation. ``a`` [B, K, P] is made when needed."""

    x: Tensor
    a: Tensor | None = None
    delta: Tensor | None = None
    gradient: Tensor | None = None
    products: tuple[Tensor, Tensor] | None = None  # (g * M) a and (g * M)^T delta
    aimed: Tensor | None = None  # t a
    bias: Tensor | None = None


class FoldedAffine(LayerRule):
    """A linear layer, or a small convolution on its patches, whose weight gradients are one for each image."""

    def __init__(self, layer: Affine, target: Tree, support: Tree | None) -> None:
        self.layer, self.weights = layer, layer.weights
        self.target = Matrices(target[layer.weight].flatten(2))
        self.bias = target.get(layer.bias)
        self.support = None if support is None else support[layer.weight].flatten(2)
        self.bias_support = None if support is None else support.get(layer.bias)
        self.sides = None if self.support is None else sides(self.support)

    def forms(self, inputs: int, places: int) -> bool:
        """Whether the gradient itself is cheaper than products with it."""
        outputs = self.target.dense.shape[1]
        if places > 1 and self.support is not None and self.sides is None:
            return True
        return 2 * places * (inputs + outputs) > 3 * inputs * outputs

    def products(self, a: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """(g * M) a [B, O, P] and (g * M)^T delta [B, K, P], without g; P = 1 where M is not of rows and columns."""
        if self.sides is not None:
            delta, a = delta * self.sides[0], a * self.sides[1]
        if self.support is None or self.sides is not None:
            return delta @ (a.mT @ a), a @ (delta.mT @ delta)
        return delta * _each(self.support, a.square()), a * _each(self.support.mT, delta.square())

    def up(self, weight: Tensor, x: Tensor, a: Tensor | None) -> Tensor:
        """W a, as the layer's output."""
        a = self.lift(x) if a is None else a
        flat = weight.flatten(1)
        y = flat @ a if a.shape[2] > 1 else (a.squeeze(2) @ flat.t()).unsqueeze(2)
        return self.shaped(y, x.shape)

    def down(self, weight: Tensor, delta: Tensor, shape: Any, more: Tensor | None = None) -> Tensor:
        """W^T delta and ``more`` patches, which it writes into, as the layer's input of this shape."""
        flat, delta = weight.flatten(1), _columns(delta)
        if delta.shape[2] == 1:
            patches = (delta.squeeze(2) @ flat).unsqueeze(2)
            return self.drop(patches if more is None else patches.add_(more), shape)
        back = flat.t().expand(len(delta), -1, -1)
        return self.drop(back @ delta if more is None else more.baddbmm_(back, delta), shape)

    def outer(self, kept: PassState) -> Tensor:
        """Every image's gradient, [B, O, K]."""
        return _columns(cast(Tensor, kept.delta)) @ cast(Tensor, kept.a).mT

    def each_up(self, direction: Tensor, kept: PassState) -> Tensor:
        """``up`` with weights [B, O, K] of every image's own."""
        return self.shaped(direction @ cast(Tensor, kept.a), kept.x.shape)

    def both_down(self, weight: Tensor, delta_dot: Tensor, direction: Tensor, kept: PassState) -> Tensor:
        """``down`` of ``delta_dot``, and of ``kept.delta`` with weights [B, O, K] of every image's own."""
        return self.down(weight, delta_dot, kept.x.shape, direction.mT @ _columns(cast(Tensor, kept.delta)))

    def lift(self, x: Tensor) -> Tensor:
        return self.layer.patches(x) if isinstance(self.layer, Convolution) else x.unsqueeze(2)

    def drop(self, patches: Tensor, shape: Any) -> Tensor:
        return self.layer.image(patches, shape) if isinstance(self.layer, Convolution) else patches.squeeze(2)

    def shaped(self, y: Tensor, shape: Any) -> Tensor:
        if isinstance(self.layer, Convolution):
            return y.reshape(*y.shape[:2], *self.layer.out(shape))
        return y.squeeze(2)

    def lifted(self, x: Tensor) -> Tensor | None:
        """``a`` where the forward pass takes it."""
        return self.lift(x)

    def size(self, x: Tensor) -> tuple[int, int]:
        """K and P."""
        return x.shape[1], 1

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        kept = PassState(x, self.lifted(x))
        y = self.up(w[self.layer.weight], x, kept.a)
        if self.layer.bias in self.weights:
            y = y.add_(_over_places(w[self.layer.bias], y))
        return y, kept

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        kept: PassState = saved
        kept.delta = delta
        before = self.down(w[self.layer.weight], delta, kept.x.shape) if inner else None
        if self.forms(*self.size(kept.x)):
            kept.gradient = self.outer(kept)
            if self.support is not None:
                kept.gradient = kept.gradient * self.support
            sums = _sums(kept.gradient, self.target.dense)
        else:
            a, flat = self.lift(kept.x) if kept.a is None else kept.a, _columns(delta)
            kept.a, kept.products, kept.aimed = a, self.products(a, flat), self.target.times(a)
            sums = torch.stack([(flat * kept.products[0]).sum((1, 2)), (flat * kept.aimed).sum((1, 2))])
        if self.bias is not None:
            total = _columns(delta).sum(2)
            kept.bias = total if self.bias_support is None else total * self.bias_support
            sums = sums + _sums(kept.bias, self.bias)
        return before, {self.layer.weight: sums}

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        kept: PassState = saved
        alpha, beta = v["alpha"][:, None, None], v["beta"][:, None, None]
        direction = None
        if kept.gradient is not None:
            direction = torch.addcmul(beta * self.target.dense, kept.gradient, alpha)
            y_dot = self.each_up(direction, kept)
        else:
            y_dot = torch.addcmul(beta * cast(Tensor, kept.aimed), cast(tuple[Tensor, Tensor], kept.products)[0], alpha)
            y_dot = self.shaped(y_dot, kept.x.shape)
        if kept.bias is not None and self.bias is not None:
            y_dot = y_dot + _over_places(alpha[:, 0] * kept.bias + beta[:, 0] * self.bias, y_dot)
        if x_dot is not None:
            y_dot = y_dot + self.up(w[self.layer.weight], x_dot, None)
        return y_dot, (alpha, beta, direction)

    def tangent_backward(
        self, w: Tree, v: Tree, saved: Any, moved: Any, delta: Tensor, delta_dot: Tensor, curved: bool
    ) -> tuple[Tensor, Tree]:
        kept: PassState = saved
        alpha, beta, direction = moved
        if direction is not None:
            return self.both_down(w[self.layer.weight], delta_dot, direction, kept), {}
        flat, products = _columns(cast(Tensor, kept.delta)), cast(tuple[Tensor, Tensor], kept.products)
        patches = torch.addcmul(beta * self.target.transposed(flat), products[1], alpha)
        return self.down(w[self.layer.weight], delta_dot, kept.x.shape, patches), {}


class FoldedConvolution(FoldedAffine):
    """A convolution: on its patches where they are few, which spares calls; else by the library's convolutions, which
    take a group for every image where images have weights of their own."""

    layer: Convolution

    def size(self, x: Tensor) -> tuple[int, int]:
        return x.shape[1] * math.prod(self.layer.kernel), math.prod(self.layer.out(x.shape))

    def direct(self, shape: Any) -> bool:
        return bool(shape[1] * math.prod(self.layer.kernel) * math.prod(self.layer.out(shape)) > _DIRECT)

    def lifted(self, x: Tensor) -> Tensor | None:
        return None if self.direct(x.shape) else self.lift(x)

    def up(self, weight: Tensor, x: Tensor, a: Tensor | None) -> Tensor:
        if a is not None or len(x) == 1 and not self.direct(x.shape):
            return super().up(weight, x, a)
        return self.layer.convolve(x, weight)

    def down(self, weight: Tensor, delta: Tensor, shape: Any, more: Tensor | None = None) -> Tensor:
        if not self.direct(shape) and (more is not None or len(delta) == 1):
            return super().down(weight, delta, shape, more)
        inner = self.layer.transpose(delta, weight, shape)
        return inner if more is None else inner + self.drop(more, shape)

    def outer(self, kept: PassState) -> Tensor:
        if not self.direct(kept.x.shape):
            return super().outer(kept)
        delta, images = cast(Tensor, kept.delta), len(kept.x)
        like = delta.new_empty(()).expand(images * delta.shape[1], kept.x.shape[1], *self.layer.kernel)
        return self.layer.correlate(_beside(delta), _beside(kept.x), like, images).view(*delta.shape[:2], -1)

    def each_up(self, direction: Tensor, kept: PassState) -> Tensor:
        if not self.direct(kept.x.shape):
            return super().each_up(direction, kept)
        weights = direction.reshape(-1, kept.x.shape[1], *self.layer.kernel)
        y = self.layer.convolve(_beside(kept.x), weights, len(kept.x))
        return y.view(len(kept.x), -1, *y.shape[2:])

    def both_down(self, weight: Tensor, delta_dot: Tensor, direction: Tensor, kept: PassState) -> Tensor:
        shape = kept.x.shape
        if not self.direct(shape):
            return super().both_down(weight, delta_dot, direction, kept)
        weights, delta = direction.reshape(-1, shape[1], *self.layer.kernel), cast(Tensor, kept.delta)
        wide = torch.Size((1, shape[0] * shape[1], *shape[2:]))
        own = self.layer.transpose(_beside(delta), weights, wide, shape[0]).view(shape)
        return own.add_(self.layer.transpose(delta_dot, weight, shape))


class FoldedNorm(LayerRule):
    """Batch norm over each image alone: the images' channels side by side as channels of one."""

    def __init__(self, layer: BatchNorm, target: Tree, support: Tree | None) -> None:
        self.layer, self.weights = layer, layer.weights
        self.target = {name: target[name] for name in layer.weights}
        self.support = None if support is None else {name: support[name] for name in layer.weights}

    def repeated(self, w: Tree, images: int) -> Tree:
        return {name: w[name].repeat(images) for name in self.weights}

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        many = self.repeated(w, len(x))
        y, saved = self.layer.forward(many, _beside(x))
        return y.view(x.shape), [saved, many, x.shape, {}]

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        before, gradient = self.layer.backward(saved[1], saved[0], _beside(delta), inner)
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
        dot = None if x_dot is None else _beside(x_dot)
        y_dot, moved = self.layer.tangent(saved[1], direction, saved[0], dot)
        return cast(Tensor, y_dot).view(saved[2]), (moved, direction)

    def tangent_backward(
        self, w: Tree, v: Tree, saved: Any, moved: Any, delta: Tensor, delta_dot: Tensor, curved: bool
    ) -> tuple[Tensor, Tree]:
        given = saved[1], moved[1], saved[0], moved[0], _beside(delta), _beside(delta_dot), False
        return self.layer.tangent_backward(*given)[0].view(saved[2]), {}


def sides(support: Tensor) -> tuple[Tensor, Tensor] | None:
    """Rows [B, O, 1] and columns [B, K, 1], zeros and ones, that supports [B, O, K] are made of; None if one is not.

    >>> [side.flatten().tolist() for side in sides(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]))], sides(torch.eye(2)[None])
    ([[1.0, 0.0], [0.0, 1.0]], None)
    """
    rows, columns = support.amax(2, keepdim=True), support.amax(1).unsqueeze(2)
    return (rows, columns) if torch.equal(support, rows * columns.mT) else None


def _each(t: Tensor, a: Tensor) -> Tensor:
    """t a for a [B, K, P] and t [B, O, K], or [1, O, K] for all: read once then, where P = 1."""
    return t @ a if len(t) > 1 or a.shape[2] > 1 else (a.squeeze(2) @ t[0].t()).unsqueeze(2)


def _columns(delta: Tensor) -> Tensor:
    """[B, O, P], P = 1 for a vector."""
    return delta.flatten(2) if delta.dim() > 2 else delta.unsqueeze(2)


def _beside(x: Tensor) -> Tensor:
    """The images' channels side by side, as channels of one image."""
    return x.flatten(0, 1).unsqueeze(0)


def _over_places(vector: Tensor, y: Tensor) -> Tensor:
    """[O] or [B, O], broadcast over the places of y."""
    return vector[..., None, None] if y.dim() > 2 else vector


def _sums(gradient: Tensor, target: Tensor) -> Tensor:
    """|g|^2 and <g, t> over all but the first dimension, [2, B]."""
    g = gradient.flatten(1)
    return torch.stack([g.square().sum(1), (g * target.flatten(1)).sum(1)])


Evaluation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def foldable(targets: Sequence[Target]) -> bool:
    """Whether guesses at these targets can share a batch: one image, one step, the same weights, and every convolution
    over all channels."""
    first = targets[0]

    def fits(target: Target) -> bool:
        if target.network is None or target.plan.images != 1 or len(target.plan.batches) != 1:
            return False
        if any(isinstance(step.layer, Convolution) and step.layer.groups != 1 for step in target.network.steps):
            return False
        return target is first or all(torch.equal(tensor, first.params[name]) for name, tensor in target.params.items())

    return all(fits(target) for target in targets)


def evaluator(targets: Sequence[Target], objective: str) -> Evaluation:
    """(x [B, C, H, W], y [B]) -> objectives [B] and their slopes in x. One target serves all guesses, or one each.

    Raises ``AttackError`` where they are not ``foldable``.
    """
    if not foldable(targets):
        raise AttackError("these views cannot be attacked in one batch: other weights, or more images")
    first = targets[0]
    w = {name: tensor.detach() for name, tensor in first.params.items()}
    network = folded(cast(Network, first.network), _stacked([target.flat for target in targets], w), _supports(targets))
    squares = torch.stack([torch.dot(target.flat, target.flat) for target in targets])

    def evaluate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        at = network.gradient(w, x, y)
        square, dot = torch.stack(list(at.gradient.values())).sum(0)
        value, alpha, beta = COEFFICIENTS[objective](square, dot, squares)
        return value, network.derivative(w, at, {"alpha": alpha, "beta": beta}, curved=False)[0]

    return evaluate


def _stacked(flat: Sequence[Tensor], w: Tree) -> Tree:
    """[B, ...] of every parameter."""
    trees = [split(each, w) for each in flat]
    return {name: torch.stack([tree[name] for tree in trees]) for name in w}


def _supports(targets: Sequence[Target]) -> Tree | None:
    """The same of supports, [1, ...] where all are one; None where everything is compared."""
    if all(target.support is None for target in targets):
        return None
    every = [torch.ones_like(target.flat) if target.support is None else target.support for target in targets]
    one = all(torch.equal(support, every[0]) for support in every)
    return _stacked(every[:1] if one else every, targets[0].params)


def folded(network: Network, target: Tree, support: Tree | None) -> Network:
    """The network with a gradient for each image; ``target`` and ``support``: [B, ...] or [1, ...] of a parameter."""

    def fold(layer: LayerRule | None) -> LayerRule | None:
        if isinstance(layer, Convolution):
            return FoldedConvolution(layer, target, support)
        if isinstance(layer, Affine):
            return FoldedAffine(layer, target, support)
        return FoldedNorm(layer, target, support) if isinstance(layer, BatchNorm) else layer

    return Network(tuple(replace(step, layer=fold(step.layer)) for step in network.steps), alone=True)
