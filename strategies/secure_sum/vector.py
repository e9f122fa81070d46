"""What travels in a masked sum, as one vector: the example count, the update inside the mask, the change of buffers.

The support is everybody's mask, which is public, so the vector is dense over it and its length says nothing. A
coordinate that a defense withheld is a zero of the sum and counts in the mean with weight: there is no mean over
holders here, since who holds a coordinate is what a sum hides.

The example count is the first word and every value is multiplied by it, so the server learns Σ n_i Δ_i and Σ n_i. A
count above ``secure-sum.examples`` counts as that many.

Only the sum is checked. One client's words may be those of all, so it can move the mean by about the whole range,
whatever count it says, and by a count below zero make everybody's update larger in it; that would need range proofs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from prunella.core.config import Count, Positive
from prunella.core.errors import WireError
from prunella.core.trees import Mask, Tree, full_mask, require_same_names
from prunella.strategies.secure_sum.fixed_point import (
    GRID,
    FixedPoint,
    Integers,
    Words,
    capacity,
    decode,
    encode,
    reduced,
)
from prunella.strategies.secure_sum.party import MOST

NAME = "secure-sum"


@dataclass(frozen=True)
class SecureSum:
    """Masked sums over everybody's mask; docs/secure-aggregation.md says what they hide and what not."""

    #: largest change of a weight, or of a buffer, in a round; a sum of larger ones is not believed
    range: Positive = 16.0
    examples: Count = 65536  #: most examples that a client counts for
    stage_seconds: Positive = 60.0  #: how long the server waits for keys, letters, votes and shares


def form_of(settings: SecureSum, clients: int) -> FixedPoint:
    """The numbers of a sum of so many clients."""
    return FixedPoint(settings.range, settings.examples, clients)


def most_clients(settings: SecureSum) -> int:
    """The most clients of a sum under these settings."""
    return min(MOST, capacity(settings.range, settings.examples))


def _values(tree: Tree, mask: Mask) -> list[NDArray[np.float64]]:
    require_same_names(tree, mask)
    return [tree[name][mask[name]].detach().cpu().double().numpy() for name in sorted(tree)]


def length(mask: Mask, buffers: Tree) -> int:
    """Words of a vector."""
    return 1 + sum(int(kept.sum()) for kept in mask.values()) + sum(t.numel() for t in buffers.values())


def to_words(update: Tree, mask: Mask, change: Tree, examples: int, form: FixedPoint) -> Words:
    """The vector of one client. ``change`` is that of its buffers."""
    weight = min(examples, form.weight)
    parts = _values(update, mask) + _values(change, full_mask(change))
    words = encode(np.concatenate(parts) if parts else np.zeros(0), weight, form)
    return np.concatenate([np.array([weight], np.uint64), words])


def from_sum(total: Integers, mask: Mask, buffers: Tree, clients: int, form: FixedPoint) -> tuple[Tree, Tree, int]:
    """The weighted mean of the updates and of the buffers' changes, float64, and the sum of the weights.

    Raises ``WireError`` for a sum that ``clients`` clients within their bounds cannot have."""
    weight = int(total[0])
    if not clients <= weight <= clients * form.weight or int(np.abs(total[1:]).max(initial=0)) > weight * form.most:
        fix = "raise secure-sum.range, or train slower"
        raise WireError("size", f"the sum is not one of updates within their range: {fix}")
    mean = torch.from_numpy(total[1:] * (GRID / weight))
    places = full_mask(buffers)
    sizes = [int(kept[name].sum()) for kept in (mask, places) for name in sorted(kept)]
    parts = iter(torch.split(mean, sizes))
    trees = tuple({name: _filled(kept[name], next(parts)) for name in sorted(kept)} for kept in (mask, places))
    update, change = trees
    return {name: update[name] for name in mask}, {name: change[name] for name in buffers}, weight


def opened(updates: Sequence[Tree], mask: Mask, changes: Sequence[Tree], settings: SecureSum) -> tuple[Tree, Tree]:
    """The means that a server reads back of a sum of clients with one example each: of their updates and of their
    buffers' changes, float64. Raises ``WireError`` outside the range."""
    form = form_of(settings, len(updates))
    words = [to_words(update, mask, change, 1, form) for update, change in zip(updates, changes, strict=True)]
    total = decode(reduced(np.sum(words, axis=0, dtype=np.uint64), form), form)
    mean, change, _ = from_sum(total, mask, changes[0], len(updates), form)
    return mean, change


def _filled(kept: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.zeros(kept.shape, dtype=torch.float64).masked_scatter_(kept, values)
