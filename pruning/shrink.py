"""The same network without the channels that pruning left with nothing to do: smaller tensors, equal outputs.

A *unit* is a channel of a group of layers (``pruning.channels``): an output of one convolution or linear layer, or what
several add into the same place of a residual sum. It goes when no reader reads it, as every weight out of it is zero,
or when what they read is a constant, as every weight into it is zero. A unit without weights into it still has an
output: its bias, after normalisation and activation, is a constant c. The layer that reads it adds Σ c_u W[:, u] of
such units to its own bias, which is exact for a linear layer and for a convolution without padding. Where zeros are
padded around the image, or the reading layer has no bias, one of those units stays and stands for all: W[:, k] becomes
Σ (c_u / c_k) W[:, u], exact at the borders too.

Masks of whole channels (``pruning.filters``) leave no weight out of a unit, so that nothing has to be said for it.

``tree`` holds parameters and float buffers by name, pruned weights zero; the network is in evaluation mode. A group
keeps at least one unit. A network whose graph depends on its input raises ``PrunellaError``.

>>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
>>> tree = {"0.weight": torch.tensor([[1., 1.], [0., 0.], [1., 0.]]), "0.bias": torch.tensor([0., 2., 0.]),
...         "2.weight": torch.tensor([[1., 3., 0.]]), "2.bias": torch.tensor([1.])}
>>> {name: t.tolist() for name, t in shrink(net, tree, (2,)).items()}
{'0.weight': [[1.0, 1.0]], '0.bias': [0.0], '2.weight': [[1.0]], '2.bias': [7.0]}
"""

import torch
from torch import Tensor, nn

from prunella.core.trees import Tree
from prunella.pruning.channels import Group, channel_groups, columns


def shrink(module: nn.Module, tree: Tree, shape: tuple[int, ...]) -> Tree:
    """The tensors of the smaller network, by the same names; ``shape`` is that of one input, without the batch."""
    groups = channel_groups(module, shape)
    current = dict(tree)
    while True:
        before = [_units(group, current) for group in groups]
        for group in groups:
            current = _without(group, current)
        if before == [_units(group, current) for group in groups]:
            return current


def _units(group: Group, tree: Tree) -> int:
    return len(tree[f"{group.writers[0]}.weight"])


def _without(group: Group, tree: Tree) -> Tree:
    """The tree without the units of one group that can go."""
    units = _units(group, tree)
    layers = [reader.layer for reader in group.readers]
    read = torch.stack([columns(tree[f"{name}.weight"], units).ne(0).any(2).any(0) for name in layers])
    known = group.constants(tree)
    constants = torch.stack([known[name] for name in layers])
    goes = (~read | ~constants.isnan()).all(0)
    if not bool(goes.any()):
        return tree
    changed, keep = dict(tree), ~goes
    spoken = constants.nan_to_num(0.0) * (read & goes)
    folds = torch.tensor([reader.folds for reader in group.readers])
    for reader, value in zip(group.readers, spoken, strict=True):
        if reader.folds and bool(value.any()):
            _fold(changed, reader.layer, value)
    if bool(spoken[~folds].any()):
        padded = [name for name, folded in zip(layers, folds.tolist(), strict=True) if not folded]
        keep |= _speaker(changed, padded, spoken[~folds], constants[~folds])
    _silence(changed, [name for name, folded in zip(layers, folds.tolist(), strict=True) if folded], units, goes)
    if not bool(keep.any()):  # what the last ones say, if anything, is in the readers' biases
        keep[0] = True
        _silence(changed, layers, units, goes)
    return tree if bool(keep.all()) else _cut(group, changed, keep)


def _put(tree: Tree, layer: str, changed: Tensor) -> None:
    """New columns of a reader, [outputs, units, what it reads of a unit]."""
    weight = tree[f"{layer}.weight"]
    tree[f"{layer}.weight"] = changed.reshape(weight.shape).to(weight.dtype)


def _silence(tree: Tree, layers: list[str], units: int, which: Tensor) -> None:
    """Nobody of ``layers`` reads the units of ``which`` any more."""
    for layer in layers:
        read = columns(tree[f"{layer}.weight"], units)
        _put(tree, layer, read.masked_fill(which[:, None], 0.0))


def _fold(tree: Tree, layer: str, constants: Tensor) -> None:
    bias, read = tree[f"{layer}.bias"], columns(tree[f"{layer}.weight"], len(constants))
    tree[f"{layer}.bias"] = (bias.double() + read.double().sum(2) @ constants).to(bias.dtype)


def _speaker(tree: Tree, layers: list[str], spoken: Tensor, constants: Tensor) -> Tensor:
    """Let one unit say what all say to ``layers``, and return those that stay, [U]. ``spoken`` [layers, U] is what
    units that go say there, and ``constants`` what they all say, or NaN."""
    speaking = spoken.ne(0).any(0)
    least = constants.abs().nan_to_num(0.0).amin(0) * speaking
    first = int(least.argmax())
    if least[first] == 0:  # some reader hears nothing from any that all readers hear
        return speaking
    for value, layer in zip(spoken, layers, strict=True):
        read = columns(tree[f"{layer}.weight"], len(speaking)).to(torch.float64, copy=True)
        said = torch.einsum("ous,u->os", read, value / constants[layers.index(layer), first])
        read[:, first] = said
        _put(tree, layer, read)
    return torch.arange(len(speaking), device=speaking.device) == first


def _cut(group: Group, tree: Tree, keep: Tensor) -> Tree:
    changed, owners = dict(tree), {*group.writers, *group.carriers}
    for name, tensor in tree.items():
        if name.rpartition(".")[0] in owners and tensor.ndim:
            changed[name] = tensor[keep]
    for reader in group.readers:
        old = changed[f"{reader.layer}.weight"]
        read = columns(old, len(keep))[:, keep]
        changed[f"{reader.layer}.weight"] = read.reshape(len(old), -1, *old.shape[2:])
    return changed
