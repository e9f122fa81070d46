"""Gradients of single examples: what some defenses ask for.

A pure function of the model; no statistics are updated. Examples are computed in groups of one constant size, the last
filled up with blank ones: how a matrix product rounds depends on how many rows it has, and weights can be chosen that
make of this rounding the whole gradient. Were the groups as large as the batch, one example more or less would change
the gradients of all others, and a clip bound would bound nothing. On a GPU the order of every sum is fixed for the same
reason (``core.device.repeatable``).

A batch of named tensors (a transformer's) goes in as keywords, one example at a time: such models ask what is in a
mask, which no ``vmap`` can answer. Padding to the longest of a batch would let one example change how the gradients of
the others round: pad to a length that no data chooses.

Batch norm in training mode mixes the examples of a batch, so that no example has a gradient of its own: refused.

>>> from torch import nn
>>> net = nn.Linear(2, 3)
>>> params = {name: p.detach() for name, p in net.named_parameters()}
>>> chunks = list(per_example_gradients(net, params, {}, torch.ones(5, 2), torch.zeros(5, dtype=torch.int64)))
>>> [tuple(chunk["weight"].shape) for chunk in chunks]
[(5, 3, 2)]
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.core.device import repeatable
from prunella.core.errors import DefenseError
from prunella.core.trees import Tree, size
from prunella.tasks.models.precode import take_divergence
from prunella.tasks.training import mode

FLOATS = 1 << 26  # of gradients held at a time: 256 MiB
TOGETHER = 64  # examples computed at a time at most


def group_of(expected: int) -> int:
    """How many examples are computed together where a batch is expected to have so many: a number that no data changes.

    >>> group_of(1), group_of(16), group_of(17), group_of(500)
    (1, 16, 32, 64)
    """
    return min(TOGETHER, 1 << (expected - 1).bit_length())


def layers_that_mix(module: nn.Module) -> list[str]:
    """Names of layers whose answer to one example depends on the others of its batch."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]


def per_example_gradients(
    module: nn.Module,
    params: Tree,
    buffers: Tree,
    x: Tensor | Mapping[str, Tensor],
    y: Tensor,
    expected: int = TOGETHER,
    criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> Iterator[Tree]:
    """The gradient of ``criterion`` (the model's answer, label [1]) of every example of x [B, ...], y [B], as trees of
    [b, *shape] in order. ``expected`` is a public guess at B."""
    if layers_that_mix(module):
        raise DefenseError(f"{type(module).__name__} has batch norm, so no example has a gradient of its own")
    state = {name: tensor.detach() for name, tensor in {**dict(module.named_buffers()), **buffers}.items()}
    leaves = {name: tensor.detach() for name, tensor in params.items()}

    def loss(weights: Tree, image: Tensor | Mapping[str, Tensor], label: Tensor) -> Tensor:
        named = {name: tensor[None] for name, tensor in image.items()} if isinstance(image, Mapping) else {}
        answer = functional_call(module, (weights, state), () if isinstance(image, Mapping) else (image[None],), named)
        return criterion(answer, label[None]) + take_divergence(module)

    if isinstance(x, Mapping):
        for row, label in enumerate(y):
            with repeatable(label.device), mode(module, True):
                found = grad(loss)(leaves, {name: tensor[row] for name, tensor in x.items()}, label)
            yield {name: found[name][None] for name in params}
        return
    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    group = max(1, min(group_of(expected), FLOATS // max(1, size(params))))
    for images, labels in zip(torch.split(x, group), torch.split(y, group), strict=True):
        if held := len(labels):
            blank = (group - held, *images.shape[1:])
            images, labels = (
                torch.cat([images, images.new_zeros(blank)]),
                torch.cat([labels, labels.new_zeros(blank[0])]),
            )
            with repeatable(labels.device), mode(module, True):
                gradients = each(leaves, images, labels)
            yield {name: gradients[name][:held] for name in params}
