"""Largest, Random and Mix: a fixed share of the update is withheld, really or as pseudo-pruning (PRI 5.1, App. D.1).

Largest withholds the coordinates with the largest gradients, Random draws them uniformly, and Mix takes
``largest_share`` of the rate from the largest and the rest at random (the paper's 15 % + 15 %). Rates 0.1 to 0.6 in the
paper, 0.3 in its comparison. ``pseudo`` (its Insight 2): withheld weights are kept and rejoin the next local model;
off, *real* pruning: they are dropped and the next round starts from the global value.

Readings and departures. (1) The paper ranks gradients; here the movement of this round's local training is ranked,
start minus end, which is learning rate times the sum of gradients without momentum. Under pseudo-pruning the *start* of
a withheld coordinate is the stored weight, so that old drift does not decide again. (2) "top-k largest" names no scope:
the default ranks the whole tree, ``scope="layer"`` ranks each tensor. (3) Counts are exact, of the coordinates inside
the mask, rounded up, so that a positive rate withholds something. (4) Withheld coordinates leave ``participates`` too:
the server's aggregation decides whether they count as zero (as printed).

>>> inside = {"w": torch.tensor([True, True, True, False])}
>>> movement = {"w": torch.tensor([0.1, -3.0, 2.0, 9.0])}
>>> withheld_mask(movement, inside, FixedRate(rate=0.5), 1.0, PrivateGenerator(bytes(32)))["w"].tolist()
[False, True, True, False]
"""

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from prunella.core.config import Part, Rate
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.ranking import keep_largest, part_of
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, intersect, invert, subtract, where, zeros_like
from prunella.privacy.defense import Equal, Larger, Outgoing, State, UpdateDefense, ignore_gradient, keep_received


@dataclass(frozen=True)
class FixedRate:
    """Withholds a share of the coordinates: `largest` those with the largest gradients, `random` any."""

    rate: Larger[Rate] = 0.3  #: share of the kept coordinates that is withheld
    #: the client keeps withheld weights and puts them back in the next round; off drops them
    pseudo: Equal[bool] = True
    scope: Equal[Literal["global", "layer"]] = "global"  #: rank coordinates over all layers together, or within each

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ConfigError("the rate of a fixed-rate defense must lie in [0, 1)")

    @property
    def idle(self) -> bool:
        return not self.rate


@dataclass(frozen=True)
class MixedRate(FixedRate):
    """Withholds some of the largest coordinates and some at random."""

    largest_share: Equal[Part] = 0.5  #: share of the withheld coordinates that are the largest; the others are random

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.largest_share <= 1:
            raise ConfigError("mix.largest-share must lie in [0, 1]")


def choose(magnitude: Tensor, rate: float, largest_share: float, generator: PrivateGenerator) -> Tensor:
    """Of a 1-d tensor, True at the ceil(rate * n) withheld coordinates: the largest, then random ones of the rest."""
    count = part_of(rate, magnitude.numel(), up=True)
    largest = keep_largest(magnitude, part_of(largest_share, count, up=True))
    lottery = generator.uniform(*magnitude.shape).to(magnitude.device).masked_fill(largest, 2.0)
    return keep_largest(lottery, count)


def _withheld_in(movement: Tree, inside: Mask, settings: FixedRate, share: float, generator: PrivateGenerator) -> Mask:
    """The mask over all given tensors ranked together."""
    magnitude = torch.cat([movement[name][inside[name]].abs() for name in movement])
    chosen = choose(magnitude, settings.rate, share, generator)
    parts = torch.split(chosen, [int(torch.count_nonzero(inside[name])) for name in movement])
    result = {name: torch.zeros_like(inside[name]) for name in movement}
    for name, part in zip(movement, parts, strict=True):
        result[name][inside[name]] = part
    return result


def withheld_mask(movement: Tree, inside: Mask, settings: FixedRate, share: float, generator: PrivateGenerator) -> Mask:
    """True at the coordinates of ``inside`` to withhold; ``share`` is how much of them the largest make up."""
    if settings.scope == "global":
        return _withheld_in(movement, inside, settings, share, generator)
    result: Mask = {}
    for name, tensor in movement.items():
        result |= _withheld_in({name: tensor}, inside, settings, share, generator)
    return result


def _apply(
    outgoing: Outgoing, state: State, generator: PrivateGenerator, settings: FixedRate, share: float
) -> tuple[Outgoing, State]:
    movement = outgoing.update
    if settings.pseudo:
        movement = where(state["held"], subtract(outgoing.local, state["withheld"]), outgoing.update)
    withheld = withheld_mask(movement, outgoing.shared, settings, share, generator)
    shared = intersect(outgoing.shared, invert(withheld))
    participates = intersect(outgoing.participates, invert(withheld))
    after = {"withheld": apply_mask(outgoing.local, withheld), "held": withheld} if settings.pseudo else {}
    return Outgoing(apply_mask(outgoing.update, shared), shared, participates, outgoing.local), after


def _fixed(settings: FixedRate, share: float) -> UpdateDefense:
    apply = functools.partial(_apply, settings=settings, share=share)
    if not settings.pseudo:
        return UpdateDefense(lambda like: {}, keep_received, ignore_gradient, apply)

    def init(like: Tree) -> State:
        return {"withheld": zeros_like(like), "held": invert(full_mask(like))}

    def rejoin(received: Tree, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
        return where(state["held"], state["withheld"], received), state

    return UpdateDefense(init, rejoin, ignore_gradient, apply)


def largest(settings: FixedRate) -> UpdateDefense:
    return _fixed(settings, 1.0)


def random(settings: FixedRate) -> UpdateDefense:
    return _fixed(settings, 0.0)


def mix(settings: MixedRate) -> UpdateDefense:
    return _fixed(settings, settings.largest_share)
