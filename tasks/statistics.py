"""Batch norm's statistics of images under weights that nobody trains: what a pruned candidate is scored with.

Li et al., EagleEye, ECCV 2020, Sec. 3.3 (adaptive batch normalisation): the statistics that a network was left with
belong to its unpruned weights, so they are taken anew before it is scored. Every other layer is in evaluation mode.

Departure: the mean of the batches' own statistics, where the paper takes PyTorch's moving average, which after a few
batches still holds what it began with.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.core.trees import Tree
from prunella.tasks.training import mode


@contextmanager
def _averaging(module: nn.Module) -> Iterator[None]:
    """Within, batch norm keeps the plain mean over the batches that it has seen."""
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    before = [norm.momentum for norm in norms]
    with mode(module, False):
        try:
            for norm in norms:
                norm.momentum = None
                norm.train()
            yield
        finally:
            for norm, momentum in zip(norms, before, strict=True):
                norm.momentum = momentum


def batch_statistics(module: nn.Module, params: Tree, buffers: Tree, batches: Iterable[Tensor]) -> Tree:
    """The buffers with the mean over ``batches``, images [B, C, H, W], of each batch's mean and unbiased variance."""
    state = {name: tensor.detach().clone() for name, tensor in {**dict(module.named_buffers()), **buffers}.items()}
    state |= {name: torch.zeros_like(t) for name, t in state.items() if name.endswith("num_batches_tracked")}
    with _averaging(module), torch.no_grad():
        for x in batches:
            functional_call(module, {**params, **state}, (x,))
    return {name: state[name] for name in buffers}
