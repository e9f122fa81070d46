"""Fed-LTP's masks and choice of a ticket. LTP Eqs. (9), (10), (12), Alg. 1.

Eq. (9) keeps |w| > P · max|w| of a layer. That is a share 1 − P only where magnitudes are uniform, as right after a
uniform initialisation, while the paper counts with retention p = 1 − P, and p_i = (1 − P1)(1 − P2)^i for the i-th
model of fed-iterative pruning. So ``rule="rate"``, the default, keeps exactly the largest ⌊p n⌋ of every layer, in the
order of Eq. (9); ``rule="as_printed"`` is Eq. (9). As printed, pruning again with P2 ≤ P1 the weights Eq. (9) has just
left removes nothing, since what is left lies above P1 · max.

A layer always keeps at least one weight.

>>> w = {"w": torch.tensor([0.1, 0.9, 1.0, -0.95])}
>>> ticket_mask(w, {"w"}, 0.5, "rate")["w"].tolist(), ticket_mask(w, {"w"}, 0.5, "as_printed")["w"].tolist()
([False, False, True, True], [False, True, True, True])
"""

import math
from collections.abc import Sequence, Set
from fractions import Fraction
from typing import Literal

import torch

from prunella.core.ranking import keep_largest
from prunella.core.trees import Mask, Tree, full_mask

Rule = Literal["rate", "as_printed"]


def retained(size: int, first: float, further: float = 0.0, times: int = 0) -> int:
    """⌊n (1 − P1)(1 − P2)^i⌋, at least 1, without the rounding of binary fractions.

    >>> retained(1000, 0.3), retained(1000, 0.3, 0.1, 2)
    (700, 567)
    """
    share = (1 - Fraction(str(first))) * (1 - Fraction(str(further))) ** times
    return max(1, math.floor(share * size))


def _above(weights: torch.Tensor, inside: torch.Tensor, rate: float) -> torch.Tensor:
    """Eq. (9) on one layer, inside a mask."""
    magnitude = weights.abs().masked_fill(~inside, -1.0)
    return (magnitude > rate * magnitude.max()) | keep_largest(magnitude, 1)


def ticket_mask(params: Tree, prunable: Set[str], rate: float, rule: Rule) -> Mask:
    """The mask of a winning ticket from its trained weights."""
    return _shrink(params, full_mask(params), prunable, rule, (rate, 0.0, 0))


def _shrink(params: Tree, mask: Mask, prunable: Set[str], rule: Rule, rates: tuple[float, float, int]) -> Mask:
    """A mask inside ``mask``; ``rates`` are P1, P2 and i: Eq. (9) cuts by P1 at i = 0 and by P2 later."""
    first, further, times = rates
    smaller = dict(mask)
    for name in (name for name in params if name in prunable):
        if rule == "rate":
            magnitude = params[name].abs().masked_fill(~mask[name], -1.0)
            smaller[name] = keep_largest(magnitude, retained(magnitude.numel(), first, further, times))
        else:
            smaller[name] = _above(params[name], mask[name], further if times else first)
    return smaller


def further_masks(
    params: Tree, mask: Mask, prunable: Set[str], plan: tuple[float, float, int], rule: Rule
) -> list[Mask]:
    """Models 1 … K of Eq. (12), each pruned out of the one before; ``plan`` is P1, which ``mask`` has, P2 and K."""
    first, further, count = plan
    masks = [mask]
    for times in range(1, count + 1):
        masks.append(_shrink(params, masks[-1], prunable, rule, (first, further, times)))
    return masks[1:]


def softmax_choice(scores: Sequence[float], generator: torch.Generator) -> int:
    """An index drawn with probability softmax(scores), Eq. (10), shifted by the maximum so that nothing overflows.

    >>> softmax_choice([3000.0, 1.0, 2.0], torch.Generator().manual_seed(0))
    0
    """
    probabilities = torch.softmax(torch.tensor(list(scores), dtype=torch.float64), dim=0)
    return int(torch.multinomial(probabilities, 1, generator=generator))
