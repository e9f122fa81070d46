"""What a scheme has clients do beside plain training, for the client to look up by the scheme's name.

A client's own conditions are decided on this (``client.policy``): masks that clients make, squared gradients they send
and scores of examples they hold out all tell of their examples beside the update.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prunella.core.config import Run
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree
from prunella.privacy.chain import ChainState
from prunella.strategies.round.local import LocalResult, Procedure, Received
from prunella.strategies.round.plan import Planner
from prunella.tasks.data import Examples
from prunella.tasks.task import Task


@dataclass(frozen=True)
class FirstMask:
    """How a client makes the run's first mask. ``steps`` is the most local steps it takes: they are charged before the
    first is taken."""

    steps: int
    make: Callable[[Procedure, Received, Iterator[Examples], ChainState, PrivateGenerator], Mask]


class ClientPart(NamedTuple):
    """The default is plain training.

    ``plan`` moves a client's mask in its round. ``first_mask``, of the run, the scheme's settings and the task, answers
    ``train.initial``. ``sends_importance``, of the settings and the round, says in which rounds squared gradients may
    be asked for, and ``report``, of the settings, the round, the squares, the mask and the prunable names in the
    model's order, what of them leaves. ``scores``, of the settings, is on how many batches clients score candidates for
    the run's first mask (``train.select``). ``undone``, of the settings, the weights training began from, the update
    and the prunable names, is the update as an attack on plain SGD takes it. ``validates``: clients hold examples out
    for the scheme.
    """

    plan: Planner | None = None
    first_mask: Callable[[Run, Any, Task], FirstMask] | None = None
    sends_importance: Callable[[Any, int], bool] | None = None
    validates: bool = False
    report: Callable[[Any, int, Tree, Mask, Sequence[str]], Tree] | None = None
    scores: Callable[[Any], int] | None = None
    undone: Callable[[Any, Tree, Tree, frozenset[str]], Tree] | None = None

    def told(self, settings: Any, round: int, result: LocalResult, layers: Sequence[str]) -> Tree:
        """The squared gradients that may leave after a round, by the scheme's own measure."""
        if self.report is None:
            return result.importance
        return self.report(settings, round, result.importance, result.base, layers)
