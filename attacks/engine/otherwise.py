"""An update that nothing explains as the view says it was made, read otherwise (``attacks.engine.readings``).

A reading is taken where it explains the update, or where images miss a third or less as much of it as they do as it
was, each time beside what other images miss (``attacks.engine.others``): the slope of a loss is read off the update
itself, and fits as many of its values as there are classes whatever an image is, and the signs of a gradient may be
nearly those of any image. The last reading is of an image that was normalised before the model saw it, which the task
does not tell: it is sought in a range that holds all usual ones, and taken where it explains the update in one of them.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from prunella.attacks.engine.case import Case, Found
from prunella.attacks.engine.choice import best_of, settled
from prunella.attacks.engine.others import missed_by_others
from prunella.attacks.engine.readings import NORMALISED, SCALES
from prunella.core.errors import AttackError, ConfigError, DefenseError
from prunella.tasks.normalisation import WIDE, formula, pixels

_FAR_LESS = 1 / 3
_RARE = 0.3  # of the share of another reading: scales of their own may be read of every single image
Attempted = TypeVar("Attempted")
Ask = Callable[[Case, float], list[Found]]


def attempted(attempt: Callable[[], list[Attempted]]) -> list[Attempted]:
    """What an attempt finds; nothing where it cannot be made or diverges."""
    try:
        return attempt()
    # The last two: a decomposition that fails, memory that is not there, a layer that keeps its weights elsewhere.
    except (AttackError, ConfigError, DefenseError, RuntimeError, LookupError):
        return []


def _judged(case: Case, other: Case, found: list[Found]) -> list[Found]:
    """What was found of the update as ``case`` reads it, as ``other`` does."""

    def again(each: Found) -> Found:
        name = each.by.removesuffix(f", {case.how}")
        return other.found(name, each.answer, None, other.missed(each.answer))._replace(stage=each.stage)

    return [again(each) for each in found]


def _beside_others(case: Case, found: list[Found]) -> float:
    """How much the best misses, over what other images do; infinity where none is a picture, or these cannot be
    asked."""
    x, y, missed = (best := best_of(found)).answer.x, best.answer.y, best.missed
    if y is None or math.isinf(missed):
        return math.inf
    others = attempted(lambda: [missed_by_others(case.judged, x, y)])
    return missed / max(others[0], 1e-30) if others else math.inf


def in_range(case: Case, wide: Case, found: list[Found]) -> tuple[Case, list[Found]]:
    """What was ``found`` of an image in a ``WIDE`` range, as pixels of a usual range in which it explains the update,
    and the case of it."""
    best, (mean, std) = best_of(found), (values[0] for values in WIDE)
    for x, normal in pixels((best.answer.x - mean) / std):
        seen = case.normalised(normal, f"{NORMALISED} as {formula(normal)}", wide)
        answer = dataclasses.replace(best.answer, x=x)
        again = [seen.found(best.by.removesuffix(f", {wide.how}"), answer, None, seen.missed(answer))]
        if settled(again, seen.doubted):
            return seen, again
    return wide, found


def read_otherwise(case: Case, found: list[Found], ask: Ask) -> list[Found]:
    """What was ``found``, or what explains the update where it is read otherwise than the view says (``readings``):
    some of what was found or what ``ask`` finds. ``case`` then reads it so, too."""
    if settled(found, case.doubted):
        return found
    best, least = found, _FAR_LESS * _beside_others(case, found) if found else 0.0
    taken: Case | None = None
    single = case.undefended and case.setting.single
    wide = attempted(lambda: [case.normalised(WIDE, NORMALISED)]) if single and not case.how else []
    for other in [*attempted(lambda: list(case.otherwise())), *wide]:
        again = attempted(partial(_judged, case, other, found))
        if not settled(again, other.doubted) and not other.budget.late():
            rare = single and other.how.endswith((SCALES, NORMALISED))
            again += attempted(partial(ask, other, _RARE if rare else 1.0))
        done, much = settled(again, other.doubted), _beside_others(other, again) if again else math.inf
        # A wider range alone may miss less of what is merely hard.
        if done or (other.how != NORMALISED and much <= least and not math.isinf(much)):
            taken, best, least = other, again, much
            if done:
                break
    if taken is not None and taken.how == NORMALISED:
        taken, best = in_range(case, taken, best)
    if taken is not None:
        case.adopt(taken)
    return best
