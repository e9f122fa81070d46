"""Answers of fewer images than were used: when they count beside an answer of all, and what becomes of both.

Of a batch one image may be told and the others not. A row of a layer may hold it alone (``attacks.extraction``), or its
loss may be so large that the update of the batch is nearly its own (``alone``). Then a guess at all images is a worse
one: it has as many unknowns for each image that says nothing.

A part is judged by the share of the update that it explains: one minus the cosine of its own update and that of the
batch, whatever its size, on coordinates that no descent saw; or, where images were confirmed one by one, by how far
these are from the coordinates that were theirs alone. It counts

- if it misses no more than ``_MOST``, so that noise, or an image that stands for several, does not, and
- if it misses no more than ``_NEARLY`` or than ``AS_WELL`` times what the best answer of all images misses, which has
  more unknowns, and
- if other images would not count as well (``attacks.engine.others``): in some networks any image has such a figure.

Its images then take the places of those of that answer to which they are nearest, so that there are as many images as
before, and no score is of one image that was looked for among many. An answer with a part in it never explains the
update, and says nothing of what it would have sent: ``compared`` is False.
"""

import math
import time
from collections.abc import Sequence

import torch

from prunella.attacks.engine.case import Case, Found, matchable
from prunella.attacks.engine.inversion import Inversion, descents, first_guess
from prunella.attacks.engine.label_inference import evidence_of
from prunella.attacks.engine.matching import of_images
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.likeness import least, squared_errors
from prunella.core.types import Reconstruction

IN_PART = "in part"
_MOST = 0.1  # a cosine of 0.9: four fifths of the update's square
_NEARLY = 0.01
_AS_WELL = 3.0  # times as much may be missed as by all images
_CONFIRMED = 1e-6  # what images that were confirmed one by one miss, at most
_STARTS = 4  # of a guess at one image
_LEAST = 20  # iterations of it


def alone(case: Case, share: float) -> list[Found]:
    """One image whose update is most like that of the batch, of the class that the last layer's gradient raises most,
    for that share of the passes and of the time that are left."""
    if case.images == 1 or len(case.fitted.plan.batches) != 1 or case.doubted or not matchable(case.setting):
        return []
    target, generator = of_images(case.fitted, 1), case.generator.clone_state()
    paid = int(share * case.budget.left() * case.passes / _STARTS)  # one image passes the model in each
    settings = Inversion(iterations=max(_LEAST, min(case.attack.iterations, paid)), max_images=case.attack.max_images)
    label = evidence_of(target, case.task, generator)[0].argmin().reshape(1)
    guesses = [first_guess(target, case.task, label, generator) for _ in range(_STARTS)]
    begin = time.monotonic()
    end = begin + share * (case.end - begin)
    store = ResumeStore(stopped=lambda: case.budget.late() or time.monotonic() >= end)
    answers = descents([target], settings, guesses, store)
    case.budget.spend(settings.iterations * _STARTS / case.passes)
    return [case.part("sgi, one image", each) for each in answers]


def part_of(parts: Sequence[Found], missed: float) -> Found | None:
    """The part that counts beside an answer of all images that misses so much: the best, of equals that of most images;
    None where none does."""
    limit = min(_MOST, max(_NEARLY, _AS_WELL * missed))
    counted = [each for each in parts if each.missed <= limit and each.others.outside(limit, each.missed)]
    return min(counted, key=lambda each: (each.missed > _CONFIRMED, -len(each.answer.x), each.missed), default=None)


def only_part(parts: Sequence[Found]) -> Found | None:
    """The part that counts where there is no answer of all images."""
    part = part_of(parts, math.inf)
    if part is None:
        return None
    answer = Reconstruction(part.answer.x, part.answer.y, part.missed, part.answer.iterations, cut=part.answer.cut)
    return Found(part.by, answer, None, part.missed, IN_PART)


def with_parts(best: Found, parts: Sequence[Found]) -> Found:
    """The images of ``best`` with those of the part that counts, if one does, in place of the nearest; ``best`` where
    they are there already, and the part alone where ``best`` is no pictures."""
    part = part_of(parts, best.missed)
    if part is None:
        return best
    whole, some = best.answer, part.answer
    if not bool(torch.isfinite(whole.x).all()):
        return only_part([part]) or best
    x = whole.x.to(some.x)
    pairs = least(squared_errors(x, some.x))
    far = max(float((x[w] - some.x[s]).square().mean()) for w, s in pairs)
    if best.missed <= part.missed and len(pairs) == len(some.x) and far <= 10 ** (-PSNR_FLOOR / 10):
        return best
    rest = sorted(set(range(len(x))) - {w for w, _ in pairs})
    y = torch.cat([some.y, whole.y[rest].to(some.y)]) if some.y is not None and whole.y is not None else None
    answer = Reconstruction(torch.cat([some.x, x[rest]]), y, part.missed, whole.iterations, cut=whole.cut)
    return Found(f"{part.by}; {best.by}", answer, None, part.missed, IN_PART)
