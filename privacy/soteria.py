"""Soteria (Sun et al. 2021; DGP baseline): prune what the representation layer's gradient tells about the input.

The last linear layer's weight gradient is an outer product with its input r, the representation, so the attacker reads
r from it. A unit i is the more useful to the defender the more x must move when r_i does not: units with a small
||dr_i/dx|| / |r_i|, summed over the batch, are taken out, ``rate`` of all F of them, by setting their columns of the
gradient [out, F] to zero. The paper of DGP prunes 80 % ("80"); the authors' code 1 %. Every other gradient leaves
unchanged: an attack on an earlier layer (Rob) reads on undisturbed.

Departure: where |r_i| is zero the ratio is taken over 1e-12; a unit that depends on nothing is pruned first. Its
cost is that of the norms (``tasks.sensitivity``). So a server that saturates units has the share spent on those, and
the others left: ``rate`` bounds nothing against weights that it chose. With a mask on the update it is a heuristic, no
ε.

>>> r, norms = torch.tensor([[1.0, 1.0, 2.0, 1.0]]), torch.tensor([[4.0, 1.0, 1.0, 3.0]])
>>> pruned_units(r, norms, 0.5).tolist()
[False, True, True, False]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Rate
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import PrivateGenerator
from prunella.core.ranking import keep_smallest, part_of
from prunella.core.trees import Tree
from prunella.privacy.defense import Larger, State, Step, StepDefense
from prunella.privacy.dp_sgd import no_state


@dataclass(frozen=True)
class Soteria:
    """Prunes the last layer's gradient where it tells most about the image."""

    rate: Larger[Rate] = 0.8  #: share of the representation's units that is pruned

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ConfigError("soteria.rate must lie in [0, 1)")

    @property
    def idle(self) -> bool:
        return not self.rate


def pruned_units(features: Tensor, norms: Tensor, rate: float) -> Tensor:
    """True at the floor(rate * F) units with the smallest sum over the batch of ||dr/dx|| / |r|; both [B, F]."""
    score = (norms.double() / features.double().abs().clamp(min=1e-12)).sum(0)
    if not bool(torch.isfinite(score).all()):
        raise DefenseError(f"soteria: a representation of shape {tuple(features.shape[1:])} is not finite")
    return keep_smallest(score, part_of(rate, score.numel()))


def soteria(settings: Soteria) -> StepDefense:
    def apply(gradient: Tree, step: Step, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        name, features, norms = step.representation()
        if name not in gradient or gradient[name].dim() != 2 or gradient[name].shape[1] != features.shape[1]:
            raise DefenseError(f"soteria: {name} is not the weight of a layer that reads the representation")
        pruned = pruned_units(features, norms, settings.rate)
        return {**gradient, name: gradient[name].masked_fill(pruned[None], 0.0)}, state

    return StepDefense(no_state, apply)
