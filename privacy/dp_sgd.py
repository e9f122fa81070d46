"""DP-SGD (Abadi et al. 2016; a baseline of CHN and, on sparse models, the client of LTP): clip each example, add noise.

    g~ = ( sum_b g_b min(1, C / ||g_b||) + N(0, sigma^2 C^2) ) / B

over a Poisson-sampled batch with expected size B, which is what the sum is divided by; sigma is ``noise_multiplier``,
C is ``clip``, the norm is over all parameters. One example changes the sum by at most C, so every step is a Gaussian
mechanism with noise sigma, amplified by sampling; ``ledger.py`` composes the steps. Gradients come from
``torch.func``, in chunks. Neighbours: one example present or replaced by nothing, the number of examples public.

``noisy_mean`` is the mechanism of every defense with an epsilon; they differ in how an example is weighed and in which
coordinates they use. Noise comes from torch's generator, seeded with the client's secret: it is not a cryptographic
generator, and float noise has the known gaps in its low bits. Errors: ``DefenseError`` for a gradient that is not
finite, naming the tensor.

>>> flat_weight(torch.tensor([0.5, 4.0]), 1.0).tolist()
[1.0, 0.25]
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from core.config import Positive
from core.errors import ConfigError, DefenseError
from core.trees import Mask, Tree, apply_mask, full_mask, map_trees, scale, zeros_like
from privacy.defense import State, Step, StepDefense
from privacy.gaussian import add_noise

ROUNDING = 1 + 1e-6  # norms are summed up in float32: rather too large by this than too small by a rounding
Weigh = Callable[[Tensor], Tensor]  # norms [b] to factors [b] with norm * factor <= clip


@dataclass(frozen=True)
class Mechanism:
    """``clip`` bounds one example's gradient; the noise has deviation ``noise_multiplier`` * ``clip``."""

    clip: Positive = 1.0
    noise_multiplier: Positive = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.clip < float("inf") and 0 < self.noise_multiplier < float("inf")):
            raise ConfigError("a defense with an ε needs clip and noise-multiplier above 0 and finite")


@dataclass(frozen=True)
class DpSgd(Mechanism):
    """CHN's S = 1 and its largest noise but one; sigma there is a variance, its multiplier sqrt(sigma) is this one."""


def flat_weight(norms: Tensor, clip: float) -> Tensor:
    """min(1, C / ||g||)."""
    return (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)


def tensor_norms(gradients: Tree) -> Tensor:
    """||g_b|| of every tensor of gradients [b, *shape]: [tensors, b] float64, summed up in the gradients' own type."""
    each = [torch.linalg.vector_norm(t.unsqueeze(-1).flatten(1), dim=1).double() for t in gradients.values()]
    return torch.stack(each)


def example_norms(gradients: Tree) -> Tensor:
    """||g_b|| over all parameters."""
    norms: Tensor = torch.linalg.vector_norm(tensor_norms(gradients), dim=0)
    return norms


def _add_weighed(total: Tree, gradients: Tree, weigh: Weigh) -> Tree:
    each = tensor_norms(gradients)
    for name, finite in zip(gradients, torch.isfinite(each).all(dim=1).tolist(), strict=True):
        if not finite:
            raise DefenseError(f"the gradient of {name} is not finite for some example")
    factors = weigh(torch.linalg.vector_norm(each, dim=0) * ROUNDING)

    def add(t: Tensor, g: Tensor) -> Tensor:
        weighed: Tensor = factors.to(g.dtype) @ g.reshape(len(g), t.numel())
        return t + weighed.view(t.shape)

    return map_trees(add, total, gradients)


def clipped_sum(step: Step, weigh: Weigh, inside: Mask) -> Tree:
    """The sum of weighed single gradients on the coordinates ``inside``; zero for an empty batch."""
    total = zeros_like(step.params)
    whole = {name: bool(mask.all()) for name, mask in inside.items()}
    for gradients in step.per_example():
        kept = {name: g if whole[name] else g * inside[name] for name, g in gradients.items()}
        total = _add_weighed(total, kept, weigh)
    return total


def noisy_mean(step: Step, weigh: Weigh, mechanism: Mechanism, generator: Generator, inside: Mask) -> Tree:
    """The gradient that may leave. Noise is drawn for every coordinate, so that draws do not depend on ``inside``."""
    deviation = mechanism.clip * mechanism.noise_multiplier
    noisy = add_noise(clipped_sum(step, weigh, inside), deviation, generator)
    return scale(apply_mask(noisy, inside), 1 / step.batch)


def no_state(like: Tree) -> State:
    return {}


def dp_sgd(settings: Mechanism) -> StepDefense:
    def apply(gradient: Tree, step: Step, state: State, generator: Generator) -> tuple[Tree, State]:
        weigh = lambda norms: flat_weight(norms, settings.clip)  # noqa: E731 - a name for an argument
        return noisy_mean(step, weigh, settings, generator, full_mask(step.params)), state

    return StepDefense(no_state, apply)
