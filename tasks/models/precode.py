"""PRECODE's variational bottleneck (Scheliga, Maeder and Seeland, WACV 2022; DGP baseline): a model, not a filter.

Before the last linear layer, whose input is r [B, F]:
    mean, log variance = two halves of a linear layer F -> 2 K;  b = mean + deviation * N(0, 1);  r' = linear K -> F
and the loss gains beta * KL(N(mean, deviation^2) || N(0, 1)), averaged over the batch; K = 256, beta = 1e-3 (paper).
The draw makes the gradient of a batch random, so that a guess of the right image does not explain it. The gradient of
the first half is still the outer product of its input r, which an attacker reads off (``attacks.representation``).

What it changes: it is part of the model of server and clients alike (so it is chosen by the model's name), it adds
K (3 F + 2) + F parameters, which travel both ways, and accuracies of other models do not carry over. In evaluation mode
b is the mean. Gradients of layers before the bottleneck pass through it; those of the last layer do not hide the
labels. It wants a smaller learning rate than the plain model: on MNIST behind ``cnn`` (9408 features of a norm near 20)
SGD at 0.1 diverges within ten steps, and so it does with deviation = softplus; at 0.02 it trains. Whoever computes a
training loss adds ``take_divergence``; an attack knows neither the draw nor the term.

``Bottleneck`` draws from its ``source``, which ``tasks.training.drawing`` sets to the client's own generator; without
one, from torch's global generator.

>>> net = with_bottleneck(lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(4, classes)), 2)((1, 2, 2), 3)
>>> [name for name, _ in net.named_parameters() if name.endswith("weight")]
['1.bottleneck.encode.weight', '1.bottleneck.decode.weight', '1.classify.weight']
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.tasks.models.layers import Shape

WIDTH = 256
BETA = 1e-3
NAME = "bottleneck"


class Bottleneck(nn.Module):
    """r [B, F] to r' [B, F] through ``width`` random variables a row."""

    def __init__(self, features: int, width: int = WIDTH, beta: float = BETA) -> None:
        super().__init__()
        if width < 1 or not beta >= 0:
            raise ConfigError("a variational bottleneck needs a width of at least 1 and beta >= 0")
        self.beta = beta
        self.divergence: Tensor | None = None
        self.source: PrivateGenerator | None = None
        self.encode, self.decode = nn.Linear(features, 2 * width), nn.Linear(width, features)

    def forward(self, r: Tensor) -> Tensor:
        mean, log_variance = self.encode(r).chunk(2, dim=-1)
        if self.training:
            excess = mean.square() + log_variance.exp() - log_variance - 1
            self.divergence = self.beta * 0.5 * excess.sum(dim=-1).mean()
            drawn = torch.randn_like(mean) if self.source is None else self.source.normal(*mean.shape).to(mean)
            mean = mean + drawn * (log_variance / 2).exp()
        result: Tensor = self.decode(mean)
        return result


def take_divergence(module: nn.Module) -> Tensor | float:
    """beta * KL of the forward pass just made, to be added to its loss, and forgotten; 0 without a bottleneck."""
    total: Tensor | float = 0.0
    for layer in module.modules():
        if isinstance(layer, Bottleneck) and layer.divergence is not None:
            total, layer.divergence = total + layer.divergence, None
    return total


def with_bottleneck(
    builder: Callable[[Shape, int], nn.Module], width: int = WIDTH, beta: float = BETA
) -> Callable[[Shape, int], nn.Module]:
    """``builder`` with a bottleneck before its last linear layer. ``ConfigError`` where there is none."""

    def build(shape: Shape, classes: int) -> nn.Module:
        module = builder(shape, classes)
        linear = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        if not linear or not linear[-1][0]:
            raise ConfigError("precode needs a model whose last layer is a linear one inside it")
        name, last = linear[-1]
        path, _, attribute = name.rpartition(".")
        parts = [(NAME, Bottleneck(last.in_features, width, beta)), ("classify", last)]
        setattr(module.get_submodule(path), attribute, nn.Sequential(OrderedDict(parts)))
        return module

    return build
