"""DP-Fed (LTP 6, a baseline): FedAvg whose clients run DP-SGD on every coordinate, with LTP's clipping and noise.

The mechanism is ``dp_sgd.py``'s with C = 10 and sigma = 1.4, on all coordinates also where a mask prunes: those draw
noise that goes nowhere and their gradients count in the norm. The ledger gives LTP Table 3's 9.71 for its setting.

>>> DpFed().clip, DpFed().noise_multiplier
(10.0, 1.4)
"""

from dataclasses import dataclass

from prunella.core.config import Positive
from prunella.privacy.defense import Equal, Larger, StepDefense
from prunella.privacy.dp_sgd import Mechanism, dp_sgd


@dataclass(frozen=True)
class DpFed(Mechanism):
    """DP-SGD with the settings of the Fed-LTP paper."""

    clip: Equal[Positive] = 10.0
    noise_multiplier: Larger[Positive] = 1.4


def dp_fed(settings: DpFed) -> StepDefense:
    return dp_sgd(settings)
