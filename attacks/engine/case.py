"""One view under attack by several candidates: what they ask of it, how they descend, and what they are judged on.

Candidates of a portfolio (``attacks.portfolio``) are judged without the truth, on a tenth of the coordinates that
arrived (``held_out``); those that descend do not see it. Errors: ``AttackError``, as the candidates raise it.
"""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Generator, nn
from torch.nn.functional import one_hot

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.inversion import Guess, Inversion, descents, first_guess, labels_to_try
from prunella.attacks.engine.label_search import Budget, search
from prunella.attacks.engine.latent import PIXELS, Latent
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, determined, of_images, target_of
from prunella.attacks.engine.objectives import split
from prunella.attacks.engine.others import OtherImages, missed, others_of
from prunella.attacks.engine.readings import OtherReading, at_once, readings
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.engine.shadow import Shadow
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.privacy import DEFENSES
from prunella.tasks.models.precode import Bottleneck
from prunella.tasks.normalisation import Normal, normalising
from prunella.tasks.task import Task

MOST = 100  # iterations of a scout
SOLVED = 1e-10  # one minus the cosine: nothing is left to find
MASK_HIDING = "mask-hiding"
ASKED, WENT_ON, POLISHED = "asked", "went on", "polished"
Key = tuple[str, str]  # who found it, and the stage
_HELD = 0.1  # share of the coordinates that arrived on which candidates are judged
_EQUATIONS = 4  # coordinates per unknown pixel from which on a tenth can be spared
_SURE = 4.0  # logit of a label that was found, where labels are still optimised
_SEARCH = "label search"
_ROOM = 0.5  # of the time that is left: what it may take
_TELLING = 0.1  # what misses more says nothing, whatever others miss
FIXED = Inversion(objective="euclidean", optimizer="lbfgs", tolerance=SOLVED)


class Limits(Protocol):
    """What a portfolio's settings say about its cost."""

    @property
    def passes(self) -> int: ...

    @property
    def label_passes(self) -> int: ...

    @property
    def iterations(self) -> int: ...

    @property
    def restarts(self) -> int: ...

    @property
    def max_images(self) -> int: ...


class ViewSetting(NamedTuple):
    """What a predicate may ask about: the view and its matching problem."""

    view: ServerView
    target: Target

    def has(self, *kinds: type[nn.Module]) -> bool:
        return any(isinstance(layer, kinds) for layer in self.target.module.modules())

    @property
    def single(self) -> bool:
        """One image, one step."""
        return self.target.plan.images == 1 and len(self.target.plan.batches) == 1

    @property
    def open_labels(self) -> bool:
        return self.view.labels is None and self.target.plan.images > 1

    @property
    def untold(self) -> bool:
        """Labels are open, or there is one that no linear layer tells."""
        return self.open_labels or (self.view.labels is None and not self.has(nn.Linear))

    @property
    def merged(self) -> bool:
        """The client used more images than are guessed."""
        return self.target.plan.images < (self.view.images_used or 0)

    @property
    def disturbed(self) -> bool:
        """A defense stands between the gradient and the update."""
        return not set(self.view.defenses) <= {"none"}

    @property
    def noisy_images(self) -> bool:
        return noisy_images(self.view)


def noisy_images(view: ServerView) -> bool:
    """Whether what explains the update is a noisy copy of what the client holds."""
    known = (DEFENSES[name] for name in view.defenses if name in DEFENSES)
    return any(entry.stage == "data" and not entry.transforms for entry in known)


def matchable(setting: ViewSetting) -> bool:
    """The whole gradient can be matched: no random draw is in it, and most of it is not made up."""
    return not setting.has(Bottleneck) and MASK_HIDING not in setting.view.defenses


class Candidate(NamedTuple):
    """An attack of the registry, when it applies, and what of its settings differs from the default."""

    attack: str
    applies: Callable[[ViewSetting], bool]
    changes: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        told = [f"{key}={value}" for key, value in self.changes.items() if key in ("tv", "labels")]
        return " ".join([self.attack, *told])

    @property
    def descends(self) -> bool:
        """Whether it is a setting of the engine, which can be scouted and can go on."""
        from prunella.attacks import find_attack
        from prunella.attacks.engine.inversion import reconstruct as engine

        return find_attack(self.attack).reconstruct is engine


