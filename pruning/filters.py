"""From scores to a mask of whole channels: what is left is a smaller dense network.

A channel of a group (``pruning.channels``) is scored by the mean of its own weights' scores: the rows of all layers
that write it, residual sums included, and its filter in depthwise convolutions. Li et al. (Pruning Filters for
Efficient ConvNets, ICLR 2017) sum |w| over a filter, which is the same order within a layer. When a channel goes, its
weights go, and the weights that read it as well: a network without the channel needs neither, so that the share of
weights that stays is the small network's, and ``pruning.shrink`` finds exactly that network. Biases and normalisation
stay in the mask, as everywhere; what they say in a channel that is gone nobody reads.

Order, lowest first, ties by group and index:

* ``scope`` "global": scores over the mean |score| of their group, since layers of unequal width have weights of unequal
  size; without that the widest layers are emptied first. Every group keeps a tenth of its channels (``LEAST``).
* ``scope`` "layer": by the share of the group that stands lower, so that all groups lose the same share.

Channels go while no more than a share ``rate`` of the prunable weights is gone (``keep_channels``), or by numbers of
weights, one of which is a limit (``channels_within``). A channel without a weight left in ``inside`` stays out. NaN
raises ``ValueError``.
"""

import math
from collections.abc import Sequence, Set

import torch
from torch import Tensor

from prunella.core.trees import Mask, Tree, full_mask
from prunella.pruning.channels import Group, columns
from prunella.pruning.selection import Scope, kept_count

LEAST = 0.1  # of a group's channels, that a global ranking leaves; one at least


def keep_channels(
    scores: Tree, groups: Sequence[Group], prunable: Set[str], rate: float, scope: Scope, inside: Mask | None = None
) -> Mask:
    """The mask of a network without the channels that score lowest, which no channel outside of ``inside`` enters."""
    total = sum(scores[name].numel() for name in scores if name in prunable)
    return channels_within(scores, groups, prunable, (kept_count(total, rate), total), scope, inside)


def channels_within(
    scores: Tree,
    groups: Sequence[Group],
    prunable: Set[str],
    weights: tuple[int, int],
    scope: Scope,
    inside: Mask | None = None,
) -> Mask:
    """The same by two numbers of prunable weights: channels go while more than the second are left, and then while no
    fewer than the first would be."""
    before = full_mask(scores) if inside is None else inside
    own = [torch.cat(_own(group, before, prunable), 1) for group in groups]
    alive = [rows.any(1) for rows in own]
    ranked = [
        place
        for number, group in enumerate(groups)
        for place in _keyed(number, torch.cat(_own(group, scores, prunable), 1), own[number], scope)
    ]
    kept = _Kept(groups, scores, prunable, [int(stays.sum()) for stays in alive])
    least, most = weights
    for _, number, unit in sorted(ranked):
        if not kept.remove(number, least if kept.now <= most else 0):
            break
        alive[number][unit] = False
    return channel_mask(scores, groups, prunable, alive)


def fewest(units: int) -> int:
    """How many of so many channels always stay."""
    return math.ceil(LEAST * units)


def fewest_weights(like: Tree, groups: Sequence[Group], prunable: Set[str]) -> int:
    """How many prunable weights always stay."""
    return _Kept(groups, like, prunable, [fewest(group.units) for group in groups]).now


def _own(group: Group, tree: Tree, prunable: Set[str]) -> list[Tensor]:
    """The weights of every channel, [U, weights of a row], layer by layer; batch norm has none."""
    names = [f"{name}.weight" for name in (*group.writers, *group.carriers)]
    return [tree[name].flatten(1) for name in names if name in prunable]


def _keyed(number: int, scores: Tensor, inside: Tensor, scope: Scope) -> list[tuple[float, int, int]]:
    """What a group's channels are ranked by, its number, and the channel, of all that may go; tensors are [U, own]."""
    if bool(torch.isnan(scores).any()):
        raise ValueError(f"scores of shape {tuple(scores.shape)} contain NaN")
    units, left = len(scores), int(inside.any(1).sum())
    means = (scores.double() * inside).sum(1) / inside.sum(1).clamp(min=1)
    order = means.masked_fill(~inside.any(1), -torch.inf).argsort(stable=True).tolist()
    size = float(means.abs().sum()) / left or 1.0
    last = units - min(left, fewest(units))
    places = range(units - left, last)
    return [(float(means[order[at]]) / size if scope == "global" else at / units, number, order[at]) for at in places]


class _Kept:
    """How many prunable weights stay, as channels go: a share of its rows times a share of its columns of each."""

    def __init__(self, groups: Sequence[Group], like: Tree, prunable: Set[str], alive: Sequence[int]) -> None:
        sizes = {name: like[name].numel() for name in like if name in prunable}
        self.alive = list(alive)
        self.factors: dict[str, list[int]] = {name: [] for name in sizes}  # the groups of its rows and its columns
        self.size = sizes
        for number, group in enumerate(groups):
            for layer in (*group.writers, *group.carriers, *(reader.layer for reader in group.readers)):
                if f"{layer}.weight" in sizes:
                    self.factors[f"{layer}.weight"].append(number)
                    self.size[f"{layer}.weight"] //= group.units
        self.now = sum(self._of(name) for name in sizes)

    def _of(self, name: str) -> int:
        return self.size[name] * math.prod(self.alive[number] for number in self.factors[name])

    def remove(self, number: int, least: int) -> bool:
        """Take one channel out of a group, unless fewer than ``least`` weights would be left."""
        touched = [name for name, groups in self.factors.items() if number in groups]
        before = sum(self._of(name) for name in touched)
        self.alive[number] -= 1
        after = self.now - before + sum(self._of(name) for name in touched)
        if after < least:
            self.alive[number] += 1
            return False
        self.now = after
        return True


def channel_mask(like: Tree, groups: Sequence[Group], prunable: Set[str], alive: Sequence[Tensor]) -> Mask:
    """The mask of a network of the channels ``alive``, [U] bool for each group."""
    mask = full_mask(like)
    for group, stays in zip(groups, alive, strict=True):
        for name in (f"{layer}.weight" for layer in (*group.writers, *group.carriers)):
            if name in prunable:
                mask[name] &= stays.reshape(-1, *[1] * (mask[name].ndim - 1))
        for name in (f"{reader.layer}.weight" for reader in group.readers):
            mask[name] = (columns(mask[name], group.units) & stays[:, None]).reshape(mask[name].shape)
    return mask
