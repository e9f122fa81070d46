"""SynFlow: iterative synaptic flow. Tanaka et al., NeurIPS 2020, Eq. (1) and Alg. 1. No data at all.

With R = 1ᵀ (Π_l |w_l|) 1, the summed output of the network of absolute weights on an input of ones, a weight scores
|w| ∂R/∂|w|. Every layer's scores add up to R (the conservation law), so that a small layer has large scores and keeps
some weight. ``steps`` times the scores are taken anew and the density falls to (1 − rate)^(k/steps).

R as printed has weights only: on a copy of the network biases are zero, activations and normalisation are the identity
and dropout is off (where absolute weights meet ones nothing is negative, so a ReLU is the identity anyway). An
activation or norm that a model calls as a function stays as it is. A weight that is made of others (weight norm) is
made of them as they are, and absolute then; it has no score. Scores are float64. A network whose R is not finite raises
``PrunellaError``, and so does one with a layer of which R is no sum over paths, since such a layer would go whole or by
chance: nothing flows through it (queries and keys of attention, whose softmax of equal tokens answers to no weight; a
layer that evaluation does not use), or a score is negative.
"""

from collections.abc import Callable, Set

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from prunella.core.copies import copied
from prunella.core.errors import PrunellaError
from prunella.core.trees import Mask, Tree, apply_mask, full_mask

Shape = tuple[int, int, int]
Select = Callable[[Tree, float, Mask], Mask]  # scores, the rate and the mask so far to a mask inside of it
_FIX = "choose another strategy"
_IDENTITY = (
    nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.PReLU, nn.ReLU, nn.ReLU6,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, _DropoutNd, _NormBase, nn.GroupNorm,
    nn.LayerNorm, nn.RMSNorm,
)  # fmt: skip


def _same(x: Tensor) -> Tensor:
    return x


class _Absolute(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.abs()


def _make_absolute(layer: nn.Module, given: object) -> None:
    """A hook, after that which makes the weight."""
    layer.weight = layer.weight.abs()  # type: ignore[operator]


def _made(module: nn.Module) -> dict[str, nn.Module]:
    """Linear layers and convolutions whose weight is no parameter of their own, but made of others."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | _ConvNd)}
    return {name: layer for name, layer in layers.items() if layer._parameters.get("weight") is None}


def linear_copy(module: nn.Module) -> nn.Module:
    """The network of R: weights, pooling and shape changes only."""
    linear = copied(module).double().eval()
    for layer in linear.modules():
        if isinstance(layer, _IDENTITY):
            layer.forward = _same  # type: ignore[method-assign]  # the layer stays: others read its settings
    for layer in _made(linear).values():
        if is_parametrized(layer, "weight"):
            register_parametrization(layer, "weight", _Absolute(), unsafe=True)
        else:
            layer.register_forward_pre_hook(_make_absolute)
    return linear


def flow(linear: nn.Module, params: Tree, shape: Shape, prunable: Set[str]) -> Tree:
    """|w| ∂R/∂|w| for the prunable weights; ``params`` are those of the whole model, [C, H, W] the input's shape."""
    makers = {
        f"{name}.{n}" for name, layer in _made(linear).items() for n, _ in layer.named_parameters() if n != "bias"
    }
    given = {name: params[name].detach().double() for name, _ in linear.named_parameters() if name in params}
    still = {name: t if name in makers else torch.zeros_like(t) for name, t in given.items()}
    known = {name: given[name].abs().requires_grad_() if name in prunable else still[name] for name in given}
    wanted = [name for name in known if name in prunable]
    total = functional_call(linear, known, (torch.ones(1, *shape, dtype=torch.float64),)).sum()
    if not bool(torch.isfinite(total)):
        raise PrunellaError(f"synflow: the flow through this network is not finite in float64: {_FIX}")
    slopes = torch.autograd.grad(total, [known[name] for name in wanted], materialize_grads=True)
    return {name: (slope * known[name]).detach() for name, slope in zip(wanted, slopes, strict=True)}


def require_flow(scores: Tree, params: Tree) -> None:
    """Refuse a dense network with a layer that no path runs through, or whose scores are no sums over paths. A layer of
    zeros cuts the paths of others, so it is looked for first."""
    if zero := [name for name in scores if not bool(params[name].any())]:
        raise PrunellaError(f"synflow finds no path through {zero[0]}, which is zero before training: {_FIX}")
    for name, score in scores.items():
        if not bool(score.max() > 0) or bool(score.min() < 0):
            raise PrunellaError(f"synflow cannot score {name}, which its flow does not pass as a weight: {_FIX}")


def synflow_mask(
    module: nn.Module, params: Tree, shape: Shape, prunable: Set[str], rate: float, schedule: tuple[int, Select]
) -> Mask:
    """The mask after all steps; ``schedule`` is their number and who turns scores into a mask."""
    steps, select = schedule
    linear = linear_copy(module)
    mask = full_mask(params)
    for step in range(1, steps + 1):
        scores = flow(linear, apply_mask(params, mask), shape, prunable)
        if step == 1:  # later a high rate may cut every path
            require_flow(scores, params)
        target = rate if step == steps else 1 - (1 - rate) ** (step / steps)
        mask = {**mask, **select(scores, target, {name: mask[name] for name in scores})}
    return mask
