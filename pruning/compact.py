"""Where the living channels of a masked network are: to cut the small dense network out, and to put it back.

A channel of a group (``pruning.channels``) is *dead* under a mask that keeps no weight into it and none out of it, as
masks of whole filters (``pruning.filters``) and of sub-models (``pruning.widths``) do. A group keeps one living channel
at least. Places are those of ``core.trees.take``; tensors that no group has a part in are not among them, and are left
whole.

>>> from torch import nn
>>> from prunella.pruning.channels import channel_groups
>>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
>>> mask = {"0.weight": torch.tensor([[1, 1], [0, 0], [1, 0]]) > 0, "0.bias": torch.ones(3) > 0,
...         "2.weight": torch.tensor([[1, 0, 0]]) > 0, "2.bias": torch.ones(1) > 0}
>>> groups = channel_groups(net, (2,))
>>> {name: at.tolist() for name, at in places(groups, living(groups, mask), mask).items()}
{'0.weight': [[0, 1], [4, 5]], '0.bias': [0, 2], '2.weight': [[0, 2]]}
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from prunella.core.trees import Mask, Tree
from prunella.pruning.channels import Group, columns


def may_have_dead(mask: Mask) -> bool:
    """Whether some layer has a row without a weight, which is quicker to see than its groups."""
    return not all(bool(kept.flatten(1).any(1).all()) for kept in mask.values() if kept.ndim > 1)


def living(groups: Sequence[Group], mask: Mask) -> list[Tensor]:
    """Which channels of each group have a weight left, [U] bool."""
    return [_living(group, mask) for group in groups]


def _living(group: Group, mask: Mask) -> Tensor:
    own = [mask[f"{layer}.weight"] for layer in (*group.writers, *group.carriers) if f"{layer}.weight" in mask]
    read = [columns(mask[f"{reader.layer}.weight"], group.units) for reader in group.readers]
    rows = [kept.flatten(1).any(1) for kept in own if kept.ndim > 1]  # not batch norm's: what it does nobody hears
    alive = torch.stack([*rows, *(kept.any(2).any(0) for kept in read)]).any(0)
    alive[0] |= ~alive.any()
    return alive


def places(groups: Sequence[Group], chosen: Sequence[Tensor], like: Tree) -> Tree:
    """Where what belongs to the ``chosen`` channels, [U] bool for each group, lies in every tensor of ``like``."""
    pairs = list(zip(groups, chosen, strict=True))
    rows = {layer: units for group, units in pairs for layer in (*group.writers, *group.carriers)}
    read = {f"{reader.layer}.weight": units for group, units in pairs for reader in group.readers}
    found = {}
    for name, tensor in like.items():
        layer = name.rpartition(".")[0]
        if tensor.ndim and (layer in rows or name in read):
            at = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
            at = at[rows[layer]] if layer in rows else at
            units = read.get(name)
            at = at if units is None else columns(at, len(units))[:, units].reshape(len(at), -1, *at.shape[2:])
            found[name] = at
    return found
