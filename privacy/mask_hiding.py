"""Mask hiding: what DGP, Top-k, PriPrune or a fixed rate withheld is filled, so that the support tells nothing.

Not from a paper. An attack that knows about masks (SGI) compares gradients on the coordinates that are not zero, which
undoes most of what sending zeros hides. Here every withheld coordinate inside the base mask gets a value as well: a
magnitude drawn with replacement from those the layer really sends, times ``scale``, with a random sign. The update then
has no zero to go by, and the marginal distribution of a layer's magnitudes is the same on both kinds of coordinate.

Cost: the update is dense again, so the bytes that withholding saved are spent; and noise enters the average, without
bias and, with n clients, with 1/n of its variance. Under DGP's defaults four of five coordinates are noise as large as
what is sent. On scikit-learn's digits (4 clients, 12 rounds, FedAvg, seed 0) accuracy was 0.961 with and 0.958 without,
and 4.2 times the bytes went up. A ``scale`` under 1 costs less accuracy and lets magnitudes tell the two apart. Error
feedback is untouched: what waits still waits. A coordinate a defense removed from ``participates`` (PriPrune) counts
again, with noise about the received value. It is no cure: SGI rebuilt one undefended digit at 57 dB, behind DGP at
18.5 dB (SSIM 0.94), behind DGP with mask hiding at 15.0 dB (0.91), which is still recognisable; on MNIST an inverter
learnt behind the chain reaches 29.1 dB (0.93) where SGI reached 14.8 (docs/defenses.md).

Limits: a layer of which nothing is sent stays empty; structure across coordinates (a linear layer's gradient is an
outer product) tells them apart: ``attacks.representation`` rebuilds digits of MNIST at 32 dB and more; squared
gradients inside the mask (PruneFL's importances) do not leave at all under this defense, since theirs would be zero
where the value was withheld. A heuristic, no ε.

>>> values = torch.tensor([0.0, 2.0, 0.0, 2.0])
>>> sent = torch.tensor([False, True, False, True])
>>> filled(values, sent, torch.tensor([True, True, True, True]), 1.0, PrivateGenerator(bytes(32))).abs().tolist()
[2.0, 2.0, 2.0, 2.0]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Positive
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, map_trees
from prunella.privacy.defense import Equal, Outgoing, State, UpdateDefense, ignore_gradient, keep_received


@dataclass(frozen=True)
class MaskHiding:
    """After a defense that withholds: fills what was withheld with noise, so that the mask tells nothing."""

    #: of the filling over what is sent; at any other value than 1 magnitudes tell the two apart
    scale: Equal[Positive] = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise ConfigError("mask-hiding.scale must be above 0 and finite")


def filled(values: Tensor, sent: Tensor, inside: Tensor, scale: float, generator: PrivateGenerator) -> Tensor:
    """``values`` with signed magnitudes of the sent ones wherever ``inside`` is True and ``sent`` is not."""
    magnitudes, empty = values[sent].abs(), inside & ~sent
    count = int(torch.count_nonzero(empty))
    if not magnitudes.numel() or not count:
        return values
    drawn = generator.below(magnitudes.numel(), count).to(values.device)
    signs = generator.signs(count).to(values.device)
    result = values.clone()
    result[empty] = magnitudes[drawn] * signs * scale
    return result


def _cover(sent: Tensor, inside: Tensor) -> Tensor:
    """What is shared afterwards: all that is inside, or nothing where nothing was sent."""
    return inside if bool(sent.any()) else sent


def mask_hiding(settings: MaskHiding) -> UpdateDefense:
    def apply(outgoing: Outgoing, state: State, generator: PrivateGenerator) -> tuple[Outgoing, State]:
        base: Mask = outgoing.shared if outgoing.base is None else outgoing.base
        update: Tree = {
            name: filled(values, outgoing.shared[name], base[name], settings.scale, generator)
            for name, values in outgoing.update.items()
        }
        shared = map_trees(_cover, outgoing.shared, base)
        participates = map_trees(torch.logical_or, outgoing.participates, shared)
        return Outgoing(update, shared, participates, outgoing.local, base), state

    return UpdateDefense(lambda like: {}, keep_received, ignore_gradient, apply)