class Found(NamedTuple):
    """A reconstruction, the settings with which it can go on from there, how far it misses, after which stage (asked
    once, gone on or polished), and what images that are not the client's miss."""

    by: str
    answer: Reconstruction
    settings: Inversion | None
    missed: float
    stage: str = ASKED
    others: OtherImages = OtherImages()

    @property
    def key(self) -> Key:
        return self.by, self.stage


class Case:
    """One view under attack: the problem that descents see, and the one on which their answers are judged."""

    def __init__(
        self,
        view: ServerView,
        task: Task,
        attack: Limits,
        generator: Generator,
        end: float,
        budget: Budget | None = None,
    ) -> None:
        whole = target_of(view, task.build(), True, attack.max_images)
        self.said = OtherReading("", view, whole)
        self.setting = ViewSetting(view, whole)
        # how the update is read, where that is not as the view says (``attacks.engine.readings``)
        self.how, view, whole = (at_once(view, whole) if self.undefended else None) or self.said
        self.view, self.task, self.attack, self.generator, self.end = view, task, attack, generator, end
        self.setting = ViewSetting(view, whole)
        self.ambiguous = not determined(view, task, whole.plan.images)  # other images explain the update as well
        self.fitted, self.judged = held_out(whole, task, generator)
        self.passes = sum(len(rows) for rows in whole.plan.batches)  # images that pass the model in an evaluation
        self.budget = budget or Budget(max(MOST, attack.passes // self.passes), end=end)
        self.parts: list[Found] = []  # answers of fewer images than were used (``attacks.engine.parts``)

    @property
    def images(self) -> int:
        return self.fitted.plan.images

    @property
    def undefended(self) -> bool:
        """Whether the update is that of an app without a defense, and all of it can be matched."""
        return not self.setting.disturbed and matchable(self.setting)

    @property
    def doubted(self) -> bool:
        """What explains the update need not be what the client holds."""
        return self.ambiguous or self.setting.noisy_images

    def otherwise(self) -> "Iterator[Case]":
        """The same update, which nothing defends, as it may be read where the client does not do what the view says."""
        if not self.undefended:
            return
        _, seen, whole = self.said
        others = readings(seen, whole, torch.full((1, *self.task.shape), 0.5).to(whole.flat))
        for how, view, target in [each for each in (self.said, *others) if each.how != self.how]:
            if target.slope is not None and view.labels is None:  # where one has to be named it is the likeliest
                view = dataclasses.replace(view, labels=target.slope.argmin(1))
            if target.support is not whole.support and target.support is not None:
                shared = {name: seen != 0 for name, seen in split(target.support, target.params).items()}
                view = dataclasses.replace(view, shared=shared)
            case = copy.copy(self)
            case.how, case.view, case.setting = how, view, ViewSetting(view, target)
            case.ambiguous = not determined(view, self.task, self.images)
            case.fitted, case.judged = held_out(target, self.task, self.generator)
            yield case

    def normalised(self, normal: Normal, how: str, like: "Case | None" = None) -> "Case":
        """The same update, of images that were ``normal`` before the model saw them, which the task does not tell;
        judged on the coordinates on which one ``like`` it is."""
        task, draws = normalising(self.task, normal), self.generator.clone_state()
        case = Case(self.view, task, self.attack, draws, self.end, self.budget)
        case.how = how
        if like is not None:
            for name in ("fitted", "judged"):
                kept: Target = getattr(like, name)
                setattr(case, name, dataclasses.replace(getattr(case, name), flat=kept.flat, support=kept.support))
        return case

    def adopt(self, other: "Case") -> None:
        """Read the update as ``other`` does."""
        self.how, self.view, self.task = other.how, other.view, other.task
        self.setting, self.ambiguous = other.setting, other.ambiguous
        self.fitted, self.judged = other.fitted, other.judged
        # The rest was judged otherwise, but for what was confirmed without the update as a whole.
        self.parts = [part for part in self.parts if part.by.endswith(f", {self.how}") or not part.answer.compared]

    def iterations(self, share: float, most: int) -> int:
        """How many iterations that share of the budget pays for."""
        return max(1, min(most, int(share * self.budget.left())))

    def missed(self, answer: Reconstruction) -> float:
        """One minus the cosine of what the answer would have sent and what was, where no descent compared them; of an
        answer that is no picture, infinity, which every other one is better than."""
        if answer.y is None or len(answer.x) != self.images or not bool(torch.isfinite(answer.x).all()):
            return math.inf
        return missed(self.judged, answer.x, answer.y)

    def found(self, name: str, answer: Reconstruction, settings: Inversion | None, much: float) -> Found:
        """An answer of all images, or of fewer, that misses so much, held against other images."""
        others = OtherImages()
        name = name if not self.how or name.endswith(f", {self.how}") else f"{name}, {self.how}"
        if much <= _TELLING and answer.y is not None and bool(torch.isfinite(answer.x).all()):
            whole = len(answer.x) == self.images
            target = self.judged if whole else of_images(self.judged, len(answer.x))
            others = others_of(self.view, target, answer.x, answer.y)
        return Found(name, answer, settings, much, others=others)

    def part(self, name: str, answer: Reconstruction) -> Found:
        """An answer of fewer images than were used; where these were confirmed one by one nothing else would be."""
        much = self.part_missed(answer)
        return self.found(name, answer, None, much) if answer.compared else Found(name, answer, None, much)

    def part_missed(self, answer: Reconstruction) -> float:
        """The same of fewer images than were used in one step, as if no others had been, or the answer's own objective
        where that compares with a part of the update only; of any other answer, infinity."""
        some = answer.y is not None and len(answer.x) > 0 and bool(torch.isfinite(answer.x).all())
        if not some or len(self.judged.plan.batches) != 1:
            return math.inf
        if not answer.compared:
            return answer.objective if answer.explained is not None else math.inf
        return missed(of_images(self.judged, len(answer.x)), answer.x, answer.y)  # type: ignore[arg-type]

    def solve(self, candidate: Candidate, shadow: Shadow | None = None, share: float | None = None) -> list[Found]:
        """A candidate in full, as its own settings have it, in at most ``iterations`` where it has any, and that share
        of the budget, if one is named."""
        from prunella.attacks import find_attack  # the registry names this module, too

        line = find_attack(candidate.attack)
        settings: Any = dataclasses.replace(line.settings(), **candidate.changes)
        starts, most = getattr(settings, "restarts", 1), self.attack.iterations
        if share is not None:
            most = self.iterations(share / starts, most)
        bounds = {"max_images": self.attack.max_images, "iterations": most}
        kept = {name: min(most, getattr(settings, name)) for name, most in bounds.items() if hasattr(settings, name)}
        settings = dataclasses.replace(settings, **kept)
        late, resume = self.budget.late, ResumeStore(stopped=self.budget.late)
        more = line.taken(resume=resume, shadow=shadow, deadline=self.end, stopped=late)
        begin = time.monotonic()
        answer = line.reconstruct(self.view, self.task, settings, self.generator, **more)
        if "iterations" in kept:
            self.budget.spend(answer.iterations * starts, time.monotonic() - begin)
        if len(answer.x) < self.images or not (answer.compared or self.doubted):
            self.parts.append(self.part(candidate.name, answer))
        return [self.found(candidate.name, answer, None, self.missed(answer))]

    def scout(self, candidate: Candidate, iterations: int) -> list[Found]:
        """Short descents of a candidate, from ``restarts`` starts."""
        settings = self.settings(candidate, iterations)
        labels = labels_to_try(self.view, self.fitted, self.task, settings, self.generator)[:1] * self.starts(candidate)
        guesses = [first_guess(self.fitted, self.task, each, self.generator) for each in labels]
        return self.descended(candidate.name, settings, guesses)

    def starts(self, candidate: Candidate) -> int:
        return 1 if "tv" in candidate.changes else self.attack.restarts

    def settings(self, candidate: Candidate, iterations: int) -> Inversion:
        from prunella.attacks import find_attack

        changes: dict[str, Any] = {"max_images": self.attack.max_images, **candidate.changes}
        made: Inversion = find_attack(candidate.attack).settings()
        return dataclasses.replace(made, iterations=iterations, tolerance=SOLVED, **changes)

    def descended(self, name: str, settings: Inversion, guesses: Sequence[Guess]) -> list[Found]:
        begin = time.monotonic()
        answers = descents([self.fitted], settings, guesses, ResumeStore(stopped=self.budget.late))
        self.budget.spend(settings.iterations * len(guesses), time.monotonic() - begin)
        return [
            self.found(name, answer, settings, misfit(settings, answer) if guess.soft else self.missed(answer))
            for guess, answer in zip(guesses, answers, strict=True)
        ]

    def label_search(self, latent: Latent = PIXELS, share: float = 1.0, seconds: float | None = None) -> list[Found]:
        """Labels that fit images and steps, looked for in these coordinates at that share of the cost that the settings
        fix, or in the part of the time that is left that may go into it, by the ``seconds`` of an evaluation: after the
        first round, and the best. Raises ``AttackError`` where that is next to no time."""
        paid = Budget(share * self.attack.label_passes / self.passes, self.budget.late)
        if paid.left():
            room = _ROOM * (self.end - time.monotonic()) / (self.seconds() if seconds is None else seconds)
            self.budget.short = self.budget.short or room < paid.evaluations
            paid.evaluations = min(paid.evaluations, room)
        if paid.left() < MOST:
            raise AttackError("no time for a search for labels and steps")
        found = search(self.fitted, self.task, self.generator, paid, latent)
        answers = [Reconstruction(into_box(latent.decode(at.z, at.y)), at.y, at.objective, 0) for at in found]
        stages = zip((ASKED, WENT_ON), answers, strict=True)
        return [self.found(_SEARCH, each, FIXED, self.missed(each))._replace(stage=stage) for stage, each in stages]

    def time_for(self, evaluations: float, seconds: float) -> bool:
        """Whether so many, each of so many seconds, take no more than their part of the time that is left."""
        enough = evaluations * seconds <= _ROOM * (self.end - time.monotonic())
        self.budget.short = self.budget.short or not enough
        return enough

    def seconds(self) -> float:
        """What an evaluation of the objective at all images takes."""
        guess = first_guess(self.fitted, self.task, torch.zeros(self.images, dtype=torch.long), self.generator)
        begin = time.monotonic()
        dummy, pullback = linearised(self.fitted, guess.x, guess.y.to(guess.x.device))
        pullback(dummy)[0].sum().item()  # waits for the device
        return time.monotonic() - begin

    def go_on(self, found: Found, changes: Mapping[str, Any], stage: str = WENT_ON) -> list[Found]:
        """A descent from what was found, with its labels or, where these were optimised and still are, from them."""
        if found.answer.y is None:
            return []
        settings = dataclasses.replace(found.settings or Inversion(), **changes)
        x, y, soft = found.answer.x.clone().requires_grad_(), found.answer.y, settings.labels == "optimise"
        if soft and self.setting.open_labels:
            y = (one_hot(y, self.task.classes) * _SURE).to(x).requires_grad_()
        further = self.descended(found.by, settings, [Guess(x, y, y.is_floating_point())])
        return [each._replace(stage=stage) for each in further]


def misfit(settings: Inversion, answer: Reconstruction) -> float:
    """About one minus the cosine, from the objective: the yardstick where probabilities stood for labels, which a
    reconstruction does not hold."""
    return answer.objective / (2 if settings.objective == "euclidean" else 1)


def held_out(target: Target, task: Task, generator: Generator) -> tuple[Target, Target]:
    """The problem without a tenth of the coordinates that arrived, and with these alone; twice the whole problem where
    too few arrived."""
    arrived = target.flat != 0 if target.support is None else target.support != 0
    if int(arrived.sum()) < _EQUATIONS * target.plan.images * math.prod(task.shape):
        return target, target
    held = (torch.rand(len(arrived), generator=generator).to(arrived.device) < _HELD) & arrived
    fitted, judged = ((arrived & ~held).to(target.flat), held.to(target.flat))
    if target.support is None:
        fitted = (~held).to(target.flat)
    return tuple(dataclasses.replace(target, flat=target.flat * s, support=s) for s in (fitted, judged))  # type: ignore
