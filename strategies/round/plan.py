"""What a scheme may change in a client's round: where it starts, under which mask, and the mask half-way.

A scheme whose clients prune (PRI Table 1, "who prunes") gives a function from ``RoundContext`` to ``LocalPlan``. The
function is pure: what it wants to remember is in ``LocalPlan.keep``, which the client writes to its own disk and finds
in ``RoundContext.kept`` in the next round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prunella.core.config import Run
from prunella.core.trees import Mask, Tree
from prunella.pruning.channels import Group
from prunella.pruning.powerprop import Power

Readjust = Callable[[Tree, Tree, Mask], tuple[Tree, Mask]]


@dataclass(frozen=True)
class RoundContext:
    """What a client knows when it plans a round.

    ``params`` and ``mask`` are as received; ``settings`` is the scheme's section; ``fresh`` makes the weights the run
    started from, ``accuracy`` is the share of held-out examples that weights label right, and ``groups`` finds the
    channels that are one, for a scheme of whole filters.
    """

    run: Run
    settings: Any
    round: int
    params: Tree
    mask: Mask
    prunable: frozenset[str]
    kept: dict[str, Tree]
    fresh: Callable[[], Tree]
    accuracy: Callable[[Tree], float]
    groups: Callable[[], Sequence[Group]] = tuple


@dataclass(frozen=True)
class LocalPlan:
    """The default changes nothing.

    ``mask`` must lie inside the received one. After ``before`` local steps ``readjust`` maps weights, mean squared
    gradients and mask to weights and mask for the remaining steps. With ``power`` steps are taken by its hidden
    weights.
    """

    start: Tree | None = None
    mask: Mask | None = None
    readjust: Readjust | None = None
    before: int = 0
    power: Power | None = None
    keep: dict[str, Tree] = field(default_factory=dict)


Planner = Callable[[RoundContext], LocalPlan]
