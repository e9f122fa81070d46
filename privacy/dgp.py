"""Dual Gradient Pruning with error feedback (DGP, Algorithms 1 and 2).

In every layer the client removes the largest ``top`` (k1) and the smallest ``bottom`` (k2) coordinates by absolute
value, sends what is between them, and keeps the rest for later: P = update + e, g = DGP(P), e <- P - g. What was sent
plus what still waits is the sum of all updates. The removed coordinates stay in ``participates``: "zero now, the rest
later".

Departures from the paper. (1) It prunes gradients; here P is the update of the whole local training, equal up to the
factor -learning-rate at one step. (2) A layer is one named tensor, ranked inside the mask it comes with. (3) Percents
of small layers: k1 is rounded up, so that the largest coordinate never leaves (in a bias of ten it names the label); k2
is rounded down and leaves one coordinate to send where there are two or more, or a small layer would never train. A
one-coordinate tensor is its own top and is not sent while ``top`` > 0. (4) The error of a coordinate that the base mask
no longer holds is dropped: the weight it corrected is gone.

Errors: ``ConfigError`` for shares that leave nothing, ``DefenseError`` (from the chain) for NaN or infinite updates.

>>> import torch
>>> dual_mask(torch.tensor([9.0, -1.0, 5.0, 0.5, -3.0]), torch.ones(5, dtype=torch.bool), 0.2, 0.4).tolist()
[False, False, True, False, True]
"""

from dataclasses import dataclass

from torch import Tensor

from prunella.core.config import Rate
from prunella.core.errors import ConfigError
from prunella.core.ranking import keep_between, part_of
from prunella.privacy.defense import Equal, Larger, UpdateDefense
from prunella.privacy.top_k import kept_inside, with_feedback


@dataclass(frozen=True)
class DualPruning:
    """Dual Gradient Pruning removes the largest and the smallest coordinates.

    The paper's k1 = 5 %, k2 = 75 %. ``feedback`` off is its ablation (Fig. 4).
    """

    top: Larger[Rate] = 0.05  #: share of each layer's largest coordinates that is removed (k1)
    bottom: Larger[Rate] = 0.75  #: share of each layer's smallest coordinates that is removed (k2)
    feedback: Equal[bool] = True  #: what is not sent waits and is added to the next update

    def __post_init__(self) -> None:
        if not (0 <= self.top and 0 <= self.bottom and self.top + self.bottom < 1):
            raise ConfigError("dgp.top + dgp.bottom must stay under 1, or nothing would be sent")

    @property
    def idle(self) -> bool:
        return not self.top and not self.bottom


def removed_counts(total: int, top: float, bottom: float) -> tuple[int, int]:
    """How many coordinates of a layer of ``total`` go at the top and at the bottom.

    >>> removed_counts(100, 0.05, 0.75), removed_counts(10, 0.05, 0.75), removed_counts(2, 0.05, 0.75)
    ((5, 75), (1, 7), (1, 0))
    """
    first = part_of(top, total, up=True)
    return first, min(part_of(bottom, total), max(0, total - first - 1))


def dual_mask(values: Tensor, inside: Tensor, top: float, bottom: float) -> Tensor:
    """Algorithm 1 on one layer: True where a coordinate of ``inside`` is sent. Equal values go by index."""
    return kept_inside(lambda m: keep_between(m, *removed_counts(m.numel(), top, bottom)), values, inside)


def dgp(settings: DualPruning) -> UpdateDefense:
    return with_feedback(lambda t, inside: dual_mask(t, inside, settings.top, settings.bottom), settings.feedback)
