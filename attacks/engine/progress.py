"""How far a descent has come: the best answer so far, and when to stop.

A descent stops when its objective is at most ``tolerance`` or has not improved by a thousandth for ``patience``.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction

IMPROVEMENT = 1e-3
Snapshot = Callable[[float, int], Reconstruction]


class StoppingRule(Protocol):
    """What the settings of an attack say about stopping."""

    @property
    def patience(self) -> int: ...

    @property
    def tolerance(self) -> float: ...


class Progress:
    """The lowest objective so far and the guess that had it.

    ``snapshot`` copies the present guess as a ``Reconstruction``, given its objective and the iteration. ``step`` is
    what one look without an improvement counts against ``patience``.
    """

    def __init__(self, rule: StoppingRule, snapshot: Snapshot, step: int = 1) -> None:
        self.rule, self.snapshot, self.step = rule, snapshot, step
        self.best = Reconstruction(torch.empty(0), None, float("inf"), 0)
        self.stale, self.mark = 0, float("inf")

    def stop(self, objective: float, iteration: int) -> bool:
        """Note the objective of the present guess. True when going on is not worth it.

        Raises ``AttackError`` where the objective is not finite.
        """
        if not objective < float("inf"):
            raise AttackError("the objective is not finite: the attack diverged")
        improved = objective < self.mark * (1 - IMPROVEMENT)
        self.stale = 0 if improved else self.stale + self.step
        self.mark = min(self.mark, objective) if improved else self.mark
        if objective < self.best.objective:
            self.best = self.snapshot(objective, iteration)
        return objective <= self.rule.tolerance or self.stale >= self.rule.patience
