"""IG, Inverting Gradients (Geiping, Bauermeister, Droege, Moeller 2020): cosine distance, total variation, signed Adam.

Called "GI" in PRI and "IG" in DGP. Threat model: as DLG, without need of the learning rate at one step (a cosine has no
scale); it ignores that an update is masked, so a pruned or withheld coordinate counts as a gradient of zero.

As printed: 24 000 iterations and up (DGP: 2 500, learning rate 0.1), TV weight 1e-2 to 1e-4 by model.
"""

from dataclasses import dataclass

from prunella.attacks.engine.inversion import Inversion


@dataclass(frozen=True)
class Ig(Inversion):
    """Matches the direction of the gradient."""

    mask_aware: bool = False
