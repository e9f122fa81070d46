"""Information bounds as plain functions: PriPrune's in bits (PRI Thm 4.1, Cor. 4.2), CHN's in nats (Thm 4).

PRI, base rate p, batch B, gradient rank d*, covariance Sigma of one example's gradient on its d* directions:

    as printed (Eq. 6)  I <= 1 - (p - 1)/(2 ln 2) + 2 log(1/B) + 2 log |det Sigma^(-1/2)| + d* log(2 pi e)
    corrected           I <= h(p) + 2 [ d*/2 log(2 pi e) + 1/2 log det Sigma - d*/2 log B ]

all logarithms to base 2, times T for T rounds. Corrected: the whitened gradient is g = Sigma^(1/2) z, so log det Sigma
enters with +1/2; a mean of B examples has covariance Sigma / B, which costs d*/2 log B and not log B; the binary
entropy h(p) is exact where the paper expands it at 1/2 (1 - (2p - 1)^2 / (2 ln 2), and misprints that). PruneFL's
Eq. 25 is the printed form with 1 - p = the share of weights that are kept or not prunable; its second line drops a
positive term and is no upper bound.

Limits of both: they add differential entropies, which scale with the unit of the gradient and can be negative, and
count one h(p) for the whole mask, where d independent choices have d h(p) (``mask_choices``). They order settings; they
do not certify one.

CHN Theorem 4, nats that one step of DP-SGD may tell of its batch: gradients clipped to norm S, noise of variance sigma
on their sum, batch B. As printed C <= B S^2 / sigma, and with the sigma of the Gaussian mechanism
C <= B eps^2 / (2 ln(1.25 / delta)). [erratum] Its proof drops the 1/2 of Eq. 15, so that both are twice what holds:
corrected C <= B S^2 / (2 sigma), which gradients of many equal directions reach. The paper matches DP to channels by
the printed form: kappa 100, 200, 300, 1500 by noise 0.8, 0.57, 0.46, 0.2066 at clip 1 and batch 64 (claim C4).

>>> round(priprune_printed(0.5, 1, 1, 0.0), 3), round(priprune_corrected(0.5, 1, 1, 0.0), 3)
(5.455, 5.094)
>>> [round(dp_capacity(1.0, noise**2, 64, as_printed=True)) for noise in (0.8, 0.57, 0.46, 0.2066)]
[100, 197, 302, 1499]
"""

import math

_LOG2_2PIE = math.log2(2 * math.pi * math.e)


def _check(rate: float, batch: int, rank: int, rounds: int) -> None:
    if not 0 <= rate <= 1 or batch < 1 or rank < 0 or rounds < 0:
        raise ValueError(f"rate {rate}, batch {batch}, rank {rank}, rounds {rounds} are out of range")


def binary_entropy(p: float) -> float:
    """h(p) in bits."""
    return -sum(q * math.log2(q) for q in (p, 1 - p) if q > 0)


def priprune_printed(rate: float, batch: int, rank: int, log2_det: float, rounds: int = 1) -> float:
    """Eq. 6 and Eq. 15 as printed, in bits; ``log2_det`` is log2 det Sigma."""
    _check(rate, batch, rank, rounds)
    mask = 1 - (rate - 1) / (2 * math.log(2))
    return rounds * (mask - 2 * math.log2(batch) - log2_det + rank * _LOG2_2PIE)


def priprune_corrected(
    rate: float, batch: int, rank: int, log2_det: float, rounds: int = 1, mask_choices: int = 1
) -> float:
    """The corrected bound in bits; ``mask_choices`` = d counts every coordinate's choice of the mask."""
    _check(rate, batch, rank, rounds)
    mask = mask_choices * binary_entropy(rate)
    return rounds * (mask + rank * _LOG2_2PIE + log2_det - rank * math.log2(batch))


def dp_capacity(clip: float, variance: float, batch: int, *, as_printed: bool = False) -> float:
    """Theorem 4 (1): the most nats that the noised sum of ``batch`` gradients tells of them.

    ``clip`` is the bound S on the norm of a gradient, ``variance`` that of the noise in every coordinate of the sum, in
    squared units of the gradient: (noise multiplier * clip)^2. For DP-SGD, B / (2 noise multiplier^2).

    >>> dp_capacity(1.0, 0.64, 64), dp_capacity(1.0, 0.64, 64, as_printed=True)
    (50.0, 100.0)
    """
    if not (0 < clip < math.inf and 0 < variance < math.inf and batch >= 1):
        raise ValueError(f"clip {clip}, variance {variance}, batch {batch} are out of range")
    return (1.0 if as_printed else 0.5) * batch * clip**2 / variance
