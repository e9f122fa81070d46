"""One step of local training and one evaluation, as pure functions over trees.

Loss is the mean cross-entropy in nats over x [B, C, H, W], y [B]. Nothing given is changed: batch-norm statistics
come back as new buffers, and the module is structure only (``torch.func.functional_call``).

>>> sgd_step({"w": torch.ones(1)}, {"w": torch.ones(1)}, {}, Sgd(0.5), None)
({'w': tensor([0.5000])}, {})
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.core.errors import ConfigError, DataError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, apply_mask, map_trees
from prunella.tasks.models.precode import Bottleneck, take_divergence

TOGETHER = 512  # examples evaluated at a time


@dataclass(frozen=True)
class Sgd:
    """Settings of ``torch.optim.SGD`` by their names there (no dampening, no Nesterov)."""

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise ConfigError("SGD needs learning-rate > 0, momentum in [0, 1) and weight-decay >= 0")


@contextmanager
def mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Within, all of ``module`` is in training mode, or in evaluation mode. Afterwards every submodule is in its own
    again: a batch norm that somebody froze by ``eval()`` stays frozen."""
    before = [(layer, layer.training) for layer in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for layer, was in before:
            layer.training = was


@contextmanager
def drawing(module: nn.Module, generator: PrivateGenerator | None) -> Iterator[None]:
    """Within, a module of ours that draws while it trains (``tasks.models.precode``) draws from ``generator``, or from
    PyTorch's own."""
    layers = [(layer, layer.source) for layer in module.modules() if isinstance(layer, Bottleneck)]
    for layer, _ in layers:
        layer.source = generator
    try:
        yield
    finally:
        for layer, before in layers:
            layer.source = before


def loss_and_gradient(
    module: nn.Module, params: Tree, buffers: Tree, x: Tensor, y: Tensor
) -> tuple[Tensor, Tree, Tree]:
    """Mean cross-entropy (0-d), its gradient and the new buffers, in training mode, all detached."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    # Batch norm writes into the buffers it is given, and into its own counter where it is given none.
    state = {name: tensor.detach().clone() for name, tensor in {**dict(module.named_buffers()), **buffers}.items()}
    with mode(module, True), torch.enable_grad():
        loss = cross_entropy(functional_call(module, (leaves, state), (x,)), y) + take_divergence(module)
        gradient = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return loss.detach(), dict(zip(leaves, gradient, strict=True)), {name: state[name] for name in buffers}


def sgd_step(params: Tree, gradient: Tree, velocity: Tree, sgd: Sgd, mask: Mask | None) -> tuple[Tree, Tree]:
    """New parameters and velocity, bit for bit ``torch.optim.SGD``'s; ``velocity`` is ``{}`` before the first step.

    With a mask, pruned weights are exactly zero afterwards, whatever momentum or an older mask left behind.
    Differentiable in every argument: attacks unroll it.
    """
    step = gradient
    if sgd.weight_decay:
        step = map_trees(lambda g, p: torch.add(g, p, alpha=sgd.weight_decay), gradient, params)
    if sgd.momentum:
        step = map_trees(lambda v, g: sgd.momentum * v + g, velocity, step) if velocity else step
        velocity = apply_mask(step, mask) if mask is not None else step
    moved = map_trees(lambda p, s: torch.sub(p, s, alpha=sgd.learning_rate), params, step)
    return (apply_mask(moved, mask) if mask is not None else moved), velocity


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy in nats, share of examples labelled right, and over how many."""

    loss: float
    accuracy: float
    examples: int


def evaluate(module: nn.Module, params: Tree, buffers: Tree, x: Tensor, y: Tensor, batch: int = TOGETHER) -> Evaluation:
    """The model on x [N, C, H, W], y [N] in evaluation mode, ``batch`` at a time on the parameters' device."""
    if not len(y):
        raise DataError("there are no examples to evaluate on")
    device = next(iter(params.values())).device
    loss = correct = 0.0
    with mode(module, False), torch.no_grad():
        for images, labels in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            logits = functional_call(module, {**params, **buffers}, (images.to(device),))
            labels = labels.to(device)
            loss += cross_entropy(logits, labels, reduction="sum").item()
            correct += (logits.argmax(dim=1) == labels).sum().item()
    return Evaluation(loss / len(y), correct / len(y), len(y))
