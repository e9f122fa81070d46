"""PruneFL's reconfiguration of whole filters: the rule of ``pruning.prunefl``, Δ = Σ g² over T = c + Σ t, by channels.

What enters or leaves is a channel of a group (``pruning.channels``), with all weights into it and out of it. Channels
leave by their mean magnitude, as in ``pruning.filters``, and with them no more than ``prunable_share`` of the weights;
every group keeps a tenth of its channels. All other channels are candidates. What one brings in are those of its
weights whose other end is there: its gain is their Σ g², its time their Σ t. It grows while others enter, so that the
best ratio is sought anew each time, until the best lies below the current Γ. A candidate that would exceed
``max_density`` is passed over; only the tenth of every group is kept even above it. Ties go to the first.

Where every channel is one weight this is the rule of single weights.

What squared gradients say of a channel that is out: nothing reads it, so that those of the weights into it are zero,
and those of the weights out of it are about the constant that its bias or batch norm says. It returns by that alone,
starting at zero.
"""

from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor

from prunella.core.trees import Mask, Tree, count, require_same_names, same_trees
from prunella.pruning.channels import Group, columns
from prunella.pruning.compact import living
from prunella.pruning.filters import channel_mask, channels_within, fewest, fewest_weights
from prunella.pruning.prunefl import Reconfiguration, may_leave
from prunella.pruning.scores import magnitude

Block = tuple[int, int, Tensor]  # groups of a layer's rows and columns; gain, time, weights of each pair, [R, C, 3]


def most_weights(like: Tree, groups: Sequence[Group], prunable: Set[str], max_density: float) -> int:
    """The most weights that a mask may keep; ``max_density`` 0 is no limit."""
    total = sum(like[name].numel() for name in like if name in prunable)
    return max(fewest_weights(like, groups, prunable), int((max_density or 1.0) * total))


def of_channels(mask: Mask, groups: Sequence[Group], prunable: Set[str]) -> bool:
    """Whether a mask keeps whole channels, and of every group a tenth."""
    alive = living(groups, mask)
    enough = all(int(stays.sum()) >= fewest(group.units) for group, stays in zip(groups, alive, strict=True))
    return enough and same_trees(mask, channel_mask(mask, groups, prunable, alive))


def reconfigure_filters(
    params: Tree,
    importance: Tree,
    mask: Mask,
    groups: Sequence[Group],
    cost: Mapping[str, float],
    settings: Reconfiguration,
    round: int = 0,
) -> Mask:
    """The next mask, as ``pruning.prunefl.reconfigure``; ``mask`` keeps whole channels, and so does the next."""
    require_same_names(params, importance, mask)
    held = count({name: mask[name] for name in cost})
    most = most_weights(params, groups, cost.keys(), settings.max_density)
    stays = min(held - may_leave(held, settings, round), most)
    fixed = channels_within(magnitude(params), groups, cost.keys(), (stays, most), "global", mask)
    alive = [each.cpu() for each in living(groups, fixed)]
    blocks = _blocks(importance, groups, cost)
    price = sum(float(cost[name]) * params[name].numel() for name in cost)
    entered = _greedy(blocks, alive, settings.fixed_cost * price, most)
    device = next(iter(params.values())).device
    return channel_mask(params, groups, cost.keys(), [each.to(device) for each in entered])


def _blocks(importance: Tree, groups: Sequence[Group], cost: Mapping[str, float]) -> list[Block]:
    """Of every tensor with a cost. Rows or columns of no group are one, of the number behind the last group's."""
    numbered = list(enumerate(groups))
    rows = {f"{layer}.weight": n for n, group in numbered for layer in (*group.writers, *group.carriers)}
    read = {f"{reader.layer}.weight": n for n, group in numbered for reader in group.readers}
    units = [*(group.units for group in groups), 1]
    blocks = []
    for name, price in cost.items():
        row, column = rows.get(name, len(groups)), read.get(name, len(groups))
        gain = importance[name].double().cpu()
        each = [gain, torch.full_like(gain, float(price)), torch.ones_like(gain)]
        shape = (units[row], -1, units[column])
        summed = [columns(t, units[column]).sum(2).reshape(shape).sum(1) for t in each]
        blocks.append((row, column, torch.stack(summed, 2)))
    return blocks


def _greedy(blocks: list[Block], fixed: Sequence[Tensor], overhead: float, most: int) -> list[Tensor]:
    """``fixed`` and every channel that entered, [U] bool for each group."""
    sizes = [*map(len, fixed), 1]
    alive = torch.cat([*fixed, torch.ones(1, dtype=torch.bool)])  # the last is what is in no group
    brings = torch.zeros(len(alive), 3, dtype=torch.float64)
    there, bring = torch.split(alive, sizes), torch.split(brings, sizes)  # of each group, in the same memory
    kept = torch.zeros(3, dtype=torch.float64)
    for row, column, block in blocks:
        bring[row].add_(torch.einsum("rck,c->rk", block, there[column].double()))
        bring[column].add_(torch.einsum("rck,r->ck", block, there[row].double()))
        bring[row].add_(block.diagonal().T if row == column else 0.0)
        kept += torch.einsum("rck,r,c->k", block, there[row].double(), there[column].double())
    owner = [(number, unit) for number, size in enumerate(sizes) for unit in range(size)]
    while True:
        gain, time, weights = brings.unbind(1)
        enters = ~alive & (weights > 0) & (weights + kept[2] <= most)
        best = int(torch.where(enters, gain / time, -torch.inf).argmax())
        if not enters[best] or gain[best] * (overhead + kept[1]) < kept[0] * time[best]:
            return list(there[:-1])
        kept += brings[best]
        alive[best] = True
        number, unit = owner[best]
        for row, column, block in blocks:
            if row == number:
                bring[column].add_(block[unit])
            if column == number:
                bring[row].add_(block[:, unit])
