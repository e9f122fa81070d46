"""Which channels of somebody else's model are one (``pruning.channels``), as a server tells clients, who have arrays.

Of a group: how many channels, and the layers that write, carry and read them. What becomes of constants is not told.

>>> from torch import nn
>>> from prunella.pruning.channels import channel_groups
>>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
>>> told(channel_groups(net, (2,)))
((3, ('0',), (), ('2',)),)
>>> [group.units for group in read(told(channel_groups(net, (2,))), dict(net.named_parameters()))]
[3]
"""

from collections.abc import Sequence
from typing import Any

from prunella.core.errors import WireError
from prunella.core.trees import Tree
from prunella.pruning.channels import ChannelReader, Group

Told = tuple[tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]


def told(groups: Sequence[Group]) -> Told:
    """As a message holds it."""
    return tuple((g.units, g.writers, g.carriers, tuple(reader.layer for reader in g.readers)) for g in groups)


def parsed(given: Any) -> Told:
    """What a message holds. Raises ``ValueError`` or ``TypeError`` for what is none."""
    groups = [(units, *(tuple(map(str, layers)) for layers in rest)) for units, *rest in given]
    if not all(type(group[0]) is int and group[0] > 0 and len(group) == 4 for group in groups):
        raise ValueError
    return tuple(groups)


def read(given: Told, like: Tree) -> list[Group]:
    """The groups, for arrays like these. Raises ``WireError`` where they do not belong to them."""
    for units, writers, carriers, readers in given:
        rows = [like.get(f"{layer}.weight") for layer in (*writers, *carriers)]
        columns = [like.get(f"{layer}.weight") for layer in readers]
        fit = all(row is not None and row.ndim and len(row) == units for row in rows)
        if not fit or not all(c is not None and c.ndim > 1 and c[0].numel() % units == 0 for c in columns):
            raise WireError("malformed", "the server's scheme names channels that this model does not have")
    return [Group(u, w, c, tuple(ChannelReader(layer, "", False) for layer in r)) for u, w, c, r in given]
