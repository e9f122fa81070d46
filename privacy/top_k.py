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

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prunella.core.config import Share
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.ranking import keep_largest, part_of
from prunella.core.trees import Mask, Tree, add, apply_mask, map_trees, subtract, zeros_like
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
    return kept_inside(lambda m: keep_largest(m, part_of(keep, m.numel(), up=True)), values, inside)


def top_k(settings: TopK) -> UpdateDefense:
    return with_feedback(lambda t, inside: top_mask(t, inside, settings.keep), settings.feedback)


def kept_inside(keep: Callable[..., Tensor], values: Tensor, inside: Tensor, *more: Tensor) -> Tensor:
    """True where ``keep`` is, of the magnitudes of one layer's ``values`` ``inside`` the mask and what ``more`` has
    there."""
    magnitude = values.abs()
    if bool(inside.all()):  # nothing pruned: gathering and scattering a large layer would cost more than ranking it
        return keep(magnitude, *more)
    sent = torch.zeros_like(inside)
    sent[inside] = keep(magnitude[inside], *(each[inside] for each in more))
    return sent


def owed(outgoing: Outgoing, state: State) -> Tree:
    """The update with what still waits, inside the mask."""
    return apply_mask(add(outgoing.update, state["error"]), outgoing.shared)


def sent_now(outgoing: Outgoing, owed: Tree, shared: Mask, feedback: bool) -> tuple[Outgoing, Tree]:
    """What is sent of what is ``owed``, and what waits then: nothing without ``feedback``."""
    sent = apply_mask(owed, shared)
    return replace(outgoing, update=sent, shared=shared), subtract(owed, sent) if feedback else zeros_like(owed)


def with_feedback(select: Callable[[Tensor, Tensor], Tensor], feedback: bool) -> UpdateDefense:
    """Sends of every layer where ``select`` is True, of its values and mask; the rest waits as the state's error."""

    def init(like: Tree) -> State:
        return {"error": zeros_like(like)}

    def apply(outgoing: Outgoing, state: State, generator: PrivateGenerator) -> tuple[Outgoing, State]:
        whole = owed(outgoing, state)
        sent, error = sent_now(outgoing, whole, map_trees(select, whole, outgoing.shared), feedback)
        return sent, {"error": error}

    return UpdateDefense(init, keep_received, ignore_gradient, apply)
