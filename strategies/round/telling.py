"""The round that is audited because of what leaves beside its updates: squared gradients that tell more than these.

Squared gradients of pruned weights (PruneFL, FedTiny) pass by the defenses of the update. Client and server count
alike, from the run's settings: the server attacks that round's view, and the client keeps it for the membership
question.
"""

from collections.abc import Sequence
from typing import Any

from prunella.core.config import Run
from prunella.privacy import DEFENSES
from prunella.strategies.round.client_part import ClientPart


def squares_tell(defenses: Sequence[str]) -> bool:
    """Whether squared gradients beside the update tell more than it does: one that is not as its gradients are, which
    have no noise.

    >>> squares_tell(["dgp"]), squares_tell(["none"]), squares_tell(["gaussian", "dgp"])
    (True, False, False)
    """
    known = [DEFENSES.get(name) for name in defenses if name != "none"]
    behind = [entry for entry in known if entry is None or entry.stage != "data"]
    return bool(behind) and not any(entry is not None and entry.noisy for entry in behind)


def first_telling(run: Run, part: ClientPart, settings: Any) -> int:
    """The first round in which squared gradients leave that tell more than the update does; 0 where none is, or nothing
    is audited. ``part`` and ``settings`` are the scheme's."""
    sends = part.sends_importance
    if sends is None or not run.audit_every or not squares_tell(run.defense_names):
        return 0
    return next((round for round in range(1, run.rounds + 1) if sends(settings, round)), 0)


def audited(run: Run, part: ClientPart, settings: Any, round: int) -> bool:
    """Whether a round is audited."""
    return run.audits(round) or round == first_telling(run, part, settings)
