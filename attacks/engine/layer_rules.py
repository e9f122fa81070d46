"""How each kind of layer passes values, gradients and their directional derivatives: the R-operator of a network.

Pearlmutter, Fast Exact Multiplication by the Hessian (1994). A dot is the derivative along a direction v of the
weights, at fixed images. A layer has four passes; ``saved`` is what the first keeps for the others:

forward           x -> y
backward          delta (the loss gradient in y) -> that in x, and that in the layer's weights
tangent           x_dot -> y_dot
tangent_backward  delta_dot -> the dot of the gradient in x, and that of the gradient in the weights

``Affine`` is a linear or convolution layer: y = W a + b, where ``a`` is x itself or, of small images on a CPU, x
unfolded into patches: a product of small matrices then costs a third of calling a convolution, and one unfolding
serves the forward pass, the weight gradient and the tangent. Batch norm is in training mode. ReLU and max-pooling are
taken as linear where they are: their second derivative is zero.

Shapes: images [N, C, H, W], vectors [N, F]; weights as in the module. Nothing is changed in place.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from prunella.core.trees import Tree

_SMALL = 1 << 18  # floats of patches up to which matrices are multiplied instead
_aten = torch.ops.aten


class LayerRule:
    """A layer without weights, whose derivative does not depend on x: the dots pass as the values do."""

    weights: tuple[str, ...] = ()

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        """``inner``: whether the gradient in x is wanted."""
        raise NotImplementedError

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        """None stands for a dot of zero."""
        raise NotImplementedError

    def tangent_backward(
        self, w: Tree, v: Tree, saved: Any, moved: Any, delta: Tensor, delta_dot: Tensor, curved: bool
    ) -> tuple[Tensor, Tree]:
        """``moved`` is what ``tangent`` kept; ``curved``: whether the dots of the weight gradients are wanted."""
        inner, _ = self.backward(w, saved, delta_dot, True)
        return cast(Tensor, inner), {}


class Reshape(LayerRule):
    """Flatten, and the identity."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        return self.module(x), x.shape

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        return delta.reshape(saved), {}

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        return None if x_dot is None else self.module(x_dot), None


class MaxPool(LayerRule):
    def __init__(self, module: nn.MaxPool2d) -> None:
        m = module
        self.window = (m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode)

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        y, index = F.max_pool2d(x, *self.window, return_indices=True)
        return y, (x, index)

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        x, index = saved
        kernel, stride, padding, dilation = (_pair(size) for size in self.window[:4])
        back = _aten.max_pool2d_with_indices_backward
        return back(delta, x, kernel, stride, padding, dilation, self.window[4], index), {}

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        index = saved[1]
        return None if x_dot is None else x_dot.flatten(2).gather(2, index.flatten(2)).view(index.shape), None


class AdaptiveMeanPool(LayerRule):
    def __init__(self, module: nn.AdaptiveAvgPool2d) -> None:
        self.module = module

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        return self.module(x), x

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        return _aten._adaptive_avg_pool2d_backward(delta.contiguous(), saved), {}

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        return None if x_dot is None else self.module(x_dot), None


