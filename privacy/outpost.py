"""Outpost (Wang, Hugh and Li 2023; DGP baseline): prune small gradients, add noise where Fisher information is large.

At local step i, with probability 1 / (1 + beta i), else the gradient leaves unchanged:
1. risk of a layer = min(1, variance of its weights);
2. per layer, the ``prune`` (rho = 80 %) smallest gradients by magnitude are set to zero;
3. coordinates among the ``fisher`` (phi = 40 %) of the whole model with the largest empirical Fisher information, the
   mean over the batch of single squared gradients, get N(0, (lambda risk)^2).
Settings as in DGP's appendix: lambda 0.8, phi 40, beta 0.1, rho 80.

The formulas were read from the authors' published code (`examples/gradient_leakage_attacks` of their framework Plato),
not from their paper, which is not among this project's. How weights are drawn decides how much noise there is: of
U(-1/2, 1/2), an option of that code, the noise has a deviation of 0.067; in the layers of `cnn` as drawn here, of
0.014, 0.006 and 2e-5.

Departures: that code takes for Fisher information the square of the batch's gradient, averaged over a tensor's first
axis, where this is the mean over the batch of single squared gradients; a layer with one weight has no variance and no
risk; ties at a threshold go by index. Perturbing is skipped at random by design, so a step may leave undefended: a
heuristic, no ε.

>>> round(risk(torch.tensor([1.0, 3.0])), 3), round(risk(torch.tensor([0.0, 0.2])), 3), risk(torch.tensor(2.0))
(1.0, 0.02, 0.0)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Rate, Share, Weight
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.ranking import keep_largest, keep_smallest, part_of
from prunella.core.trees import Mask, Tree, apply_mask, invert, map_trees, zeros_like
from prunella.privacy.defense import Larger, Smaller, State, Step, StepDefense
from prunella.privacy.dp_sgd import no_state


@dataclass(frozen=True)
class Outpost:
    """Prunes small gradients and adds noise where Fisher information is large."""

    noise: Larger[Weight] = 0.8  #: scale of the noise (lambda)
    #: share of the coordinates that get noise, those with the largest Fisher information (phi)
    fisher: Larger[Share] = 0.4
    decay: Smaller[Weight] = 0.1  #: how fast the probability to defend a step falls with the local steps (beta)
    prune: Larger[Rate] = 0.8  #: share of each layer's smallest gradients that is set to zero (rho)

    def __post_init__(self) -> None:
        if not (self.noise >= 0 and self.decay >= 0 and 0 < self.fisher <= 1 and 0 <= self.prune < 1):
            raise ConfigError("outpost needs noise and decay >= 0, fisher in (0, 1] and prune in [0, 1)")

    @property
    def idle(self) -> bool:
        return not self.noise and not self.prune


def risk(weights: Tensor) -> float:
    """min(1, sample variance) of a layer's weights."""
    return min(1.0, float(weights.double().var())) if weights.numel() > 1 else 0.0


def fisher_information(step: Step) -> Tree:
    """The mean over the batch of single squared gradients."""
    total, count = zeros_like(step.params), 0
    for gradients in step.per_example():
        total = map_trees(lambda t, g: t + g.square().sum(0), total, gradients)
        count += len(next(iter(gradients.values())))
    return map_trees(lambda t: t / max(1, count), total)


def most_informed(fisher: Tree, share: float) -> Mask:
    """True at the largest ``share`` of all coordinates of the model, ranked together."""
    flat = torch.cat([t.flatten() for t in fisher.values()])
    chosen = keep_largest(flat, part_of(share, flat.numel(), up=True))
    parts = torch.split(chosen, [t.numel() for t in fisher.values()])
    return {name: part.reshape(fisher[name].shape) for name, part in zip(fisher, parts, strict=True)}


def perturb(gradient: Tree, step: Step, settings: Outpost, generator: PrivateGenerator) -> Tree:
    """Prune, then noise."""
    small = map_trees(lambda g: keep_smallest(g.abs(), part_of(settings.prune, g.numel())), gradient)
    pruned = apply_mask(gradient, invert(small))
    noisy = most_informed(fisher_information(step), settings.fisher)

    def one(g: Tensor, weights: Tensor, where: Tensor) -> Tensor:
        noise = generator.normal(*g.shape).to(g)
        return g + noise * (settings.noise * risk(weights)) * where

    return map_trees(one, pruned, step.params, noisy)


def outpost(settings: Outpost) -> StepDefense:
    def apply(gradient: Tree, step: Step, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        chance = 1 / (1 + settings.decay * step.number)
        if float(generator.uniform(1)) >= chance:
            return gradient, state
        return perturb(gradient, step, settings, generator), state

    return StepDefense(no_state, apply)
