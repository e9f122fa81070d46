"""DP-SGD (Abadi et al. 2016; a baseline of CHN and, on sparse models, the client of LTP): clip each example, add noise.

    g~ = ( sum_b g_b min(1, C / ||g_b||) + N(0, sigma^2 C^2) ) / B

over a Poisson-sampled batch with expected size B, which is what the sum is divided by; sigma is ``noise_multiplier``,
C is ``clip``, the norm is over all parameters. One example changes the sum by at most C, so every step is a Gaussian
mechanism with noise sigma, amplified by sampling; ``ledger.py`` composes the steps. Gradients come from
``torch.func``, in chunks. Neighbours: one example present or replaced by nothing, the number of examples public.

``noisy_mean`` is the mechanism of every defense with an epsilon; they differ in how an example is weighed and in which
coordinates they use. An example whose gradient is not finite counts as zero: an error would tell the server that there
is one, without noise and without a charge. So does one with a norm above 1.8e19, whose squares float32 does not hold.

Sums over examples are float64, and so are norms beyond ``BLOCK`` coordinates: a float32 sum of n squares can be short
by n 2^-24, and the clip bound with it (1 % was seen on 2^24 equal coordinates). A sum of n terms, in any order, has a
relative error below n u / (1 - n u) (Higham 2002, Eq. 4.4): with 256 terms at u = 2^-24, fewer than 2^32 blocks at
u = 2^-53 and the square roots, a norm is short by less than 9e-6, which ``ROUNDING`` makes good; squares below the
least number of float32 cost it 4e-23 a coordinate's root, less than ``UNDERFLOW`` in all, so that the bound holds for
any clip. No bit of one example's gradient depends on another's (``tasks.per_example``), on a processor: a GPU may take
sums in another order every time. The noise is exact to the grid of ``gaussian.add_noise``.

>>> flat_weight(torch.tensor([0.5, 4.0]), 1.0).tolist()
[1.0, 0.25]
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Positive
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, map_trees
from prunella.privacy.defense import Equal, Larger, State, Step, StepDefense
from prunella.privacy.gaussian import add_noise

BLOCK = 256  # coordinates whose squares are summed in float32
ROUNDING, UNDERFLOW = 1 + 1e-5, 1e-17  # these make a norm a little too large rather than too small
PIECE = 1 << 16  # numbers turned into float64 at a time, so that they stay in the processor's cache
Weigh = Callable[[Tensor], Tensor]  # norms [b] to factors [b] with norm * factor <= clip


@dataclass(frozen=True)
class Mechanism:
    """``clip`` bounds one example's gradient; the noise has deviation ``noise_multiplier`` * ``clip``, so that ε does
    not depend on ``clip``."""

    clip: Equal[Positive] = 1.0  #: bound on the norm of one example's gradient
    noise_multiplier: Larger[Positive] = 1.0  #: deviation of the noise in units of `clip`; it decides ε

    def __post_init__(self) -> None:
        deviation = self.clip * self.noise_multiplier  # the product of two tiny numbers is 0: no noise
        if not (self.clip > 0 and self.noise_multiplier > 0 and 0 < deviation < math.inf):
            raise ConfigError("a defense with an ε needs clip, noise-multiplier and their product above 0 and finite")


@dataclass(frozen=True)
class DpSgd(Mechanism):
    """Every example's gradient is clipped, and noise is added to their sum.

    S = 1 as CHN; the noise multiplier 1.0 is ours. CHN's sigma is a variance, and sqrt(sigma) its multiplier.
    """


def flat_weight(norms: Tensor, clip: float) -> Tensor:
    """min(1, C / ||g||)."""
    return (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)


def _row_norms(flat: Tensor) -> Tensor:
    """||g_b|| of rows [b, n], float64: float32 within ``BLOCK`` columns, float64 over blocks."""
    whole = flat.shape[1] // BLOCK * BLOCK
    kind = torch.float64 if flat.dtype == torch.float64 else torch.float32
    blocks = torch.linalg.vector_norm(flat[:, :whole].reshape(len(flat), -1, BLOCK), dim=2, dtype=kind).double()
    rest = torch.linalg.vector_norm(flat[:, whole:], dim=1, dtype=kind).double()
    norms: Tensor = torch.linalg.vector_norm(torch.cat([blocks, rest[:, None]], dim=1), dim=1)
    return norms


def example_norms(gradients: Tree) -> Tensor:
    """At least ||g_b|| over all parameters of gradients [b, *shape]: [b] float64, not finite where a part is not."""
    each = [_row_norms(t.reshape(len(t), t[0].numel())) for t in gradients.values() if len(t)]
    norms = torch.linalg.vector_norm(torch.stack(each), dim=0) if each else torch.empty(0, dtype=torch.float64)
    return norms * ROUNDING + UNDERFLOW


def _add_weighed(total: Tree, gradients: Tree, weigh: Weigh) -> None:
    """Add the weighed gradients [b, *shape] to the float64 tree ``total``; those that are not finite add nothing."""
    norms = example_norms(gradients)
    finite = torch.isfinite(norms)
    factors, bad = weigh(torch.where(finite, norms, 1.0)) * finite, (~finite).nonzero().squeeze(1)
    for name, tensor in gradients.items():
        rows, flat = tensor.reshape(len(tensor), total[name].numel()), total[name].view(-1)
        width = max(BLOCK, PIECE // max(1, len(rows)))
        for at in (slice(i, i + width) for i in range(0, rows.shape[1], width)):
            piece = rows[:, at].to(torch.float64, copy=True).index_fill_(0, bad, 0.0)  # zero times infinity is NaN
            flat[at].addmv_(piece.t(), factors)


def clipped_sum(step: Step, weigh: Weigh, inside: Mask) -> Tree:
    """The sum of weighed single gradients on the coordinates ``inside``, float64; zero for an empty batch."""
    total = {name: torch.zeros(p.shape, dtype=torch.float64, device=p.device) for name, p in step.params.items()}
    whole = {name: bool(mask.all()) for name, mask in inside.items()}
    for gradients in step.per_example():
        _add_weighed(total, {name: g if whole[name] else g * inside[name] for name, g in gradients.items()}, weigh)
    return total


def noisy_mean(step: Step, weigh: Weigh, mechanism: Mechanism, generator: PrivateGenerator, inside: Mask) -> Tree:
    """The gradient that may leave. Noise is drawn for every coordinate, so that draws do not depend on ``inside``."""
    deviation = mechanism.clip * mechanism.noise_multiplier
    noisy = apply_mask(add_noise(clipped_sum(step, weigh, inside), deviation, generator), inside)
    return map_trees(lambda noised, p: (noised / step.batch).to(p.dtype), noisy, step.params)


def no_state(like: Tree) -> State:
    return {}


def dp_sgd(settings: Mechanism) -> StepDefense:
    def apply(gradient: Tree, step: Step, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        weigh = lambda norms: flat_weight(norms, settings.clip)  # noqa: E731 - a name for an argument
        return noisy_mean(step, weigh, settings, generator, full_mask(step.params)), state

    return StepDefense(no_state, apply)
