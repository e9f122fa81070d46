"""An update that nothing explains as the view says it was made, read otherwise (``attacks.engine.readings``).

A reading is taken where it explains the update, or where images miss a tenth or less of what they miss as it was: the
slope of a loss is read off the update itself, and fits as many of its values as there are classes whatever an image is.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from prunella.attacks.engine.case import Case, Found
from prunella.attacks.engine.choice import best_of, settled
from prunella.core.errors import AttackError, DefenseError

_FAR_LESS = 0.1
Attempted = TypeVar("Attempted")


def attempted(attempt: Callable[[], list[Attempted]]) -> list[Attempted]:
    """What an attempt finds; nothing where it cannot be made or diverges."""
    try:
        return attempt()
    # The last two: a decomposition that fails, memory that is not there, a layer that keeps its weights elsewhere.
    except (AttackError, DefenseError, RuntimeError, LookupError):
        return []


def _judged(other: Case, found: list[Found]) -> list[Found]:
    """What was found as the view says, of the update as ``other`` reads it."""
    return [other.found(e.by, e.answer, None, other.missed(e.answer))._replace(stage=e.stage) for e in found]


def read_otherwise(case: Case, found: list[Found], ask: Callable[[Case], list[Found]]) -> list[Found]:
    """What was ``found``, or what explains the update where it is read otherwise than the view says (``readings``):
    some of what was found or what ``ask`` finds. ``case`` then reads it so, too."""
    if settled(found, case.doubted):
        return found
    best, least = found, _FAR_LESS * best_of(found).missed if found else 0.0
    for other in attempted(lambda: list(case.otherwise())):
        again = attempted(partial(_judged, other, found))
        again += [] if settled(again, other.doubted) or other.budget.late() else attempted(partial(ask, other))
        if again and (settled(again, other.doubted) or best_of(again).missed <= least):
            case.adopt(other)
            best, least = again, best_of(again).missed
            if settled(again, other.doubted):
                break
    return best
