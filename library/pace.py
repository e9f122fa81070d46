"""How far an attack is and what is left of it, in a line now and then; and how long it will take, before it starts.

Times are of this machine, as it is now: an estimate is the time of a few iterations, times those that may come. A
descent that explains the update, or no longer improves, ends earlier.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from prunella.attacks.engine.inversion import Inversion
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.portfolio import PLAIN, Portfolio
from prunella.attacks.sgi import Sgi
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import ServerView
from prunella.server.audit.attempt import Order, attempt
from prunella.server.report.units import duration
from prunella.tasks.task import Task

Tell = Callable[[int, int, float], None]
EVERY = 5.0  # seconds between two lines
_SCOUT = 60  # iterations of a look at one other label (attacks.engine.inversion)
PROBE = 3  # iterations that are timed


class Pace:
    """``say`` gets a line at most every ``every`` seconds while ``tell`` is called at every iteration."""

    def __init__(
        self,
        iterations: int,
        say: Callable[[str], object],
        what: str = "",
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.iterations, self.say, self.what, self.every, self.clock = iterations, say, what, every, clock
        self._first = clock()
        self._start, self._begun, self._told = -1, self._first, self._first

    def tell(self, start: int, iteration: int, objective: float) -> None:
        """Called before iteration ``iteration`` of descent ``start``, with the lowest objective so far; of descent -1
        by an attack that is many."""
        now = self.clock()
        if start != self._start:
            self._start, self._begun = start, now
        if now - self._told >= self.every:
            self._told = now
            self.say(f"{self.what}{': ' if self.what else ''}{self.line(start, iteration, objective, now)}")

    def line(self, start: int, iteration: int, objective: float, now: float) -> str:
        if start < 0:
            return f"{duration(now - self._first)} so far"
        text = f"start {start + 1}, iteration {iteration} of {self.iterations}, objective {objective:.4g}"
        if not iteration:
            return text
        left = (now - self._begun) / iteration * max(0, self.iterations - iteration)
        return f"{text}, at most {duration(left)} left of this start"


def descents_of(view: ServerView, settings: Inversion) -> tuple[int, int]:
    """The most iterations of whole descents and of scouts that an attack with these settings runs on ``view``."""
    images = view.images_used or 1
    single = images == 1 and view.labels is None and settings.labels == "infer" and settings.labels_tried > 1
    scouts = min(_SCOUT, settings.iterations) * (settings.labels_tried - 1) if single else 0
    return settings.iterations * max(settings.restarts, 2 if single else 1), scouts


def estimate(view: ServerView, task: Task, name: str, settings: Any) -> float | None:
    """About the most seconds that an attack takes, from a trial of ``PROBE`` iterations; None where it has no
    iterations to count. The portfolio takes its passes, or its seconds where fewer; behind a defense, where what it
    learns is not in the passes, its seconds. What it learns of several images that nothing explains is not counted."""
    if isinstance(settings, Portfolio):
        each = iteration(view, task, PLAIN.attack, Sgi(max_images=settings.max_images))
        if each is None or not set(view.defenses) <= {"none"}:
            return settings.seconds
        images = min(view.images_used or 1, settings.max_images)
        passes = settings.passes + (settings.label_passes if view.labels is None and images > 1 else 0)
        return min(settings.seconds, each * passes / images)
    if not isinstance(settings, Inversion):
        return float(settings.seconds) if hasattr(settings, "seconds") else None
    each = iteration(view, task, name, settings)
    return None if each is None else each * sum(descents_of(view, settings))


def iteration(view: ServerView, task: Task, name: str, settings: Inversion) -> float | None:
    """Seconds of one iteration of one start; None where the attack does not run."""
    stamps: list[float] = []
    short = dataclasses.replace(settings, iterations=PROBE, restarts=1, labels_tried=1)
    store = ResumeStore(tell=lambda *_: stamps.append(time.perf_counter()))
    try:
        attempt(view, task, Order(name, short, stream(0, purpose="estimate")), store)
    except AttackError:
        return None  # the attack itself says why
    stamps.append(time.perf_counter())
    if len(stamps) < 2:
        return None
    return min(later - sooner for sooner, later in zip(stamps, stamps[1:], strict=False))
