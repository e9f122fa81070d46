"""iDLG, Improved Deep Leakage from Gradients (Zhao, Mopuri, Bilen 2020): the label from its sign, then DLG.

Threat model: as DLG. The sign rule is exact at batch 1; larger batches use a count
(``attacks.engine.label_inference``), which the paper does not have.

Departures: those of DLG, from one start instead of three.
"""

from dataclasses import dataclass
from typing import Literal

from prunella.attacks.engine.inversion import Inversion
from prunella.core.config import Count, Weight


@dataclass(frozen=True)
class Idlg(Inversion):
    """DLG with the label read from the last layer."""

    objective: Literal["cosine", "euclidean"] = "euclidean"
    optimizer: Literal["auto", "adam", "lbfgs"] = "lbfgs"
    signed: bool = False
    tolerance: Weight = 1e-9  # L-BFGS gets there, and sigmoid networks gain 20 dB from it
    mask_aware: bool = False
    restarts: Count = 1
    labels_tried: Count = 1
