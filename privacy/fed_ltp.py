"""Fed-LTP's client (LTP Alg. 2, lines 11 to 18): DP-SGD on the retained coordinates of a lottery ticket.

    g~ = ( sum_b clip_C(g_b * mask) + N(0, sigma^2 C^2) * mask ) / B,      learning rate eta 0.99^t

with C = 10, sigma = 1.4. The mask is the ticket the server found on public data, so that leaving out pruned
coordinates before clipping costs nothing: the norm is smaller, less is clipped, and no noise goes where nothing lives.

The other settings are the run's: ``local-steps`` tau = 300, ``batch-size`` 15, ``learning-rate`` 0.01, ``momentum``
0.5. The decay is applied to the gradient, which is the same as decaying the learning rate as momentum starts anew in
every round, but for a ``weight-decay``, which keeps the undecayed rate; t counts the rounds this client took part in,
where the paper counts all (``decay`` 1 switches it off).

Departures. (1) Line 14 clips and noises the mean gradient of a batch; one example then moves the clipped mean by up to
2 C whatever the batch size, and the noise multiplier would be sigma / 2. Here each example is clipped, as its
experiments' accounting (sigma = 1.4 at rate B / N) requires. (2) A pruning mask from private gradients (PruneFL) is
post-processing of what already carries the noise, or another client's.

>>> FedLtp().clip, FedLtp().noise_multiplier, FedLtp().decay
(10.0, 1.4, 0.99)
"""

import functools
from dataclasses import dataclass

import torch

from prunella.core.config import Positive, Share
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree, scale
from prunella.privacy.defense import Equal, Larger, State, Step, StepDefense
from prunella.privacy.dp_sgd import Mechanism, flat_weight, noisy_mean


@dataclass(frozen=True)
class FedLtp(Mechanism):
    """DP-SGD on the weights that a lottery ticket keeps."""

    clip: Equal[Positive] = 10.0
    noise_multiplier: Larger[Positive] = 1.4
    decay: Equal[Share] = 0.99  #: factor on the learning rate for every round the client took part in

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay <= 1:
            raise ConfigError("fed-ltp-client.decay must lie in (0, 1]")


def _init(like: Tree) -> State:
    return {"clock": {"rounds": torch.zeros((), dtype=torch.float64)}}


def fed_ltp(settings: FedLtp) -> StepDefense:
    weigh = functools.partial(flat_weight, clip=settings.clip)

    def apply(gradient: Tree, step: Step, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        rounds = state["clock"]["rounds"] + (1 if step.number == 0 else 0)
        noisy = noisy_mean(step, weigh, settings, generator, step.mask)
        return scale(noisy, settings.decay ** (float(rounds) - 1)), {"clock": {"rounds": rounds}}

    return StepDefense(_init, apply)
