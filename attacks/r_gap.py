"""R-GAP, Recursive Gradient Attack on Privacy (Zhu and Blaschko 2020): the input in closed form, layer by layer.

Threat model: an honest-but-curious server that knows the model, the exact update of one step on one image, and the
learning rate; a chain of convolutions, linear layers and invertible activations (``cnn6``, ``lenet-zhu``, ``cnn``). It
does not know masks, and pruning or noise spoils it soon (DGP, Table 1), so that its failure says little for a defense:
one digit on ``cnn6`` is rebuilt at 100 dB, at 29 dB with noise of a hundredth of each layer's deviation, at 27 dB from
the largest 80 % of the coordinates and at 12 dB from the largest 20 %.

With z = A a + b a layer's output, dz the gradient at z, and a its input:
last layer   dW = r h^T with r = p - e_y, of rank one. h = s h^, r = sigma / s r^ leaves one unknown, the s with
             softmax(W s h^ + b) - e_y = sigma / s r^; the label is the one negative entry of r. With a bias, r is its
             gradient, and h = dW^T r / |r|^2.
linear       h = dW^T dz / |dz|^2.
convolution  a is the least-squares solution of A a = z - b (weight constraints) and of dK = sum over positions of dz
             times patch of a (gradient constraints), both linear in a, weighted to equal size.
activation   z = f^-1(output), dz = f'(z) * gradient at the output; the gradient at a is A^T dz.

Departures: cross-entropy over K classes for the logistic loss, with s by a search where the paper solves for u; LSMR on
the convolutions themselves for a dense pseudo-inverse of their circulant matrices; float64 throughout.

Errors: ``AttackError`` for more than one image or step, an unknown learning rate, or a layer that cannot be inverted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import conv2d, softmax
from torch.nn.grad import conv2d_input, conv2d_weight

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.matching import Target, dummy_gradient, target_of
from prunella.attacks.engine.objectives import euclidean, flatten, split
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError, with_article
from prunella.core.trees import Tree
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

Layers = list[tuple[str, nn.Module]]
_TINY = 1e-300
_SCALES = np.logspace(-4, 6, 401)  # where the scale of the last features is looked for, before refinement
_EDGE = 1e-9  # how near to the end of an activation's range its inverse is still taken


@dataclass(frozen=True)
class RGap:
    """Solves for one image layer by layer, without a guess."""

    iterations: Count = 1000  #: most iterations of the least-squares solver, for each convolution
    tolerance: Positive = 1e-12  #: at which that solver stops


def _leaky(slope: float) -> Callable[[Tensor], Tensor]:
    if slope <= 0:
        raise AttackError("R-GAP cannot invert a LeakyReLU whose slope is not positive")
    return lambda out: torch.where(out < 0, out / slope, out)


def inverse(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The inverse of an activation. Raises ``AttackError`` where it has none."""
    if isinstance(layer, nn.LeakyReLU):
        return _leaky(layer.negative_slope)
    if isinstance(layer, nn.Tanh):
        return lambda out: torch.atanh(out.clamp(-1 + _EDGE, 1 - _EDGE))
    if isinstance(layer, nn.Sigmoid):
        return lambda out: torch.logit(out, eps=_EDGE)
    raise AttackError(f"R-GAP cannot invert {with_article(layer)}: it needs a chain such as cnn6")


def slope_at(layer: nn.Module, z: Tensor) -> Tensor:
    """f'(z)."""
    z = z.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(layer(z).sum(), z)[0]


def chain_of(module: nn.Module, prefix: str = "") -> Layers:
    """The layers of nested Sequentials, first to last, by name. A module that is no such chain raises."""
    if isinstance(module, nn.Sequential):
        return [pair for name, child in module.named_children() for pair in chain_of(child, f"{prefix}{name}.")]
    return [(prefix, module)]


def _geometry(conv: nn.Conv2d) -> tuple[Any, ...]:
    if conv.padding_mode != "zeros":
        raise AttackError(f"R-GAP cannot solve a convolution with padding by {conv.padding_mode}")
    return conv.stride, conv.padding, conv.dilation, conv.groups


