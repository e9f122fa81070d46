"""Sub-models of a width: the first channels of every layer. Diao et al., HeteroFL, ICLR 2021 (arXiv 2010.01264).

A client of width r holds of a layer with U units (output channels, neurons) the first ⌈r U⌉, and of the layer that
reads them the columns of these. Inputs of the network and its outputs, the classes, are whole. The sub-model is a mask
over the global one: what it does not hold is zero, and a unit without weights and bias in a layer whose readers do not
hear it adds nothing to any output or gradient, whatever the activation, so that training under the mask is training
the small network.

Units are channels of groups (``pruning.channels``): layers whose outputs are added up hold the same first ones.

Departures: the paper's scaler and masked cross-entropy are left out, and so is its batch norm without
statistics: a client with a width takes part in models without buffers only (``require_no_statistics``).

>>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
>>> {name: mask.int().tolist() for name, mask in sub_mask(net, (2,), 0.5).items()}
{'0.weight': [[1, 1], [1, 1], [0, 0]], '0.bias': [1, 1, 0], '2.weight': [[1, 1, 0], [1, 1, 0]], '2.bias': [1, 1]}
"""

import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.core.ranking import part_of
from prunella.core.trees import Mask, Tree
from prunella.pruning.channels import channel_groups, columns


def require_no_statistics(buffers: Tree) -> None:
    """Refuse a model with batch norm: its statistics of channels that a client does not hold would be averaged with
    those of others. Raises ``ConfigError``."""
    if buffers:
        raise ConfigError("a client with a width trains no model with batch norm: choose another, or width=1")


def sub_mask(module: nn.Module, shape: tuple[int, ...], width: float) -> Mask:
    """What a client of this width holds of every parameter, in the module's order. Raises ``PrunellaError`` for a
    network whose graph cannot be followed."""
    mask = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in module.named_parameters()}
    if width >= 1:
        return mask
    for group in channel_groups(module, shape):
        outside = torch.arange(group.units) >= part_of(width, group.units, up=True)
        owners = {*group.writers, *group.carriers}
        for name in (name for name in mask if name.rpartition(".")[0] in owners):
            mask[name][outside] = False
        for reader in group.readers:
            columns(mask[f"{reader.layer}.weight"], group.units)[:, outside] = False  # a view: masks are contiguous
    return mask
