"""Top-k with error feedback: per layer only the largest share of the update leaves (DGP 4.1, 6.1; Lin 2017).

P = update + e, g = the ``keep`` largest coordinates of P by absolute value, e <- P - g, per client across rounds: what
was sent plus what still waits is the sum of all updates. The paper sends k = 20 %, with error feedback (App. C.1). It
saves bytes and hides little: the largest coordinates are those that tell most, which is what DGP turns round. Readings
as in ``dgp.py``: the update of a whole local training, a layer is one named tensor ranked inside its mask, errors of
coordinates no longer in the mask are dropped. The count is rounded up, so that every layer trains.

>>> update = {"w": torch.tensor([3.0, -4.0, 1.0, 0.5, 0.0])}
>>> mask = {"w": torch.ones(5, dtype=torch.bool)}
>>> defense = top_k(TopK(keep=0.2))
>>> out, state = defense.apply(Outgoing(update, mask, mask, update), defense.init(update), PrivateGenerator(bytes(32)))
>>> out.update["w"].tolist(), state["error"]["w"].tolist()
([0.0, -4.0, 0.0, 0.0, 0.0], [3.0, 0.0, 1.0, 0.5, 0.0])
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Share
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.ranking import keep_largest, part_of
from prunella.core.trees import Tree, add, apply_mask, map_trees, subtract, zeros_like
from prunella.privacy.defense import Equal, Outgoing, Smaller, State, UpdateDefense, ignore_gradient, keep_received


@dataclass(frozen=True)
class TopK:
    """Sends the largest coordinates only."""

    keep: Smaller[Share] = 0.2  #: share of each layer that is sent
    feedback: Equal[bool] = True  #: what is not sent waits and is added to the next update

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ConfigError("top-k.keep must lie in (0, 1]")

    @property
    def idle(self) -> bool:
        return self.keep == 1


def top_mask(values: Tensor, inside: Tensor, keep: float) -> Tensor:
    """True at the ceil(keep * n) largest magnitudes of the n coordinates of ``inside``; equal ones go by index."""
    magnitude = values.abs()
    if bool(inside.all()):  # nothing pruned: gathering and scattering a large layer would cost more than ranking it
        return keep_largest(magnitude, part_of(keep, magnitude.numel(), up=True))
    ranked = magnitude[inside]
    sent = torch.zeros_like(inside)
    sent[inside] = keep_largest(ranked, part_of(keep, ranked.numel(), up=True))
    return sent


def _init(like: Tree) -> State:
    return {"error": zeros_like(like)}


def top_k(settings: TopK) -> UpdateDefense:
    def apply(outgoing: Outgoing, state: State, generator: PrivateGenerator) -> tuple[Outgoing, State]:
        owed = apply_mask(add(outgoing.update, state["error"]), outgoing.shared)
        shared = map_trees(lambda t, m: top_mask(t, m, settings.keep), owed, outgoing.shared)
        sent = apply_mask(owed, shared)
        error = subtract(owed, sent) if settings.feedback else zeros_like(owed)
        return Outgoing(sent, shared, outgoing.participates, outgoing.local), {"error": error}

    return UpdateDefense(_init, keep_received, ignore_gradient, apply)
