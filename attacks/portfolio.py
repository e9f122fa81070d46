"""The strongest of the attacks that match, solve or read a view, within a budget of seconds.

An audit is worth what its attack is worth. ``inverter`` and ``denoise``, which learn on a shadow's updates, are not
asked yet: run them by name.

No single setting wins: signed Adam is far behind L-BFGS on smooth networks and far ahead on ReLU with batch norm, the
right weight of TV depends on the defense, and labels fixed into the wrong step cost 20 dB. So

1. ``CANDIDATES`` whose predicate holds are asked: those that solve in full, those that descend as scouts, a few short
   descents each;
2. the most promising scouts go on, with the labels that they found;
3. the best is polished, by L-BFGS where Adam found it, by Adam where L-BFGS did.

What is best is said without the truth. With a ``shadow`` the candidates first attack public images behind the same
chain, where the truth is known, and the two of the highest mean PSNR go on. Between these, and without a shadow, the
yardstick is how well a guess explains the direction of the update on a tenth of the coordinates that arrived. Scouts do
not descend on these, so that an image fitted to noise does not win; what solves in full has the whole update. TV
decides between equals. ``Reconstruction.found_by`` names what won; ``objective`` is one minus the cosine on that tenth
or, where the gradient cannot be matched, the winner's own.

Threat model: that of the candidates, all honest but curious. The answer depends on the clock, so it is not the same to
the last bit on two machines, and it cannot be resumed.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, nn
from torch.nn.functional import one_hot
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.attacks.engine.descent import optimizer_name
from prunella.attacks.engine.image_priors import total_variation
from prunella.attacks.engine.inversion import EXPLAINED, Guess, Inversion, descents, first_guess, labels_to_try
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.objectives import cosine
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.score.leakage import assign, paired, psnr
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError, DefenseError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models.precode import Bottleneck
from prunella.tasks.task import Task

_HELD = 0.1  # share of the coordinates that arrived on which candidates are judged
_EQUATIONS = 4  # coordinates per unknown pixel from which on a tenth can be spared
_SOLVED = 1e-10  # one minus the cosine: nothing is left to find
_PLAYED = 2  # public images, or batches, that candidates are tried on
_LEAST, _MOST = 20, 100  # iterations of a scout
_EQUAL = 1.0001  # under noise, where nothing explains much, a thousandth is decibels: equal is within a tenth of that
_GO_ON = 3  # scouts that go on
_SURE = 4.0  # logit of a label that was found, where labels are still optimised


@dataclass(frozen=True)
class Portfolio:
    """Every attack that fits the view, in the time given; the best is kept and named."""

    mask_aware: ClassVar[bool] = True
    seconds: Positive = 60.0  #: of all of it; an answer depends on how fast the machine is
    iterations: Count = 1000  #: most iterations of a descent
    restarts: Count = 2  #: random starts of a candidate
    max_images: Count = 16  #: images in memory at a time


class Setting(NamedTuple):
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


def matchable(setting: Setting) -> bool:
    """The whole gradient can be matched: no random draw is in it, and most of it is not made up."""
    return not setting.has(Bottleneck) and MASK_HIDING not in setting.view.defenses


class Candidate(NamedTuple):
    """An attack of the registry, when it applies, and what of its settings differs from the default."""

    attack: str
    applies: Callable[[Setting], bool]
    changes: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        told = [f"{key}={value}" for key, value in self.changes.items() if key in ("tv", "labels")]
        return " ".join([self.attack, *told])


CANDIDATES = (
    Candidate("representation", lambda s: s.has(nn.Linear) and (len(s.target.plan.batches) == 1 or not matchable(s))),
    Candidate("r-gap", lambda s: matchable(s) and s.single and s.target.support is None and not s.has(nn.ReLU)),
    Candidate("idlg", matchable, {"mask_aware": True}),
    Candidate("sgi", matchable),
    Candidate("dlg", lambda s: matchable(s) and s.open_labels, {"mask_aware": True, "labels": "optimise"}),
    Candidate("sgi", matchable, {"tv": 0.01}),
    Candidate("sgi", lambda s: matchable(s) and s.open_labels, {"labels": "optimise", "tv": 0.01}),
    Candidate("sgi", matchable, {"tv": 0.1}),
    Candidate("gradinversion", lambda s: matchable(s) and s.has(_BatchNorm), {"mask_aware": True, "tv": 0.01}),
    Candidate("sgi", matchable, {"tv": 0.001}),
    Candidate("sgi", matchable, {"tv": 0.0001}),
)
"""In the order in which they are dropped from the end where time is short. One line adds an attack."""
WEAK = (Candidate("sgi", lambda setting: True),)
MASK_HIDING = "mask-hiding"


class Found(NamedTuple):
    """A reconstruction, the settings it was found with where it can go on from there, and how far it misses."""

    by: str
    answer: Reconstruction
    settings: Inversion | None
    missed: float


class Clock:
    """Seconds that are left, and what an evaluation of the objective takes."""

    def __init__(self, seconds: float, deadline: float | None) -> None:
        self.end = min(time.monotonic() + seconds, math.inf if deadline is None else deadline)
        self.cost = 0.0
        self.factor = {"adam": 1.25, "lbfgs": 3.0}  # evaluations in an iteration: a line search may need many

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def iterations(self, share: float, most: int, optimizer: str = "adam") -> int:
        """How many iterations that share of what is left pays for."""
        return max(1, min(most, int(share * self.left() / max(self.cost, 1e-6) / self.factor[optimizer])))

    def measured(self, optimizer: str, seconds: float, iterations: int) -> None:
        """Learn from a descent what an iteration takes."""
        if iterations >= _LEAST:
            self.factor[optimizer] = max(1.0, seconds / iterations / max(self.cost, 1e-6))


class Case:
    """One view under attack: the problem that descents see, and the one on which their answers are judged."""

    def __init__(self, view: ServerView, task: Task, attack: Portfolio, generator: Generator, clock: Clock) -> None:
        self.view, self.task, self.attack, self.generator, self.clock = view, task, attack, generator, clock
        whole = target_of(view, task.build(), True, attack.max_images)
        self.setting = Setting(view, whole)
        self.fitted, self.judged = held_out(whole, task, generator)
        self.clock.cost = self.clock.cost or self._cost()

    def _cost(self) -> float:
        """Seconds of an evaluation, the second of two."""
        guess = first_guess(self.fitted, self.task, torch.zeros(self.images, dtype=torch.int64), self.generator)
        for _ in range(2):
            begin = time.perf_counter()
            dummy, pullback = linearised(self.fitted, guess.x, guess.y.to(self.fitted.flat.device))
            pullback(dummy)
        return time.perf_counter() - begin

    @property
    def images(self) -> int:
        return self.fitted.plan.images

    def missed(self, answer: Reconstruction) -> float:
        """One minus the cosine of what the answer would have sent and what was, where no descent compared them."""
        if answer.y is None or len(answer.x) != self.images:
            return math.inf
        return float(cosine(linearised(self.judged, answer.x, answer.y)[0], self.judged.flat, self.judged.support)[0])

    def solve(self, candidate: Candidate, share: float) -> list[Found]:
        """A candidate in full, in about that share of the time left."""
        from prunella.attacks import find_attack  # the registry names this module, too

        line = find_attack(candidate.attack)
        settings: Any = dataclasses.replace(line.settings(), **candidate.changes)
        most = min(self.attack.iterations, getattr(settings, "iterations", 1))
        begin, end, tried = time.monotonic(), time.monotonic() + share * self.clock.left(), min(_MOST, most)
        found: list[Found] = []
        while True:  # what an iteration takes is not known before: each turn is as long as the rest of the share allows
            if hasattr(settings, "iterations"):
                settings = dataclasses.replace(settings, iterations=tried)
            more = {"resume": ResumeStore(deadline=end)} if line.resumable else {}
            answer = line.reconstruct(self.view, self.task, settings, self.generator, **more)
            found.append(Found(candidate.name, answer, None, self.missed(answer)))
            spent, left = time.monotonic() - begin, end - time.monotonic()
            longer = min(most, int(tried * left / max(spent, 1e-9)))
            if found[-1].missed <= _SOLVED or longer < 2 * tried:
                return found[-1:] if not matchable(self.setting) else found
            begin, tried = time.monotonic(), longer

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
        return dataclasses.replace(made, iterations=iterations, tolerance=_SOLVED, **changes)

    def optimizer(self, settings: Inversion) -> str:
        return optimizer_name(settings.optimizer, self.fitted.module)

    def descended(self, name: str, settings: Inversion, guesses: Sequence[Guess]) -> list[Found]:
        begin = time.monotonic()
        answers = descents(self.fitted, settings, guesses, ResumeStore(deadline=self.clock.end))
        ran = sum(answer.iterations for answer in answers)  # until the best was found: more may have been run
        self.clock.measured(self.optimizer(settings), time.monotonic() - begin, ran)
        return [
            Found(name, answer, settings, misfit(settings, answer) if guess.soft else self.missed(answer))
            for guess, answer in zip(guesses, answers, strict=True)
        ]

    def go_on(self, found: Found, changes: Mapping[str, Any], name: str | None = None) -> list[Found]:
        """A descent from what was found, with its labels or, where these were optimised and still are, from them."""
        if found.answer.y is None:
            return []
        settings = dataclasses.replace(found.settings or Inversion(), **changes)
        x, y, soft = found.answer.x.clone().requires_grad_(), found.answer.y, settings.labels == "optimise"
        if soft and self.setting.open_labels:
            y = (one_hot(y, self.task.classes) * _SURE).to(x).requires_grad_()
        return self.descended(name or found.by, settings, [Guess(x, y, y.is_floating_point())])


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


def attempted(attempt: Callable[[], list[Found]]) -> list[Found]:
    """What an attempt finds; nothing where it cannot be made or diverges."""
    try:
        return attempt()
    except (AttackError, DefenseError, RuntimeError):  # the last: a decomposition that fails, memory that is not there
        return []


def best_of(found: Sequence[Found]) -> Found:
    """The one that misses least; the smoothest of its equals."""
    least = min(each.missed for each in found)
    equal = [each for each in found if each.missed <= least * _EQUAL]
    return min(equal, key=lambda each: float(total_variation(each.answer.x)[0]))


def descends(candidate: Candidate) -> bool:
    """Whether the candidate is a setting of the engine, which can be scouted and can go on."""
    from prunella.attacks import find_attack
    from prunella.attacks.engine.inversion import reconstruct as engine

    return find_attack(candidate.attack).reconstruct is engine


def explore(case: Case, candidates: Sequence[Candidate], share: float) -> list[Found]:
    """Every candidate once, in about that share of the time left, until one explains the update. Those that are solved
    have half of it, those that are scouted the rest."""
    found: list[Found] = []
    whole, scouts = [c for c in candidates if not descends(c)], [c for c in candidates if descends(c)]
    end = case.clock.left() * (1 - share)
    for place, candidate in enumerate(whole):
        part = (case.clock.left() - end) / max(case.clock.left(), 1e-9) / (2 if scouts else 1)
        part /= len(whole) - place
        found += attempted(lambda c=candidate, n=part: case.solve(c, n))  # type: ignore[misc]
        if found and found[-1].missed <= _SOLVED:
            return found
    paid = case.clock.iterations((case.clock.left() - end) / max(case.clock.left(), 1e-9), 10**9)
    scouts = scouts[: max(1, paid // _LEAST - case.attack.restarts)]
    for place, candidate in enumerate(scouts):
        part = max(0.0, case.clock.left() - end) / max(case.clock.left(), 1e-9) / (len(scouts) - place)
        starts, how = case.starts(candidate), case.optimizer(case.settings(candidate, 1))
        most = case.clock.iterations(part / starts, _MOST, how)
        found += attempted(lambda c=candidate, n=most: case.scout(c, n))  # type: ignore[misc]
    return found


def ranked(case: Case, candidates: Sequence[Candidate], shadow: Shadow) -> list[str]:
    """The names of the candidates, the one that rebuilds public images best first."""
    gained: dict[str, list[float]] = {}
    number = case.view.num_examples or case.images
    for draw in range(_PLAYED):
        rows = torch.randperm(len(shadow.public), generator=case.generator)[:number]
        shown = shadow.public.take(rows)
        try:
            view = shadow.send(shown, draw)
            played = Case(view, case.task, case.attack, case.generator, case.clock)
        except (AttackError, DefenseError):
            continue
        best: dict[str, float] = {}
        for each in explore(played, candidates, 0.2 / (_PLAYED - draw)):
            pairs = assign(shown.x, each.answer.x.cpu())
            gain = psnr(*paired(shown.x, each.answer.x.cpu(), pairs))
            best[each.by] = max(best.get(each.by, 0.0), sum(gain) / len(gain))
        for name, value in best.items():
            gained.setdefault(name, []).append(value)
    return sorted(gained, key=lambda name: -sum(gained[name]) / _PLAYED)


def finish(case: Case, found: list[Found]) -> Found:
    """The most promising go on, and the best is polished."""
    attack, clock = case.attack, case.clock
    leading: dict[str, Found] = {}  # the best of each, best first
    for each in sorted((each for each in found if each.settings is not None), key=lambda each: each.missed):
        leading.setdefault(each.by, each)
    for each in list(leading.values())[:_GO_ON]:
        most = clock.iterations(0.4, attack.iterations, case.optimizer(each.settings))  # type: ignore[arg-type]
        found += attempted(lambda e=each, n=most: case.go_on(e, {"iterations": n}))  # type: ignore[misc]
        if best_of(found).missed <= _SOLVED:
            return best_of(found)
    best = best_of(found)
    if not matchable(case.setting):
        return best
    by_adam = best.settings is not None and case.optimizer(best.settings) == "adam"
    changes: dict[str, Any] = {"optimizer": "lbfgs", "objective": "euclidean", "tolerance": _SOLVED}
    if not by_adam:
        changes = {"optimizer": "adam", "objective": "cosine", "signed": True, "learning_rate": 0.01}
    if best.settings is not None and best.settings.labels == "optimise":  # now they are fixed, into the steps found
        most = clock.iterations(0.4, attack.iterations, case.optimizer(best.settings))
        fixed = {"iterations": most, "labels": "infer"}
        best = best_of([best, *attempted(lambda: case.go_on(best, fixed))])
    changes["iterations"] = clock.iterations(0.9, attack.iterations, changes["optimizer"])
    return best_of([best, *attempted(lambda: case.go_on(best, changes))])


def reconstruct(
    view: ServerView,
    task: Task,
    attack: Portfolio,
    generator: Generator,
    shadow: Shadow | None = None,
    deadline: float | None = None,
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that the best candidate found. ``deadline``: by ``time.monotonic``.

    Raises ``AttackError`` where no candidate finds anything.
    """
    case = Case(view, task, attack, generator, Clock(attack.seconds, deadline))
    candidates = [each for each in CANDIDATES if each.applies(case.setting)]
    if shadow is not None:
        order = ranked(case, candidates, shadow)[:2]
        candidates = [each for each in candidates if each.name in order] or candidates
    found = explore(case, candidates, 0.4 if matchable(case.setting) else 0.8)
    if not found:  # the layer cannot be read: better a weak attack than none
        found = explore(case, WEAK if candidates else [], 0.8)
    if not found:
        raise AttackError("no attack of the portfolio fits this view")
    best = best_of(found) if best_of(found).missed <= _SOLVED else finish(case, found)
    if not matchable(case.setting):
        return dataclasses.replace(best.answer, found_by=best.by)
    return dataclasses.replace(best.answer, objective=best.missed, found_by=best.by, explained=best.missed <= EXPLAINED)
