"""Gradients of single examples, and how a model's representation depends on its input: what some defenses ask for.

Both are pure functions of the model; no statistics are updated. Batch norm in training mode mixes the examples of a
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

from core.errors import ConfigError, DefenseError
from core.trees import Tree, size
from tasks.models.precode import take_divergence
from tasks.training import mode

FLOATS = 1 << 26  # of gradients held at a time: 256 MiB
PASSES = 32  # backward passes of the representation at a time


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


def representation_sensitivity(module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> tuple[str, Tensor, Tensor]:
    """Weight name of the last linear layer, its input r [B, F], and the norm of dr_f/dx for every example [B, F].

    F backward passes: this is what makes Soteria slow.
    """
    linear = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ConfigError("soteria needs a model whose last layer is linear")
    name, layer = linear[-1]
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    state = {key: t.detach().clone() for key, t in {**dict(module.named_buffers()), **buffers}.items()}
    image = x.detach().clone().requires_grad_()
    try:
        with mode(module, True), torch.enable_grad():
            functional_call(module, ({k: t.detach() for k, t in params.items()}, state), (image,))
    finally:
        hook.remove()
    features = seen[0]
    norms = torch.cat(
        [_norms(features, image, part) for part in torch.split(torch.arange(features.shape[1]), PASSES)], dim=1
    )
    return f"{name}.weight" if name else "weight", features.detach(), norms


def _norms(features: Tensor, image: Tensor, part: Tensor) -> Tensor:
    """||d features[:, f] / d image|| for f in ``part``, [B, len(part)]."""
    columns = [torch.autograd.grad(features[:, f].sum(), image, retain_graph=True)[0] for f in part.tolist()]
    return torch.stack([column.flatten(1).norm(dim=1) for column in columns], dim=1)
