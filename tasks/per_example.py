"""Gradients of single examples: what some defenses ask for.

A pure function of the model; no statistics are updated. Batch norm in training mode mixes the examples of a
batch, so that no example has a gradient of its own: refused.

>>> from torch import nn
>>> net = nn.Linear(2, 3)
>>> params = {name: p.detach() for name, p in net.named_parameters()}
>>> chunks = list(per_example_gradients(net, params, {}, torch.ones(5, 2), torch.zeros(5, dtype=torch.int64)))
>>> [tuple(chunk["weight"].shape) for chunk in chunks]
[(5, 3, 2)]
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from core.errors import DefenseError
from core.trees import Tree, size
from tasks.models.precode import take_divergence
from tasks.training import mode

FLOATS = 1 << 26  # of gradients held at a time: 256 MiB


def per_example_gradients(module: nn.Module, params: Tree, buffers: Tree, x: Tensor, y: Tensor) -> Iterator[Tree]:
    """The cross-entropy gradient of every example of x [B, C, H, W], y [B], as trees of [b, *shape] in order."""
    if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        raise DefenseError(f"{type(module).__name__} has batch norm, so no example has a gradient of its own")
    state = {name: tensor.detach() for name, tensor in {**dict(module.named_buffers()), **buffers}.items()}
    leaves = {name: tensor.detach() for name, tensor in params.items()}

    def loss(weights: Tree, image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(module, (weights, state), (image[None],))
        return cross_entropy(logits, label[None]) + take_divergence(module)

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    chunk = max(1, FLOATS // max(1, size(params)))
    for images, labels in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        if len(labels):
            with mode(module, True):
                gradients = each(leaves, images, labels)
            yield {name: gradients[name] for name in params}