class Activation(LayerRule):
    """``slope`` is f'(x) as a function of x and y; f''(x) = (bend[0] + bend[1] * y) f'(x), or zero (None)."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        slope: Callable[[Tensor, Tensor], Tensor],
        bend: tuple[float, float] | None = None,
    ) -> None:
        self.function, self.slope, self.bend = function, slope, bend

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        y = self.function(x)
        return y, (self.slope(x, y), y)

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        return delta * saved[0], {}

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        y_dot = None if x_dot is None else x_dot * saved[0]
        return y_dot, y_dot

    def tangent_backward(
        self, w: Tree, v: Tree, saved: Any, moved: Any, delta: Tensor, delta_dot: Tensor, curved: bool
    ) -> tuple[Tensor, Tree]:
        slope, y = saved
        inner = delta_dot * slope
        if self.bend is None or moved is None:
            return inner, {}
        product = delta * moved
        inner = inner.addcmul_(product, y, value=self.bend[1])
        return inner.add_(product, alpha=self.bend[0]) if self.bend[0] else inner, {}


def tanh() -> Activation:
    return Activation(torch.tanh, lambda x, y: torch.addcmul(y.new_ones(()), y, y, value=-1), (0, -2))


def sigmoid() -> Activation:
    return Activation(torch.sigmoid, lambda x, y: torch.addcmul(y, y, y, value=-1), (1, -2))


def relu() -> Activation:
    return Activation(torch.relu, lambda x, y: (x > 0).to(x.dtype))


def leaky_relu(slope: float) -> Activation:
    return Activation(lambda x: F.leaky_relu(x, slope), lambda x, y: (x > 0).to(x.dtype).mul_(1 - slope).add_(slope))


class Affine(LayerRule):
    """y = W a + b; subclasses say what ``a`` is and how W, its transpose and outer products work on it."""

    def __init__(self, name: str, bias: bool) -> None:
        self.weight, self.bias = (f"{name}.weight", f"{name}.bias") if name else ("weight", "bias")
        self.weights = (self.weight, self.bias) if bias else (self.weight,)

    def lift(self, x: Tensor) -> Tensor:
        return x

    def product(self, weight: Tensor, a: Tensor, shape: Any, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def transposed(self, weight: Tensor, delta: Tensor, shape: Any) -> Tensor:
        raise NotImplementedError

    def outer(self, weight: Tensor, delta: Tensor, a: Tensor, shape: Any) -> Tensor:
        raise NotImplementedError

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        a = self.lift(x)
        return self.product(w[self.weight], a, x.shape, w.get(self.bias)), (a, x.shape)

    def gradients(self, w: Tree, delta: Tensor, a: Tensor, shape: Any) -> Tree:
        gradient = {self.weight: self.outer(w[self.weight], delta, a, shape)}
        if self.bias in self.weights:
            gradient[self.bias] = delta.sum(dim=[d for d in range(delta.dim()) if d != 1])
        return gradient

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        a, shape = saved
        before = self.transposed(w[self.weight], delta, shape) if inner else None
        return before, self.gradients(w, delta, a, shape)

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        a, shape = saved
        y_dot = self.product(v[self.weight], a, shape, v.get(self.bias))
        if x_dot is None:
            return y_dot, None
        a_dot = self.lift(x_dot)
        return y_dot.add_(self.product(w[self.weight], a_dot, shape, None)), a_dot

    def tangent_backward(
        self, w: Tree, v: Tree, saved: Any, moved: Any, delta: Tensor, delta_dot: Tensor, curved: bool
    ) -> tuple[Tensor, Tree]:
        a, shape = saved
        inner = self.transposed(w[self.weight], delta_dot, shape).add_(self.transposed(v[self.weight], delta, shape))
        if not curved:
            return inner, {}
        gradients = self.gradients(w, delta_dot, a, shape)
        if moved is not None:
            gradients[self.weight] = gradients[self.weight] + self.outer(w[self.weight], delta, moved, shape)
        return inner, gradients


class Linear(Affine):
    def product(self, weight: Tensor, a: Tensor, shape: Any, bias: Tensor | None) -> Tensor:
        return F.linear(a, weight, bias)

    def transposed(self, weight: Tensor, delta: Tensor, shape: Any) -> Tensor:
        return delta @ weight

    def outer(self, weight: Tensor, delta: Tensor, a: Tensor, shape: Any) -> Tensor:
        return delta.t() @ a


class Convolution(Affine):
    def __init__(self, name: str, module: nn.Conv2d) -> None:
        super().__init__(name, module.bias is not None)
        self.kernel, self.stride, self.dilation = _pair(module.kernel_size), module.stride, module.dilation
        self.padding, self.groups = cast(tuple[int, int], module.padding), module.groups

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)

    def out(self, shape: Any) -> tuple[int, int]:
        sizes = zip(shape[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return height, width

    def small(self, x: Tensor, shape: Any) -> bool:
        if x.device.type != "cpu" or self.groups != 1:
            return False
        return bool(math.prod(shape[:2]) * math.prod(self.kernel) * math.prod(self.out(shape)) <= _SMALL)

    def lift(self, x: Tensor) -> Tensor:
        if not self.small(x, x.shape):
            return x
        return self.patches(x)

    def patches(self, x: Tensor) -> Tensor:
        """The K = C * kernel inputs of every output place, [N, K, P]; the library's unfold takes twice as long."""
        (high, wide), (down, right) = self.padding, cast(tuple[int, int], self.stride)
        x, (height, width) = F.pad(x, (wide, wide, high, high)), self.out(x.shape)
        n, c, row, column = x.stride()
        steps = (n, c, row * self.dilation[0], column * self.dilation[1], row * down, column * right)
        return x.as_strided((*x.shape[:2], *self.kernel, height, width), steps).reshape(len(x), -1, height * width)

    def image(self, patches: Tensor, shape: Any) -> Tensor:
        """The transpose of ``patches``: what falls on the same pixel is added up."""
        return F.fold(patches, shape[2:], self.kernel, self.dilation, self.padding, self.stride)

    def product(self, weight: Tensor, a: Tensor, shape: Any, bias: Tensor | None) -> Tensor:
        if not self.small(a, shape):
            y = self.convolve(a, weight, self.groups)
            return y if bias is None else y.add_(_per_channel(bias))
        y = (
            weight.flatten(1) @ a
            if bias is None
            else torch.baddbmm(bias[None, :, None], weight.flatten(1).expand(len(a), -1, -1), a)
        )
        return y.view(len(a), len(weight), *self.out(shape))

    def transposed(self, weight: Tensor, delta: Tensor, shape: Any) -> Tensor:
        if self.small(delta, shape):
            return self.image(weight.flatten(1).t() @ delta.flatten(2), shape)
        return self._library(delta, delta.new_empty(()).expand(shape), weight, (True, False), self.groups)[0]

    def outer(self, weight: Tensor, delta: Tensor, a: Tensor, shape: Any) -> Tensor:
        if self.small(a, shape):
            products = delta.flatten(2) @ a.transpose(1, 2)
            return (products.sum(0) if len(a) > 1 else products[0]).view(weight.shape)
        return self._library(delta, a, weight, (False, True), self.groups)[1]

    def convolve(self, x: Tensor, weight: Tensor, groups: int = 1) -> Tensor:
        """W a by the library, whatever the size; ``groups`` images side by side, each with weights of its own."""
        rest = None, self.stride, self.padding, self.dilation, groups
        return F.conv2d(x, weight, *rest)

    def transpose(self, delta: Tensor, weight: Tensor, shape: Any, groups: int = 1) -> Tensor:
        """W^T delta, for inputs of this shape."""
        return self._library(delta, delta.new_empty(()).expand(shape), weight, (True, False), groups)[0]

    def correlate(self, delta: Tensor, x: Tensor, like: Tensor, groups: int = 1) -> Tensor:
        """The weight gradient, of the shape of ``like``."""
        return self._library(delta, x, like, (False, True), groups)[1]

    def _library(
        self, delta: Tensor, x: Tensor, weight: Tensor, which: tuple[bool, bool], groups: int = 1
    ) -> tuple[Tensor, Tensor]:
        rest = None, self.stride, self.padding, self.dilation, False, (0, 0), groups, (*which, False)
        return _aten.convolution_backward(delta, x, weight, *rest)  # type: ignore[no-any-return]


