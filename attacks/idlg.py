"""iDLG, Improved Deep Leakage from Gradients (Zhao, Mopuri, Bilen 2020): the label from its sign, then DLG.

Threat model: as DLG. The sign rule is exact at batch 1; larger batches use LLG's count (``attacks.labels``), which the
paper does not have.

Departures: those of DLG.
"""

from dataclasses import dataclass
from typing import Literal

from attacks.inversion import Inversion


@dataclass(frozen=True)
class Idlg(Inversion):
    objective: Literal["cosine", "euclidean"] = "euclidean"
    optimizer: Literal["adam", "lbfgs"] = "lbfgs"
    signed: bool = False
    mask_aware: bool = False
