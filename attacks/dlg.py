"""DLG, Deep Leakage from Gradients (Zhu, Liu, Han 2019, Algorithm 1): Euclidean distance, L-BFGS, labels optimised too.

Threat model: an honest-but-curious server that knows the model, the update, the number of images and the learning rate,
and takes every coordinate it did not receive for a gradient of zero.

Departures: at most 300 iterations of L-BFGS as printed, here with a strong-Wolfe line search (without one it diverges
from about every second start), from a guess inside [0, 1], clipped to it at the end, and the relative distance.
"""

from dataclasses import dataclass
from typing import Literal

from attacks.inversion import Inversion
from core.config import Count


@dataclass(frozen=True)
class Dlg(Inversion):
    objective: Literal["cosine", "euclidean"] = "euclidean"
    optimizer: Literal["adam", "lbfgs"] = "lbfgs"
    signed: bool = False
    mask_aware: bool = False
    labels: Literal["infer", "optimise"] = "optimise"
    restarts: Count = 3
