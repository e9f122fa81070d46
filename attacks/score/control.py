"""What a positive control attacks, an undefended update, and when it succeeded.

A low leakage figure means something only where the same attack, on the same model, rebuilds what nobody protects. What
a client makes of many images in several steps is harder to rebuild than one image's gradient, so a control must be of
the same kind: ``matched_view``. ``undefended_view`` is one step of full-batch SGD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.others import missed, others_of
from prunella.attacks.engine.readings import OtherReading, readings, signs
from prunella.attacks.score.level import LEGIBLE, level
from prunella.core.errors import ConfigError
from prunella.core.trees import Tree, apply_mask, full_mask, scale, subtract
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.normalisation import Normal, normalising, usual
from prunella.tasks.task import Task
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

# dB: what papers and our stored results count as a rebuilt image, a mean pixel error of a tenth of the range. Stricter
# than what is legible, since an attack that works gets far above it.
PSNR_FLOOR = LEGIBLE["psnr"] + 2
_LEARNING_RATE = 0.1
_SIGNS = 1 / 3  # of what other images miss of an update's signs: what its own may
_TRIED, _FAR_LESS = 16, 1 / 3  # local steps up to which ways to normalise are tried; of what is missed without
_AGREES, _SAME = 0.8, 0.99  # cosines: of updates whose steps may have another order, of one and the same update


def rebuilt_control(scores: Mapping[str, Any]) -> bool:
    """Whether a control with these ``scores`` (``Leakage.to_dict``) was rebuilt, by the rule that judges clients: its
    worst image, and of a single one the label as well."""
    told = scores["images"] > 1 or scores["label_accuracy"] == 1.0
    return told and level({"scores": scores}) == "rebuilt"


def undefended_view(task: Task, params: Tree, buffers: Tree, batch: PrivateBatch) -> ServerView:
    """What a server sees of one full-batch SGD step on ``batch`` when nothing is pruned, withheld or noised."""
    _, gradient, _ = loss_and_gradient(task.build().to(batch.x.device), params, buffers, batch.x, batch.y)
    update = scale(gradient, -_LEARNING_RATE)
    size = len(batch.y)
    return ServerView(
        params, update, buffers=buffers, num_examples=size, steps=1, batch_size=size, learning_rate=_LEARNING_RATE
    )


def matched_view(task: Task, view: ServerView, batches: Sequence[PrivateBatch]) -> ServerView:
    """``view`` with what a client without a defense would have sent after one step of SGD on each of ``batches``."""
    mask, module = view.mask or full_mask(view.params), task.build().to(batches[0].x.device)
    sgd = Sgd(view.learning_rate or _LEARNING_RATE, view.momentum, view.weight_decay)
    params, buffers = apply_mask(view.params, mask), view.buffers
    velocity: Tree = {}
    for batch in batches:
        _, gradient, buffers = loss_and_gradient(module, params, buffers, batch.x, batch.y)
        params, velocity = sgd_step(params, gradient, velocity, sgd, mask)
    update = apply_mask(subtract(params, view.params), mask)
    received = buffers if view.received_buffers else {}
    return replace(view, update=update, shared=mask, received_buffers=received, importance=None, defenses=("none",))


def made_by(task: Task, view: ServerView, truth: PrivateBatch) -> bool | None:
    """Whether training on ``truth`` gives the undefended update of ``view``, by its direction: with other images, such
    as the same before they were augmented, what an attack finds of the client's is unlike them. One image may have been
    trained on under any loss, and what it sent may be a part. None where it cannot be known: behind a defense, of steps
    that nobody counted, and of a model that draws at random."""
    moved = _moved(view)
    if not set(view.defenses) <= {"none"} or not len(truth.y) or view.steps is None or not moved:
        return None
    once, again = (_trained(task, view, truth, moved) for _ in range(2))
    if float(cosine_similarity(once, again, 0)) < _SAME:
        return None
    if _alike(once, view, moved) >= (_SAME if view.steps == 1 else _AGREES):
        return True
    if len(truth.y) != view.images_used:
        return False
    # A slope that was read off the update fits part of it whatever the image is, so other images are asked, too.
    read = readings(view, target_of(view, task.build(), True, len(truth.y)), truth.x[:1])
    return any(explains_as(each, truth) for each in read)


def normalised_by(task: Task, view: ServerView, truth: PrivateBatch) -> Normal | None:
    """Of the usual ways to normalise images the one after which the ``truth`` makes the undefended update of ``view``,
    where it does far better than as it is; of those that differ by little the nearest. None of many steps, which take
    long to try, or where none does."""
    moved = _moved(view)
    if not set(view.defenses) <= {"none"} or not len(truth.y) or not moved or not 1 <= (view.steps or 0) <= _TRIED:
        return None
    plain = _alike(_trained(task, view, truth, moved), view, moved)
    found = list[tuple[float, Normal]]()
    for normal in usual(truth.x.shape[1]) if plain < _SAME else ():
        try:
            once = _trained(normalising(task, normal), view, truth, moved)
        except (ConfigError, RuntimeError, ValueError, TypeError, LookupError, AssertionError):
            continue  # somebody's model, which takes no such images
        found.append((_alike(once, view, moved), normal))
    alike, nearest = max(found, default=(0.0, None))
    return nearest if alike >= _SAME and 1 - alike <= _FAR_LESS * (1 - plain) else None


def _moved(view: ServerView) -> list[str]:
    """Names of what moved: the rest may be frozen."""
    return sorted(name for name, update in view.update.items() if bool(update.any()))


def _trained(task: Task, view: ServerView, truth: PrivateBatch, names: Sequence[str]) -> Tensor:
    """What training on ``truth`` as ``view`` says moves in these tensors, [P]."""
    size, steps = min(view.batch_size or len(truth.y), len(truth.y)), view.steps or 1
    places = [torch.arange(step * size, (step + 1) * size) % len(truth.y) for step in range(steps)]
    update = matched_view(task, view, [PrivateBatch(truth.x[at], truth.y[at]) for at in places]).update
    return torch.cat([update[name].double().flatten().cpu() for name in names])


def _alike(update: Tensor, view: ServerView, names: Sequence[str]) -> float:
    """The cosine of an ``update`` of these tensors and of the view's."""
    seen = torch.cat([view.update[name].double().flatten().cpu() for name in names])
    return float(cosine_similarity(update, seen, 0))


def explains_as(reading: OtherReading, truth: PrivateBatch) -> bool:
    """Whether the ``truth`` explains an update that is read so, as far as that can be: signs tell no sizes."""
    _, view, target = reading
    much, others = missed(target, truth.x, truth.y), others_of(view, target, truth.x, truth.y)
    return others.beaten(much) or (target.made is signs and much <= _SIGNS * others.missed)
