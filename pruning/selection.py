"""From scores to a mask: exactly the requested number of weights, ties to the lowest index.

A *rate* is the share REMOVED, over the prunable weights only; biases, normalisation and buffers are always kept. So is
the best weight of every layer, since a layer that is gone cuts the network: its count is taken elsewhere, and the total
stays exact. Only a rate that leaves fewer weights than there are layers is not reached.

>>> scores = {"small": torch.tensor([1.0, 2.0]), "large": torch.tensor([7.0, 9.0, 8.0, 6.0])}
>>> {n: m.tolist() for n, m in keep_by_score(scores, {"small", "large"}, 0.5).items()}
{'small': [False, True], 'large': [False, True, True, False]}
"""

import math
from collections.abc import Mapping, Set
from fractions import Fraction
from typing import Literal

import torch

from prunella.core.errors import KeyMismatch
from prunella.core.ranking import keep_largest
from prunella.core.trees import Mask, Tree, count, full_mask, map_trees

Scope = Literal["global", "layer"]
Granularity = Literal["weight", "filter"]


def kept_count(total: int, rate: float) -> int:
    """How many of ``total`` weights stay when at least a share ``rate`` is removed.

    >>> kept_count(10, 0.3), kept_count(7, 0.0)
    (7, 7)
    """
    return total - math.ceil(Fraction(str(rate)) * total)


def keep_by_score(scores: Tree, prunable: Set[str], rate: float, scope: Scope = "global") -> Mask:
    """Keep the highest scores among the prunable names, over all together or layer by layer; no layer is emptied."""
    if missing := sorted(prunable - scores.keys()):
        raise KeyMismatch(f"no scores for {', '.join(missing[:3])}")
    mask = full_mask(scores)
    names = [name for name in scores if name in prunable]
    if scope == "layer":
        return mask | keep_counts(scores, {name: max(1, kept_count(scores[name].numel(), rate)) for name in names})
    if not names:
        return mask
    ranked = torch.cat([best_first(scores[name]) for name in names])
    count = max(len(names), kept_count(ranked.numel(), rate))
    return mask | split(keep_largest(ranked, count), {name: scores[name] for name in names})


def below(scores: Tree, inside: Mask) -> Tree:
    """Scores that are never negative, with those outside of a mask lower still: what is out stays out, even beside a
    kept weight that happens to be zero."""
    return map_trees(lambda s, m: s.masked_fill(~m, -1.0), scores, {name: inside[name] for name in scores})


def keep_counts(scores: Tree, counts: Mapping[str, int]) -> Mask:
    """The highest scores of every named tensor, exactly as many as counted."""
    return {name: keep_largest(scores[name], count) for name, count in counts.items()}


def best_first(scores: torch.Tensor) -> torch.Tensor:
    """The scores of one layer, flat, its best one raised above every other layer's.

    >>> best_first(torch.tensor([1.0, 3.0, 3.0])).tolist()
    [1.0, inf, 3.0]
    """
    if bool(torch.isnan(scores).any()):
        raise ValueError(f"scores of shape {tuple(scores.shape)} contain NaN")
    flat = scores.reshape(-1).clone()
    flat[flat.argmax()] = torch.inf  # the first of equal ones
    return flat


def split(flat: torch.Tensor, like: Tree) -> Tree:
    """Cut a flat tensor into the shapes of ``like``, in its order."""
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {name: part.reshape(t.shape) for (name, t), part in zip(like.items(), parts, strict=True)}


def density(mask: Mask, prunable: Set[str]) -> float:
    """Share of the prunable weights that the mask keeps."""
    total = sum(mask[name].numel() for name in prunable)
    return count({name: mask[name] for name in prunable}) / total if total else 1.0
