"""GDC, general defense capability (CHN 6.1): one figure for what a defense takes from two attacks.

IMP_MIA = (AUC0 - AUC) / AUC0,  IMP_DRA = (1 / MSE0 - 1 / MSE) / (1 / MSE0) = 1 - MSE0 / MSE,  GDC = their mean

AUC0 and MSE0 are those without a defense: of membership inference (``attacks.mia``) and of data reconstruction
(``attacks.score.leakage``, or the median over classes of a model inversion). Larger is a stronger defense; 0 none. As
AUC rarely falls below 0.5, IMP_MIA rarely passes a half. Errors: ``AttackError`` for figures that cannot be these.

>>> capability(Attacked(auc=0.8, mse=0.1), Attacked(auc=0.6, mse=0.4))
Capability(membership=0.25..., reconstruction=0.75, gdc=0.5)
"""

import math
from dataclasses import dataclass

from prunella.core.errors import AttackError


@dataclass(frozen=True)
class Attacked:
    """AUC of membership inference in [0, 1] and mean squared error of a reconstruction."""

    auc: float
    mse: float

    def __post_init__(self) -> None:
        if not (0 < self.auc <= 1 and 0 < self.mse < math.inf):
            raise AttackError("GDC needs an AUC in (0, 1] and a finite mean squared error above zero")


@dataclass(frozen=True)
class Capability:
    membership: float
    reconstruction: float
    gdc: float


def capability(undefended: Attacked, defended: Attacked) -> Capability:
    membership = (undefended.auc - defended.auc) / undefended.auc
    reconstruction = 1 - undefended.mse / defended.mse
    return Capability(membership, reconstruction, (membership + reconstruction) / 2)
