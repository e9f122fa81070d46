"""The loss of a model on one public batch, as a function of its parameters: what SNIP and GraSP differentiate.

Mean cross-entropy in float64, in training mode (batch norm uses the batch's own statistics) with dropout off, so that
the same seed gives the same bits. The batch is drawn from the server's public examples, never from a client.
"""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.core.copies import copied
from prunella.core.errors import PrunellaError
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.pruning.snip import Loss
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.data import Examples


def public_examples(model: ServerModel) -> Examples:
    if model.public is None:
        raise PrunellaError("this scheme prunes on public examples, and the server was given none")
    return model.public


def public_batch(model: ServerModel, size: int, seed: int) -> Examples:
    """Up to ``size`` public examples, drawn by seed."""
    public = public_examples(model)
    order = torch.randperm(len(public), generator=stream(seed, purpose="public-batch"))[:size]
    return Examples(public.x[order], public.y[order])


def _still(module: nn.Module) -> nn.Module:
    """A float64 copy in training mode with dropout off."""
    still = copied(module).double().train()
    for layer in still.modules():
        if isinstance(layer, nn.Dropout | nn.Dropout2d):
            layer.eval()
    return still


def loss_on(model: ServerModel, batch: Examples, temperature: float = 1.0) -> Loss:
    """The loss with logits divided by ``temperature``. Of tied weights the first name counts; batch norm's statistics
    are no parameters, and stay as they are."""
    module, x = _still(model.module), batch.x.double() if batch.x.is_floating_point() else batch.x
    weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())

    def loss(params: Tree) -> torch.Tensor:
        state = {n: t for n, t in params.items() if n in weights}
        state |= {n: t.detach().clone() for n, t in params.items() if n in buffers}
        return cross_entropy(functional_call(module, state, (x,)) / temperature, batch.y)

    return loss
