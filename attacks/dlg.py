"""DLG, Deep Leakage from Gradients (Zhu, Liu, Han 2019, Algorithm 1): Euclidean distance, L-BFGS, labels optimised too.

Threat model: an honest-but-curious server that knows the model, the update, the number of images and the learning rate,
and takes every coordinate it did not receive for a gradient of zero.

Departures: L-BFGS (300 iterations as printed) with a strong-Wolfe line search, the best of three starts, each inside
[0, 1] and clipped to it at the end, and the relative distance.
"""

from dataclasses import dataclass
from typing import Literal

from prunella.attacks.engine.inversion import Inversion
from prunella.core.config import Count, Weight


@dataclass(frozen=True)
class Dlg(Inversion):
    """Matches gradients to find images and labels together."""

    objective: Literal["cosine", "euclidean"] = "euclidean"
    optimizer: Literal["auto", "adam", "lbfgs"] = "lbfgs"
    signed: bool = False
    tolerance: Weight = 1e-9  # L-BFGS gets there, and sigmoid networks gain 20 dB from it
    mask_aware: bool = False
    labels: Literal["infer", "optimise"] = "optimise"
    restarts: Count = 3
