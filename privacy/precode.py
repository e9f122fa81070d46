"""PRECODE (Scheliga, Maeder and Seeland, WACV 2022; DGP baseline) as an entry of a chain: it requires its model.

The defense is a variational bottleneck inside the model of both sides (``tasks.models.precode``): choose it with
``model=precode-lenet-zhu`` and name ``precode`` among the defenses, so that replies, traces and reports say that it was
there. This entry changes no gradient, since the random bottleneck already did; it refuses to start, and to go on, where
the model or a gradient has no bottleneck. No state, no settings: width and beta are the model's.

Claim: heuristic, no ε, and broken: the input of the bottleneck is its weight gradient over its bias gradient, whatever
was drawn, and from it ``attacks.representation`` rebuilds images exactly. It does nothing against an active server (DGP
Table 1: Rob, SSIM 0.9 and up), and the label can still be read from the last layer.

>>> require_bottleneck({})
Traceback (most recent call last):
core.errors.DefenseError: precode: this model has no variational bottleneck: set model=precode-cnn, ...
"""

from dataclasses import dataclass

from prunella.core.errors import DefenseError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree
from prunella.privacy.defense import GradientDefense, State

PARTS = ("bottleneck.encode.weight", "bottleneck.decode.weight")


@dataclass(frozen=True)
class Precode:
    """No settings."""


def require_bottleneck(tree: Tree) -> None:
    """Raise ``DefenseError`` unless ``tree`` has the weights of a bottleneck."""
    if not all(any(name.endswith(part) for name in tree) for part in PARTS):
        raise DefenseError(
            "precode: this model has no variational bottleneck: set model=precode-cnn, or another model whose name "
            "begins with precode-"
        )


def _init(like: Tree) -> State:
    require_bottleneck(like)
    return {}


def _apply(gradient: Tree, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
    require_bottleneck(gradient)
    return gradient, state


def precode(settings: Precode) -> GradientDefense:
    return GradientDefense(_init, _apply)
