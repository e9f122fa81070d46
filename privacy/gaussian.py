"""Gaussian noise on every local gradient, without clipping (DGP 6.1, its "DP" baseline): a heuristic, no ε.

Each step's gradient gets independent N(0, ``deviation``^2) on every coordinate; the paper's sigma is 1e-2. Nothing
bounds what one example contributes, so no epsilon follows whatever the deviation: that is ``dp_sgd.py``. Coordinates
outside the pruning mask are noised too; the training step leaves them at zero.

>>> quiet = gaussian(GaussianNoise(deviation=1e-9))
>>> noisy, _ = quiet.apply({"w": torch.ones(2)}, {}, PrivateGenerator(bytes(32)))
>>> bool(torch.allclose(noisy["w"], torch.ones(2)))
True
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Positive
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree, size
from prunella.privacy.defense import GradientDefense, Larger, State

GRID_BITS = 20


@dataclass(frozen=True)
class GaussianNoise:
    """Noise without clipping, and so without an ε."""

    deviation: Larger[Positive] = 0.01  #: of the noise, in units of the gradient, at every local step

    def __post_init__(self) -> None:
        if not self.deviation > 0:
            raise ConfigError("gaussian.deviation must be above 0")


def grid_of(deviation: float) -> float:
    """The distance between two values that noise of this deviation can bring about: a power of two.

    >>> grid_of(1.0) == 2.0**-GRID_BITS, grid_of(1.5) == grid_of(1.0), grid_of(2.0) / grid_of(1.0)
    (True, True, 2.0)
    """
    return math.ldexp(0.5, math.frexp(deviation)[1] - GRID_BITS)


def to_grid(noised: Tensor, deviation: Tensor | float) -> Tensor:
    """``noised``, float64, at the nearest multiples of ``grid_of`` each coordinate's deviation; changed in place."""
    if isinstance(deviation, Tensor):
        exponent = torch.frexp(deviation.to(noised)).exponent.double()
        grid: Tensor | float = torch.pow(2.0, exponent - 1 - GRID_BITS)
    else:
        grid = grid_of(deviation)
    return noised.div_(grid).round_().mul_(grid)


def add_noise(tree: Tree, deviation: float, generator: PrivateGenerator) -> Tree:
    """The tree plus independent N(0, deviation^2), rounded to the multiples of ``grid_of(deviation)``.

    Rounding is post-processing, so that what holds of real-valued noise holds of the result, and every input leads to
    values on the same grid. Unrounded, the low bits of a floating-point sum tell what the noise was added to: Mironov,
    "On significance of the least significant bits for differential privacy" (CCS 2012); Holohan and Braghin, "Secure
    random sampling in differential privacy" (2021). A step holds 2^28 and more of the values that
    ``PrivateGenerator.normal`` can draw, in the tails as well. 20 bits below the deviation are no loss: what float32
    keeps of a value of 16 deviations. Drawn on the CPU, so that every device sees the same numbers.
    """
    drawn = torch.split(generator.normal(size(tree)), [t.numel() for t in tree.values()])

    def one(tensor: Tensor, noise: Tensor) -> Tensor:
        noisy = noise.view(tensor.shape).to(tensor.device).mul_(deviation).add_(tensor)
        return to_grid(noisy, deviation).to(tensor.dtype)

    return {name: one(tensor, noise) for (name, tensor), noise in zip(tree.items(), drawn, strict=True)}


def _init(like: Tree) -> State:
    return {}


def gaussian(settings: GaussianNoise) -> GradientDefense:
    def apply(gradient: Tree, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        return add_noise(gradient, settings.deviation, generator), state

    return GradientDefense(_init, apply)
