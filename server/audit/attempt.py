"""One attack on one view, and what its result is worth as evidence: for a run's audits and for those made by hand."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from prunella.attacks import find_attack
from prunella.attacks.engine.beside import SQUARES, STATISTICS
from prunella.attacks.engine.case import noisy_images
from prunella.attacks.engine.inversion import Inversion, explained
from prunella.attacks.engine.matching import determined
from prunella.attacks.engine.others import as_near
from prunella.attacks.engine.readings import NORMALISED, READINGS, SIGNS
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.score.control import PSNR_FLOOR, rebuilt_control
from prunella.attacks.score.level import FITTED, Level, level
from prunella.core.errors import AttackError, with_article
from prunella.core.foreign import is_foreign
from prunella.core.types import Reconstruction, ServerView
from prunella.privacy import transforms
from prunella.tasks.task import Task, are_classes

TRANSFORMED = "a defense transforms images, and scores do not see what a transformed one shows: look at the pictures"
CANNOT_JUDGE = "this attack cannot judge this setting"


@dataclass(frozen=True)
class Order:
    """Which attack, with what settings, from which draws, and what else it is given (a client's ``earlier`` views)."""

    attack: str
    settings: Any
    generator: Generator
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """What an attack found, on the CPU; whether it was ``cut`` short; and whether its images explain the update, None
    where the attack has no objective that would say. Noisy copies of a client's images explain nothing."""

    rebuilt: Reconstruction
    cut: bool
    explained: bool | None


class Fit(NamedTuple):
    """How near an attack came to an update: whether its images explain it, None where the attack does not say, and its
    objective, None where that compares with no update."""

    explained: bool | None
    objective: float | None = None

    @property
    def near(self) -> bool:
        """Whether a report takes the update for explained (``FITTED``), or the attack does."""
        return bool(self.explained) or (self.objective is not None and self.objective <= FITTED)


def fit_of(line: Mapping[str, Any]) -> Fit:
    """Of a job's result."""
    return Fit(line["explained"], line["objective"])


def attempt(
    view: ServerView, task: Task, order: Order, store: ResumeStore, shadow: Callable[[], Shadow | None] = lambda: None
) -> Attempt:
    """Attack ``view`` on the device where it lies. Raises ``AttackError``, also for an answer that cannot be scored."""
    attack = find_attack(order.attack)
    ends = {} if store.deadline is None else {"deadline": store.deadline}
    more = {**order.more, **attack.taken(resume=store, stopped=store.alive, **ends)}
    if attack.takes("shadow"):
        more["shadow"] = shadow()
    found = attack.reconstruct(view, task, order.settings, order.generator, **more)
    _require_images(order.attack, found, task)
    cut = store.cut or found.cut or (attack.takes("deadline") and store.out_of_time())
    judged = found.explained
    if judged is None and isinstance(order.settings, Inversion):
        judged = explained(found, order.settings)
    labels = None if found.y is None else found.y.cpu()
    found = dataclasses.replace(found, x=found.x.detach().cpu(), y=labels)
    if noisy_images(view) or others_explain(view, task, found, judged):
        return Attempt(dataclasses.replace(found, compared=False), cut, None if judged is None else False)
    return Attempt(found, cut, judged)


def _require_images(name: str, found: Any, task: Task) -> None:
    """Raise ``AttackError`` for an answer that nobody could score. Somebody's own attack may answer with anything, and
    a client that refuses it does not say why."""
    if not isinstance(found, Reconstruction):
        raise AttackError(f"{name} answers with {with_article(found)}, not with a Reconstruction")
    if not isinstance(found.objective, int | float) or not math.isfinite(found.objective):
        raise AttackError("the objective is not finite: the attack failed")
    x, y = found.x, found.y
    if not isinstance(x, Tensor):
        raise AttackError(f"{name} answers with images of the type {type(x).__name__}, not with a tensor")
    if x.shape[1:] != task.shape or not len(x):
        takes = ", ".join(map(str, task.shape))
        raise AttackError(f"{name} answers with images of shape {tuple(x.shape)}, not of [N, {takes}]")
    if not x.is_floating_point() or not bool(torch.isfinite(x).all()):
        raise AttackError(f"{name} answers with images that are not finite floating-point numbers")
    classes = isinstance(y, Tensor) and y.dtype == torch.int64 and are_classes(y, task.classes)
    if y is not None and (not classes or y.shape != (len(x),)):
        last = task.classes - 1
        raise AttackError(f"{name} answers with labels that are not one int64 class for each image, from 0 to {last}")


def others_explain(view: ServerView, task: Task, found: Reconstruction, explained: bool | None) -> bool:
    """Whether images that are not the client's explain the update as well as those ``found``, where these do: too few
    values arrived, or nearly all of it is the same for any image. What was ``found`` by what left beside the update is
    no guess at the update."""
    if not determined(view, task, len(found.x)):
        return True
    by = found.found_by or ""
    if by.endswith(SIGNS):  # fewer bits than an image has
        return True
    otherwise = bool(explained) and (by.endswith(READINGS) or NORMALISED in by)  # not as the view says
    told = found.found_by in (SQUARES, STATISTICS) or otherwise
    return not told and Fit(explained, found.fit).near and as_near(view, task, found)


def control_fault(scores: Mapping[str, Any], fit: Fit) -> str | None:
    """Why a control proves nothing, or None. Of many images one may look like a guess by chance, and an attack whose
    guesses do not explain the update has not undone it: a control of several images must be explained, too. One image
    may be told from its look-alikes at 8 dB: it must be explained, or be at ``PSNR_FLOOR``."""
    if not rebuilt_control(scores):
        return "it does not rebuild an undefended update of it"
    if scores["images"] == 1 and not fit.explained and scores["psnr"]["worst"] < PSNR_FLOOR:
        return f"it recognises the image of an undefended update of it, but is below {PSNR_FLOOR:g} dB"
    if scores["images"] > 1 and fit.explained is False:
        near = "its images explain an undefended update of it nearly, which other images may do as well"
        return near if fit.near else "its images do not explain an undefended update of it"
    return None


def canary_outcome(
    kind: str, defense: str, scores: Mapping[str, Any], fit: Fit, reason: str | None = None
) -> tuple[str, bool | None, str | None]:
    """``outcome``, ``ok`` and ``reason`` of the audit line of a scored canary. The worst case of a sum is of several
    images, so that one of them rebuilt is not enough."""
    if kind.endswith("-defended"):
        return ("scored", *evidence(defense, fit, level({"scores": scores}), reason))
    if kind == "single" and scores["images"] <= 1:
        return "scored", None, None
    why = control_fault(scores, fit)
    return ("scored", True, None) if why is None else ("control-failed", False, f"{CANNOT_JUDGE}: {why}")


def evidence(defense: str, fit: Fit, found: Level, reason: str | None = None) -> tuple[bool | None, str | None]:
    """``ok`` and ``reason`` of the audit line of a scored update. ``ok`` is False where it cannot show that nothing
    leaks: the attack was cut short, for a ``reason``; its images do not explain an update that no defense changed; or
    they are unlike the originals, and a defense transforms images, as somebody's own may if they explain the update.
    Else None."""
    names = defense.split(",")
    if found == "baseline" and (transforms(names) or (fit.near and any(map(is_foreign, names)))):
        reason = reason or TRANSFORMED
    return (False if reason or (fit.explained is False and defense == "none") else None), reason
