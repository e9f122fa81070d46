"""From scores to a mask: exactly the requested number of weights, ties to the lowest index.

A *rate* is the share REMOVED, over the prunable weights only; biases, normalisation and buffers are always kept.
"""

import math
from collections.abc import Set
from fractions import Fraction
from typing import Literal

import torch

from core.errors import KeyMismatch
from core.selection import keep_largest
from core.trees import Mask, Tree

Scope = Literal["global", "layer"]


def kept_count(total: int, rate: float) -> int:
    """How many of ``total`` weights stay when at least a share ``rate`` is removed.

    >>> kept_count(10, 0.3), kept_count(7, 0.0)
    (7, 7)
    """
    return total - math.ceil(Fraction(str(rate)) * total)


def keep_by_score(scores: Tree, prunable: Set[str], rate: float, scope: Scope = "global") -> Mask:
    """Keep the highest scores among the prunable names: over all of them together, or layer by layer."""
    if missing := sorted(prunable - scores.keys()):
        raise KeyMismatch(f"no scores for {', '.join(missing[:3])}")
    mask = {name: torch.ones(t.shape, dtype=torch.bool) for name, t in scores.items()}
    names = [name for name in scores if name in prunable]
    if scope == "layer":
        return mask | {name: keep_largest(scores[name], kept_count(scores[name].numel(), rate)) for name in names}
    if not names:
        return mask
    flat = torch.cat([scores[name].reshape(-1) for name in names])
    return mask | split(keep_largest(flat, kept_count(flat.numel(), rate)), {name: scores[name] for name in names})


def split(flat: torch.Tensor, like: Tree) -> Tree:
    """Cut a flat tensor into the shapes of ``like``, in its order."""
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {name: part.reshape(t.shape) for (name, t), part in zip(like.items(), parts, strict=True)}


def density(mask: Mask, prunable: Set[str]) -> float:
    """Share of the prunable weights that the mask keeps."""
    total = sum(mask[name].numel() for name in prunable)
    return sum(int(mask[name].sum()) for name in prunable) / total if total else 1.0
