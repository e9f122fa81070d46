"""Fed-SPA (Hu et al. 2021; an LTP baseline): DP-SGD on a random share of the coordinates, drawn anew every round.

A mask with a share ``keep`` of every layer's coordinates is drawn at a round's first step, without looking at data;
each example's gradient is restricted to it, clipped to C, and noise goes to these coordinates only. The norm and the
noise then shrink together, and the update is zero elsewhere.

Departures. The ledger claims what DP-SGD claims at this C and sigma: no amplification for the sparsification. LTP's
Table 3 (Fashion-MNIST) prints a smaller epsilon for a smaller share (9.71 at 1.0, 5.16 at 0.2): it takes a random
restriction to scale an example's norm by sqrt(keep); clipping bounds the worst case, and there it does not. The
server's adaptive optimiser ("acceleration") is the server's business, not here. As mask positions are the client's own,
the wire codec sees zeros inside the shared mask and does not save their bytes.

>>> FedSpa().keep
0.4
"""

import functools
from dataclasses import dataclass

from torch import Tensor

from prunella.core.config import Positive, Share
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.ranking import keep_largest, part_of
from prunella.core.trees import Mask, Tree, full_mask, intersect, map_trees
from prunella.privacy.defense import Equal, Larger, State, Step, StepDefense
from prunella.privacy.dp_sgd import Mechanism, flat_weight, noisy_mean


@dataclass(frozen=True)
class FedSpa(Mechanism):
    """DP-SGD on a random share of the coordinates, a new one in every round.

    ``keep`` is the compression ratio p; the paper shows 0.2 to 1.
    """

    clip: Equal[Positive] = 10.0
    noise_multiplier: Larger[Positive] = 1.4
    keep: Equal[Share] = 0.4  #: share of each layer's coordinates that a round trains

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.keep <= 1:
            raise ConfigError("fed-spa.keep must lie in (0, 1]")


def draw_mask(like: Tree, keep: float, generator: PrivateGenerator) -> Mask:
    """ceil(keep * n) coordinates of every tensor, uniformly."""

    def one(tensor: Tensor) -> Tensor:
        lottery = generator.uniform(*tensor.shape)
        return keep_largest(lottery, part_of(keep, tensor.numel(), up=True)).to(tensor.device)

    return map_trees(one, like)


def fed_spa(settings: FedSpa) -> StepDefense:
    weigh = functools.partial(flat_weight, clip=settings.clip)

    def apply(gradient: Tree, step: Step, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        drawn = draw_mask(step.params, settings.keep, generator) if step.number == 0 else state["drawn"]
        return noisy_mean(step, weigh, settings, generator, intersect(drawn, step.mask)), {"drawn": drawn}

    return StepDefense(lambda like: {"drawn": full_mask(like)}, apply)
