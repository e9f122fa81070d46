"""DP-PSAC, per-sample adaptive clipping (Xia et al. 2023; CHN's second baseline): small gradients keep their direction.

Every example is weighed by C / (||g|| + r / (||g|| + r)) instead of min(1, C / ||g||): nearly normalised to C where it
is large, while one near zero is not blown up (plain normalisation would, and small gradients then point the wrong way).
The weighed norm stays under C, so noise and accounting are those of ``dp_sgd.py``. The authors' r = 0.1.

>>> import torch
>>> norms = torch.tensor([0.0, 0.9, 99.9])
>>> [round(norm, 4) for norm in (psac_weight(norms, 1.0, 0.1) * norms).tolist()]
[0.0, 0.9, 1.0]
"""

import functools
from dataclasses import dataclass

from torch import Tensor

from prunella.core.config import Positive
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree, full_mask
from prunella.privacy.defense import Equal, State, Step, StepDefense
from prunella.privacy.dp_sgd import Mechanism, no_state, noisy_mean


@dataclass(frozen=True)
class DpPsac(Mechanism):
    """DP-SGD with adaptive clipping, which keeps small gradients small."""

    stability: Equal[Positive] = 0.1  #: r of the clipping function, which sets where a gradient counts as small

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stability > 0:
            raise ConfigError("dp-psac.stability must be above 0")


def psac_weight(norms: Tensor, clip: float, stability: float) -> Tensor:
    """C / (||g|| + r / (||g|| + r))."""
    return clip / (norms + stability / (norms + stability))


def dp_psac(settings: DpPsac) -> StepDefense:
    weigh = functools.partial(psac_weight, clip=settings.clip, stability=settings.stability)

    def apply(gradient: Tree, step: Step, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        return noisy_mean(step, weigh, settings, generator, full_mask(step.params)), state

    return StepDefense(no_state, apply)