class BatchNorm(LayerRule):
    """Normalised by the batch's own statistics: y = scale * z + shift, z = (x - mean) / deviation."""

    def __init__(self, name: str, module: nn.BatchNorm2d) -> None:
        self.weight, self.bias = (f"{name}.weight", f"{name}.bias") if name else ("weight", "bias")
        self.weights, self.eps = (self.weight, self.bias), module.eps

    def forward(self, w: Tree, x: Tensor) -> tuple[Tensor, Any]:
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        inverse = (variance + self.eps).rsqrt()
        z = (x - mean) * inverse
        return _per_channel(w[self.weight]) * z + _per_channel(w[self.bias]), (z, inverse)

    def backward(self, w: Tree, saved: Any, delta: Tensor, inner: bool) -> tuple[Tensor | None, Tree]:
        z, inverse = saved
        gradient = {self.weight: (delta * z).sum((0, 2, 3)), self.bias: delta.sum((0, 2, 3))}
        count = delta.numel() // delta.shape[1]
        centred = delta - _per_channel(gradient[self.bias] / count) - z * _per_channel(gradient[self.weight] / count)
        return centred * (_per_channel(w[self.weight]) * inverse), gradient

    def tangent(self, w: Tree, v: Tree, saved: Any, x_dot: Tensor | None) -> tuple[Tensor | None, Any]:
        z, inverse = saved
        y_dot = _per_channel(v[self.weight]) * z + _per_channel(v[self.bias])
        if x_dot is None:
            return y_dot, None
        drift = _mean(x_dot * z)  # the dot of the deviation
        z_dot = (x_dot - _mean(x_dot) - z * drift) * inverse
        return y_dot.add_(_per_channel(w[self.weight]) * z_dot), (z_dot, drift)

    def tangent_backward(
        self, w: Tree, v: Tree, saved: Any, moved: Any, delta: Tensor, delta_dot: Tensor, curved: bool
    ) -> tuple[Tensor, Tree]:
        (z, inverse), scale = saved, _per_channel(w[self.weight])
        u, u_dot = scale * delta, scale * delta_dot + _per_channel(v[self.weight]) * delta
        inner = u_dot - _mean(u_dot) - z * _mean(u_dot * z)
        if moved is not None:
            z_dot, drift = moved
            along = _mean(u * z)
            inner = inner - z_dot * along - z * _mean(u * z_dot)
            inner = inner - (u - _mean(u) - z * along) * (drift * inverse)
        if not curved:
            return inner * inverse, {}
        product = delta_dot * z if moved is None else delta_dot * z + delta * moved[0]
        return inner * inverse, {self.weight: product.sum((0, 2, 3)), self.bias: delta_dot.sum((0, 2, 3))}


