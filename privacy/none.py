"""No defense: the whole update inside the base mask leaves. An entry of its own, never a fallback.

>>> import torch
>>> update = {"w": torch.tensor([1.0, 0.0])}
>>> mask = {"w": torch.tensor([True, False])}
>>> out, _ = none(NoDefense()).apply(Outgoing(update, mask, mask, update), {}, PrivateGenerator(bytes(32)))
>>> out.update["w"].tolist()
[1.0, 0.0]
"""

from dataclasses import dataclass

from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree
from prunella.privacy.defense import Outgoing, State, UpdateDefense, ignore_gradient, keep_received


@dataclass(frozen=True)
class NoDefense:
    """No settings."""


def _init(like: Tree) -> State:
    return {}


def _apply(outgoing: Outgoing, state: State, generator: PrivateGenerator) -> tuple[Outgoing, State]:
    return outgoing, state


def none(settings: NoDefense) -> UpdateDefense:
    return UpdateDefense(_init, keep_received, ignore_gradient, _apply)
