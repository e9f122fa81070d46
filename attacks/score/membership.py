"""How well scores part members from outsiders, with exact tests, and what of it may be told.

Two things count (Carlini et al. 2022): the true-positive rate (TPR), the share of members above a threshold that few
outsiders pass, at false-positive rates (FPR) of 0.1 % and 1 %; and the area under the curve (AUC), the chance that a
member scores above an outsider. Chance is the FPR itself, and an AUC of 0.5.

The threshold is taken from the outsiders, so their rate above it is an estimate, and a TPR whose lower limit lies above
the nominal FPR need not be more than chance. The test looks at ranks: where members and outsiders are exchangeable, k
or more of n members score above all but f of m outsiders with the probability that k or more members are among k + f
drawn from all n + m (hypergeometric, without an assumption about the scores). Ties count as misses. The AUC's test is
Mann and Whitney's. ``found`` corrects for all tests (Bonferroni).

An FPR of 0.1 % takes 1 000 outsiders: with fewer, its TPR is not told, never 0, and the test asks who scores above
every outsider. Intervals: Clopper and Pearson's of a TPR, Hanley and McNeil's (1982) of an AUC; those of all scores
hold together at 95 %.

What is told is coarse, since a server may have sent a model that singles one candidate out: numbers of members go down
to a multiple of ``STEP``, an AUC has two digits, and where there are fewer than ``LEAST`` of either nothing is said.

>>> import torch
>>> apart = compare(torch.arange(150.0) + 60, torch.arange(200.0))
>>> apart.loose, told(apart)
(12, {'members': 150.0, 'outsiders': 200.0, 'auc': 0.67, 'loose': 10.0})
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scipy import special

from prunella.core.errors import AttackError

if TYPE_CHECKING:  # a report reads intervals, and need not wait for PyTorch
    from torch import Tensor

FALSE_POSITIVES = (0.001, 0.01)
MISS = 0.05  # the chance of a false finding, and of an interval that misses
LEAST, STEP = 20, 5
Word = Literal["found", "not-found", "unresolved"]


@dataclass(frozen=True)
class Separation:
    """``strict`` and ``loose`` members of ``members`` score above all but 0.1 % and 1 % of ``outsiders``, both rounded
    down to whole outsiders. ``p`` are the chances of as much or more without membership: of these two and the AUC."""

    members: int
    outsiders: int
    strict: int
    loose: int
    auc: float
    p: tuple[float, float, float]


def resolves(outsiders: int) -> tuple[bool, bool]:
    """Whether so many outsiders can tell an FPR of 0.1 %, and one of 1 %."""
    strict, loose = (outsiders * share >= 1 for share in FALSE_POSITIVES)
    return strict, loose


def _above(members: "Tensor", outsiders: "Tensor", false: int) -> tuple[int, float]:
    from scipy import stats  # a second of importing that a report need not wait for

    threshold = outsiders.sort(descending=True).values[false]
    hits, n, m = int((members > threshold).sum()), len(members), len(outsiders)
    return hits, float(stats.hypergeom.sf(hits - 1, n + m, n, hits + false))


def compare(members: "Tensor", outsiders: "Tensor") -> Separation:
    """How well scores [n] of members and [m] of outsiders part. Raises ``AttackError`` where there are fewer than
    ``LEAST`` of either, or one is not finite."""
    import torch
    from scipy import stats

    members, outsiders = members.double().cpu(), outsiders.double().cpu()
    if min(len(members), len(outsiders)) < LEAST or not bool(torch.isfinite(torch.cat([members, outsiders])).all()):
        raise AttackError("membership cannot be judged: scores are too few or not finite")
    (strict, p), (loose, q) = (_above(members, outsiders, int(len(outsiders) * share)) for share in FALSE_POSITIVES)
    test = stats.mannwhitneyu(members.numpy(), outsiders.numpy(), alternative="greater", method="asymptotic")
    auc, rank = float(test.statistic) / len(members) / len(outsiders), float(test.pvalue)
    if bool((members == members[0]).all()) and bool((outsiders == members[0]).all()):
        rank = 1.0  # all tied: its variance is zero
    return Separation(len(members), len(outsiders), strict, loose, auc, (p, q, rank))


def found(separations: Iterable[Separation], questions: int = 1) -> bool:
    """Whether any test says more than chance, corrected for all tests and the ``questions`` of a run."""
    chances = [p for separation in separations for p in separation.p]
    return any(p <= MISS / (len(chances) * questions) for p in chances)


def limits(hits: int, members: int, scores: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a TPR whose ``hits`` were rounded down, one of ``scores``.

    >>> [round(limit, 3) for limit in limits(0, 100, 1)], limits(100, 100, 1)[1]
    ([0.0, 0.099], 1.0)
    """
    miss, most = MISS / scores / 2, min(hits + STEP - 1, members)
    low = float(special.betaincinv(hits, members - hits + 1, miss)) if hits else 0.0
    return low, float(special.betaincinv(most + 1, members - most, 1 - miss)) if most < members else 1.0


def auc_limits(auc: float, members: int, outsiders: int, scores: int) -> tuple[float, float]:
    """Hanley and McNeil's interval of an ``auc`` that was rounded to two digits, one of ``scores``.

    >>> [round(limit, 2) for limit in auc_limits(0.6, 200, 200, 1)]
    [0.54, 0.66]
    """
    one, other, square = auc / (2 - auc), 2 * auc**2 / (1 + auc), auc**2
    spread = auc * (1 - auc) + (members - 1) * (one - square) + (outsiders - 1) * (other - square)
    wide = -float(special.ndtri(MISS / scores / 2)) * math.sqrt(max(spread, 0.0) / members / outsiders) + 0.005
    return max(0.0, auc - wide), min(1.0, auc + wide)


def exact(separation: Separation) -> dict[str, float]:
    """Its numbers; a rate that its outsiders cannot resolve is left out."""
    counts = {"strict": separation.strict, "loose": separation.loose}
    resolved = {name: float(hits) for (name, hits), can in
                zip(counts.items(), resolves(separation.outsiders), strict=True) if can}  # fmt: skip
    return {"members": separation.members, "outsiders": separation.outsiders, "auc": separation.auc, **resolved}


def told(separation: Separation) -> dict[str, float]:
    """What a client may tell in numbers."""
    known = exact(separation)
    coarse: dict[str, float] = {name: known[name] - known[name] % STEP for name in ("strict", "loose") if name in known}
    return {**{name: float(each) for name, each in known.items()}, "auc": round(separation.auc, 2), **coarse}