def _per_channel(vector: Tensor) -> Tensor:
    return vector[:, None, None]


def _mean(x: Tensor) -> Tensor:
    return x.mean((0, 2, 3), keepdim=True)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


RULES: dict[type[nn.Module], Callable[[str, Any], LayerRule | None]] = {
    nn.Identity: lambda name, module: Reshape(module),
    nn.Flatten: lambda name, module: Reshape(module) if (module.start_dim, module.end_dim) == (1, -1) else None,
    nn.Dropout: lambda name, module: None if module.training else Reshape(nn.Identity()),
    nn.Tanh: lambda name, module: tanh(),
    nn.Sigmoid: lambda name, module: sigmoid(),
    nn.ReLU: lambda name, module: relu(),
    nn.LeakyReLU: lambda name, module: leaky_relu(module.negative_slope),
    nn.MaxPool2d: lambda name, module: None if module.return_indices else MaxPool(module),
    nn.AdaptiveAvgPool2d: lambda name, module: AdaptiveMeanPool(module),
    nn.Linear: lambda name, module: Linear(name, module.bias is not None),
    nn.Conv2d: lambda name, module: Convolution(name, module) if Convolution.fits(module) else None,
    nn.BatchNorm2d: lambda name, module: BatchNorm(name, module) if module.training and module.affine else None,
}


def rule_of(name: str, module: nn.Module) -> LayerRule | None:
    """The rule for a module of this name, or None where there is none; a subclass may do anything."""
    rule = RULES.get(type(module))
    return rule(name, module) if rule is not None else None