def correlate(conv: nn.Conv2d, a: Tensor, dz: Tensor) -> Tensor:
    """The weight's gradient for input ``a`` and output gradient ``dz``."""
    gradient: Tensor = conv2d_weight(a, conv.weight.shape, dz, *_geometry(conv))  # type: ignore[no-untyped-call]
    return gradient


def transpose(conv: nn.Conv2d, shape: torch.Size, dz: Tensor, weight: Tensor) -> Tensor:
    """The input's gradient, of this shape, for output gradient ``dz``."""
    gradient: Tensor = conv2d_input(shape, weight, dz, *_geometry(conv))  # type: ignore[no-untyped-call]
    return gradient


def last_features(weight: Tensor, bias: Tensor | None, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Features h [F] and residual r [K] of a last layer without bias gradient, from ``slope`` = r h^T [K, F]."""
    u, sigma, v = torch.linalg.svd(slope, full_matrices=False)
    direction, features, size = u[:, 0], v[0], sigma[0]
    if direction[direction.abs().argmax()] > 0:  # the label's entry is the largest, and negative
        direction, features = -direction, -features
    label = int(direction.argmin())
    from scipy.optimize import minimize_scalar  # half a second of importing, in every process of a run

    logits, shift = weight @ features, 0.0 if bias is None else bias
    one_hot = torch.zeros_like(direction)
    one_hot[label] = 1.0

    def misfit(log_scale: float) -> float:
        s = float(np.exp(log_scale))
        residual = size / s * direction
        return float((softmax(s * logits + shift, dim=0) - one_hot - residual).norm() / residual.norm())

    grid = np.log(_SCALES)
    best = int(np.argmin([misfit(point) for point in grid]))
    ends = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    found = minimize_scalar(misfit, bounds=ends, method="bounded", options={"xatol": 1e-12})
    s = float(np.exp(found.x))
    return s * features, size / s * direction


def solve_convolution(conv: nn.Conv2d, shape: torch.Size, known: tuple[Tensor, ...], attack: RGap) -> Tensor:
    """The input [1, C, H, W] of a convolution from weight, z less bias, dz and the weight's gradient."""
    from scipy.sparse.linalg import LinearOperator, lsmr

    weight, z, dz, slope = known
    balance = float(weight.flatten(1).norm(dim=1).mean() / dz.flatten(2).norm(dim=2).mean().clamp_min(_TINY))

    def forward(vector: np.ndarray) -> np.ndarray:
        a = torch.from_numpy(vector.reshape(shape))
        out, gradient = conv2d(a, weight, None, *_geometry(conv)), correlate(conv, a, dz)
        return torch.cat([out.reshape(-1), gradient.reshape(-1) * balance]).numpy()

    def adjoint(vector: np.ndarray) -> np.ndarray:
        flat = torch.from_numpy(np.ascontiguousarray(vector))
        out, gradient = flat[: z.numel()].view_as(z), flat[z.numel() :].view_as(weight)
        # <dK(a), G> = <dz, convolution of a with G>: its adjoint is the transposed convolution of dz with G.
        both = transpose(conv, shape, out, weight) + transpose(conv, shape, dz * balance, gradient)
        return both.reshape(-1).numpy()

    right = torch.cat([z.reshape(-1), slope.reshape(-1) * balance]).numpy()
    size = int(np.prod(shape))
    operator = LinearOperator((len(right), size), matvec=forward, rmatvec=adjoint, dtype=np.float64)
    tolerance = attack.tolerance
    solution = lsmr(operator, right, atol=tolerance, btol=tolerance, conlim=0, maxiter=attack.iterations)[0]
    return torch.from_numpy(solution.reshape(shape))


def _input_shapes(layers: Layers, image: Tensor) -> list[torch.Size]:
    """The shape each layer is given, found by running the chain on a blank image."""
    shapes = []
    with torch.no_grad():
        for _, layer in layers:
            shapes.append(image.shape)
            image = layer(image)
    return shapes


def peel(
    layers: list[tuple[str, nn.Module]], shapes: list[torch.Size], trees: tuple[Tree, Tree], attack: RGap
) -> Tensor:
    """The input of the chain, from its ``trees``: parameters and their gradients, float64."""
    params, gradient = trees
    name, last = layers[-1]
    if not isinstance(last, nn.Linear):
        raise AttackError(f"R-GAP needs a linear last layer, not {with_article(last)}")
    slope, own = gradient[f"{name}weight"], gradient.get(f"{name}bias")
    if own is not None and bool(own.any()):
        residual, out = own, slope.T @ own / own.square().sum()
    else:
        out, residual = last_features(params[f"{name}weight"], params.get(f"{name}bias"), slope)
    out, back = out[None], (residual @ params[f"{name}weight"])[None]
    for (name, layer), shape in zip(layers[-2::-1], shapes[-2::-1], strict=True):
        if isinstance(layer, nn.Flatten):
            out, back = out.reshape(shape), back.reshape(shape)
        elif isinstance(layer, nn.Linear):
            out = (gradient[f"{name}weight"].T @ back[0] / back.square().sum())[None]
            back = back @ params[f"{name}weight"]
        elif isinstance(layer, nn.Conv2d):
            weight, bias = params[f"{name}weight"], params.get(f"{name}bias")
            z = out if bias is None else out - bias[None, :, None, None]
            out = solve_convolution(layer, shape, (weight, z, back, gradient[f"{name}weight"]), attack)
            back = transpose(layer, shape, back, weight)
        else:
            out = inverse(layer)(out)
            back = back * slope_at(layer, out)
    return out


def solve_image(view: ServerView, task: Task, attack: RGap) -> tuple[Tensor, Tensor, float]:
    """The one image [1, C, H, W] behind the view as it was trained on, be it outside [0, 1]; its label [1]; and how
    far the gradient of the two is from the target, relative and squared."""
    target = target_of(view, task.build(), False, 1)
    if view.learning_rate is None or len(target.plan.batches) != 1 or view.batch_size not in (None, 1):
        raise AttackError("R-GAP needs one step on one image and the client's learning rate")
    layers = chain_of(task.build().double())
    params = {name: tensor.detach().double().cpu() for name, tensor in target.params.items()}
    gradient = split(target.flat.double().cpu(), target.params)
    shapes = _input_shapes(layers, torch.zeros(1, *task.shape, dtype=torch.float64))
    with torch.no_grad():
        image = peel(layers, shapes, (params, gradient), attack)
    if not bool(torch.isfinite(image).all()):
        raise AttackError("R-GAP ended in an image that is not finite")
    image = image.to(dtype=target.flat.dtype, device=target.flat.device)
    name = layers[-1][0]
    label = _label(gradient[f"{name}weight"], gradient.get(f"{name}bias")).to(target.flat.device)
    return image, label, _misfit(target, image, label)


def _misfit(target: Target, image: Tensor, label: Tensor) -> float:
    return float(euclidean(flatten(dummy_gradient(target, image, label)).detach(), target.flat, None)[0])


def reconstruct(view: ServerView, task: Task, attack: RGap, generator: Generator) -> Reconstruction:
    """The image [1, C, H, W] and its label; nothing is drawn from ``generator``."""
    image, label, _ = solve_image(view, task, attack)
    boxed = into_box(image)  # an image that noise was added to explains more than what of it is in the box
    return Reconstruction(boxed, label, _misfit(target_of(view, task.build(), False, 1), boxed, label), 1)


def _label(slope: Tensor, bias: Tensor | None) -> Tensor:
    """The label [1]: the one negative entry of r, which is also the largest."""
    if bias is not None and bool(bias.any()):
        return bias.argmin()[None]
    left: Tensor = torch.linalg.svd(slope, full_matrices=False)[0][:, 0]
    return left.abs().argmax()[None]
