"""FedDST's mask moves: the client's prune and regrow, the server's vote. Bibikar et al., AAAI 2022, Alg. 1; RigL.

In a readjustment of round t a client prunes every layer by magnitude from sparsity S to S + (1 − S) α_t and regrows it
to S where the gradient is largest, with α_t = α/2 (1 + cos(π t / T_end)). Regrown weights start at zero. The server
averages over those who hold a weight, then keeps in every layer the largest by magnitude, as many as before.

Departure: the gradient is the root mean square over the local steps so far, as the defenses left it, where the paper
takes one batch's: nothing undefended decides about what leaves.
"""

import math
from collections.abc import Mapping, Set

import torch

from prunella.core.ranking import keep_largest
from prunella.core.trees import Mask, Tree, apply_mask

Counts = Mapping[str, int]


def decayed(alpha: float, round: int, end: int) -> float:
    """α_t.

    >>> decayed(0.4, 0, 10), round(decayed(0.4, 5, 10), 9), decayed(0.4, 10, 10)
    (0.4, 0.2, 0.0)
    """
    return alpha / 2 * (1 + math.cos(math.pi * min(round, end) / end))


def _below(scores: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """Non-negative scores, −1 outside ``where``."""
    return scores.abs().masked_fill(~where, -1.0)


def prune_and_regrow(params: Tree, squares: Tree, mask: Mask, alpha: float, prunable: Set[str]) -> tuple[Tree, Mask]:
    """Weights and mask after a client's readjustment; every layer keeps its count, and at least its largest weight.

    Candidates to regrow are all weights that are out, those just pruned included, which then return at zero.
    """
    stays, after = dict(mask), dict(mask)
    for name in (name for name in params if name in prunable):
        held = int(mask[name].sum())
        kept = min(held, max(1, held - int(alpha * held)))
        stays[name] = keep_largest(_below(params[name], mask[name]), kept)
        after[name] = stays[name] | keep_largest(_below(squares[name], ~stays[name]), held - kept)
    return apply_mask(params, stays), after


def vote(params: Tree, holders: Mask, previous: Mask, counts: Counts) -> Mask:
    """The next global mask: per layer the largest |w| among what some client held, ``counts`` of them exactly.

    Where clients hold fewer, weights of the previous mask fill up, lowest index first, then any.
    """
    chosen = {}
    for name, count in counts.items():
        fill = previous[name].to(params[name].dtype) - 2.0
        chosen[name] = keep_largest(torch.where(holders[name], params[name].abs(), fill), count)
    return {**previous, **chosen}
