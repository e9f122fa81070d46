"""Gaussian noise on every local gradient, without clipping (DGP 6.1, its "DP" baseline): a heuristic, no ε.

Each step's gradient gets independent N(0, ``deviation``^2) on every coordinate; the paper's sigma is 1e-2. Nothing
bounds what one example contributes, so no epsilon follows whatever the deviation: that is ``dp_sgd.py``. Coordinates
outside the pruning mask are noised too; the training step leaves them at zero.

>>> quiet = gaussian(GaussianNoise(deviation=1e-9))
>>> noisy, _ = quiet.apply({"w": torch.ones(2)}, {}, torch.Generator().manual_seed(0))
>>> bool(torch.allclose(noisy["w"], torch.ones(2)))
True
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from core.config import Positive
from core.errors import ConfigError
from core.trees import Tree, map_trees
from privacy.defense import GradientDefense, State


@dataclass(frozen=True)
class GaussianNoise:
    """``deviation`` in units of the gradient, per local step; the paper's 1e-2."""

    deviation: Positive = 0.01

    def __post_init__(self) -> None:
        if not self.deviation > 0:
            raise ConfigError("gaussian.deviation must be above 0")


def add_noise(tree: Tree, deviation: float, generator: Generator) -> Tree:
    """The tree plus independent N(0, deviation^2), drawn on the CPU so that every device sees the same numbers."""

    def one(tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        return tensor + (noise * deviation).to(tensor.device)

    return map_trees(one, tree)


def _init(like: Tree) -> State:
    return {}


def gaussian(settings: GaussianNoise) -> GradientDefense:
    def apply(gradient: Tree, state: State, generator: Generator) -> tuple[Tree, State]:
        return add_noise(gradient, settings.deviation, generator), state

    return GradientDefense(_init, apply)
