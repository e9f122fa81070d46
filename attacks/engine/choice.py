"""Which of a portfolio's answers is best, said without the truth.

By how far an answer misses the update on coordinates that no descent saw (``attacks.engine.case``) and, where nothing
explains it, by the PSNR that the same attack had on public images (``gains``). docs/attacks.md says why.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prunella.attacks.engine.case import Found, Key
from prunella.attacks.engine.image_priors import total_variation
from prunella.attacks.engine.inversion import EXPLAINED

_EQUAL = 1.0001  # under noise, where nothing explains much, a thousandth is decibels: equal is within a tenth of that
AS_WELL = 3.0  # times as much may be missed as was on public images
_WELL = 0.01  # what may be missed anyway


class Gain(NamedTuple):
    """What an attack made of public images at a stage: mean PSNR, and how far it missed their updates."""

    psnr: float
    missed: float = math.inf


Gains = Mapping[Key, Gain]


def best_of(found: Sequence[Found]) -> Found:
    """The one that misses least; the smoothest of its equals."""
    least = min(each.missed for each in found)
    equal = [each for each in found if each.missed <= least * _EQUAL]
    return min(equal, key=lambda each: float(total_variation(each.answer.x)[0]))


def explains(found: Sequence[Found]) -> bool:
    """Whether the best explains the update, and far better than other images do (``attacks.engine.others``)."""
    best = best_of(found) if found else None
    return best is not None and best.missed <= EXPLAINED and best.others.beaten(best.missed)


def settled(found: Sequence[Found], doubted: bool) -> bool:
    """Whether what was found is what the client holds: it explains the update, and nothing else would (``Case``)."""
    return explains(found) and not doubted


def expected(each: Found, gains: Gains) -> float:
    """The PSNR that it had on public images, or had at another stage where it explained far more there; 0 where it was
    not asked there or explained far more at every stage. What explains more here than there is worth as much more as
    the error of an image falls with that of its update, in first order."""
    its = {key: gain for key, gain in gains.items() if key[0] == each.by
           and each.missed <= AS_WELL * gain.missed + _WELL}  # fmt: skip
    same = [its[each.key]] if each.key in its else [gain for gain in its.values() if not math.isinf(gain.missed)]
    return max((gain.psnr + better(each.missed, gain.missed) for gain in same), default=0.0)


def better(here: float, there: float) -> float:
    """How many dB an answer that misses so much here, and did there, is ahead of that: at least 0."""
    return 0.0 if math.isinf(there) else max(0.0, 10 * math.log10((there + _WELL) / (here + _WELL)))


def chosen(found: Sequence[Found], gains: Gains, doubted: bool = False) -> Found:
    """The best answer: of what is best on public images, unless one explains the update, or nearly and was not asked
    there. ``doubted``: noisy or other images explain it, too."""
    best, most = best_of(found), max(expected(each, gains) for each in found)
    unasked = best.key not in gains and best.missed <= _WELL and not doubted
    unasked = unasked and best.others.outside(_WELL, best.missed)
    if settled(found, doubted) or not most or unasked:
        return best
    return best_of([each for each in found if expected(each, gains) == most])
