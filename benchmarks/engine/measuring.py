"""The cells of experiments: which there are, measuring them one after the other or side by side, and their points.

``engine.schedule`` says which cell is next: within a claim, everything has its first seed before anything has its
second, so that a run may end anywhere. Only finished seeds of a point count, and only where its control has been
measured, too.
"""

import itertools
import json
import math
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from prunella.benchmarks.engine.cells import Cache, Row, digest_of
from prunella.benchmarks.engine.claim import Experiment, Found, Point, Settings, Size
from prunella.benchmarks.engine.machine import device, use_device
from prunella.benchmarks.engine.schedule import Seconds, next_cell
from prunella.core.errors import ConfigError
from prunella.core.foreign import digest, is_foreign
from prunella.core.memory import keep_freed_memory

Say = Callable[[str], object]
Make = Callable[[Settings, int, Path | None], Found]
NAMING = ("model", "defenses", "attack")  # settings that may name somebody's own code
OURS = "prunella."  # rob's planted model, of which a measure's version tells


class RunLimits(NamedTuple):
    """How a run measures: so many cells side by side, none begun after ``end``, of ``time.time``, attacks on ``device``
    (``engine.machine``)."""

    jobs: int = 1
    end: float = math.inf
    device: str = "cpu"


ALONE = RunLimits()


@dataclass(frozen=True)
class Cell:
    """One measurement, and what it is called while it runs."""

    settings: Settings
    seed: int
    name: str

    def about(self, experiment: Experiment) -> Row:
        """What its digest is of; a cell that runs somebody's own code is measured again once that was edited."""
        measure = experiment.measure
        about = {"measure": measure.name, "of": measure.version, "settings": self.settings, "seed": self.seed}
        about |= {"device": device().type} if device().type != "cpu" else {}  # it rounds, and so descends, otherwise
        named = ",".join(str(self.settings.get(key, "")) for key in NAMING).split(",")
        code = {name: digest(name) for name in named if is_foreign(name) and not name.startswith(OURS)}
        return {**about, "code": code} if code else about

    def key(self, experiment: Experiment) -> str:
        """What it is about, as text, whatever the order in which a claim writes its settings."""
        return json.dumps(self.about(experiment), sort_keys=True)


def control_of(cell: Cell, experiment: Experiment) -> Cell | None:
    """The cell that must succeed before ``cell`` means anything."""
    measure = experiment.measure
    if measure.control is None:
        return None
    return Cell(measure.control_of(cell.settings), cell.seed, f"control, seed {cell.seed}")


def cells_of(experiment: Experiment, size: Size) -> list[Cell]:
    """Every cell of a size, seed by seed, each control before the first cell that needs it."""
    sweep, found = experiment.sweeps[size], dict[str, Cell]()
    for seed in sweep.seeds:
        for settings in sweep.cells:
            name = ", ".join(
                f"{key} {settings[key]}" for key in (*experiment.keys, experiment.series, "arm") if key in settings
            )
            cell = Cell(settings, seed, f"{name}, seed {seed}")
            for one in (control_of(cell, experiment), cell):
                if one is not None:
                    found.setdefault(one.key(experiment), one)
    return list(found.values())


def each_once(seeds: Sequence[int]) -> Sequence[int]:
    """The seeds. Raises ``ConfigError`` for one that is there twice: the rules take seeds for independent samples."""
    for seed, times in Counter(seeds).items():
        if times > 1:
            raise ConfigError(f"the sweep has seed {seed} twice: the same draws are no second sample")
    return seeds


class Plan:
    """The cells of some claims at a size: those that are done, and which comes next. Raises as ``each_once``."""

    def __init__(
        self,
        experiments: Mapping[str, Experiment],
        size: Size,
        cache: Cache,
        typical: Mapping[str, float] | None = None,
        data: Path | None = None,
    ) -> None:
        self.cells = dict[str, tuple[Cell, Experiment]]()
        self.claims, self.controls = dict[str, list[list[str]]](), dict[str, str]()
        self.kinds = dict[str, tuple[str, str]]()  # settings and measure, which other seeds have, too
        self.cache, self.seconds = cache, Seconds(typical)
        self.data, self.images = data, dict[str, str]()  # a digest by dataset
        self.done, self.taken, self.failed = dict[str, Row](), set[str](), dict[str, str]()
        for name, experiment in experiments.items():
            rounds = {seed: list[str]() for seed in each_once(experiment.sweeps[size].seeds)}
            for cell in cells_of(experiment, size):
                key, control = cell.key(experiment), control_of(cell, experiment)
                rounds[cell.seed].append(key)
                self.cells[key] = cell, experiment
                self.kinds[key] = json.dumps(cell.settings, sort_keys=True), experiment.measure.name
                if key not in self.done and cache.has(cell.about(experiment), self.images_of(cell)):
                    self.keep(key, {})
                self.controls |= {key: control.key(experiment)} if control is not None else {}
            self.claims[name] = list(rounds.values())

    def images_of(self, cell: Cell) -> str:
        """The digest of the local copy of a cell's dataset; "" where there is none."""
        name = str(cell.settings.get("dataset", ""))
        if name and self.data is not None and name not in self.images:
            self.images[name] = digest_of(self.data / name)
        return self.images.get(name, "")

    def keep(self, key: str, row: Row) -> None:
        """A finished cell, on disk at once; one that is there stays as it is."""
        about = json.loads(key)  # of the code it began with, which may have been edited since
        self.done[key] = self.cache.get(about, lambda: row, self.images_of(self.cells[key][0]))
        self.taken.add(key)
        self.seconds.learn(*self.kinds[key], self.done[key]["seconds"])

    def guess(self, key: str) -> float:
        """Seconds of a cell."""
        return self.seconds.of(*self.kinds[key])

    def following(self, limits: RunLimits) -> Iterator[str]:
        """The cells to begin, each chosen when it is asked for, until the time is over."""
        while time.time() < limits.end:
            due = {name: rounds for name, rounds in self.claims.items() if name not in self.failed}
            key = next_cell(due, self.controls, self.guess, self.taken)
            if key is None:
                return
            self.taken.add(key)
            yield key

    def of(self, key: str) -> list[str]:
        """The claims that a cell belongs to."""
        return [name for name, rounds in self.claims.items() if any(key in keys for keys in rounds)]

    def left(self, names: Iterable[str]) -> list[str]:
        """The cells of these claims that have not been measured."""
        keys = (key for name in names for round in self.claims[name] for key in round)
        return [key for key in dict.fromkeys(keys) if key not in self.done]

    def minutes(self, keys: Iterable[str], limits: RunLimits) -> float:
        """About how long cells take, from what others took."""
        return sum(map(self.guess, keys)) / limits.jobs / 60


def work(make: Make, settings: Settings, seed: int, data: Path | None, limits: RunLimits) -> Row | None:
    """One cell, on one thread; None where it is too late to begin."""
    if time.time() >= limits.end:
        return None
    use_device(limits.device)
    begin = time.perf_counter()
    torch.set_num_threads(1)  # sums keep their order on every machine
    keep_freed_memory()  # of larger models' descents half of the time was new pages
    found = make(settings, seed, data)
    return {"found": found, "seconds": time.perf_counter() - begin}


def end_with_parent() -> None:
    """A worker whose parent was killed does not go on alone."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with the block, whatever they are at."""
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), end_with_parent)
    try:
        yield pool
    except BaseException:
        for child in multiprocessing.active_children():
            child.kill()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def outcome(result: Callable[[], Row | None]) -> Row | Exception | None:
    """What a cell gives, or why it gives nothing. Raises where its process died."""
    try:
        return result()
    except BrokenExecutor:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a cell may raise: the caller says it, and decides
        return error


def made(plan: Plan, data: Path | None, limits: RunLimits) -> Iterator[tuple[str, Row | Exception | None]]:
    """Every cell of the plan with what it gives, as they are finished."""

    def call(key: str) -> tuple[Any, ...]:
        cell, experiment = plan.cells[key]
        return experiment.measure.make, cell.settings, cell.seed, data, limits

    todo = plan.following(limits)
    if limits.jobs == 1:
        for key in todo:
            yield key, outcome(lambda key=key: work(*call(key)))  # type: ignore[misc]
        return
    with workers(limits.jobs) as pool:
        asked = dict[Future[Row | None], str]()
        while True:
            for key in itertools.islice(todo, limits.jobs - len(asked)):
                asked[pool.submit(work, *call(key))] = key
            if not asked:
                return
            for done in wait(asked, return_when=FIRST_COMPLETED).done:
                yield asked.pop(done), outcome(done.result)


def fill(plan: Plan, data: Path | None, say: Say, limits: RunLimits = ALONE) -> None:
    """Measure what is left of a plan, as far as the time goes. Of several claims, those of which a cell fails are left
    out from there on; of one, it raises what the cell raised."""
    if plan.done:
        say(f"{len(plan.done)}/{len(plan.cells)} kept from before")
    for key, row in made(plan, data, limits):
        names, several = plan.of(key), len(plan.claims) > 1
        called = f"{', '.join(names)}: {plan.cells[key][0].name}" if several else plan.cells[key][0].name
        if isinstance(row, Exception):
            if not several:
                raise row
            why = f"{type(row).__name__}: {row}"
            plan.failed |= dict.fromkeys(names, why)
            say(f"{called} failed, and no more of {', '.join(names)} is measured now: {why}")
        elif row is not None:
            plan.keep(key, row)
            left = plan.minutes(plan.left(name for name in plan.claims if name not in plan.failed), limits)
            left = min(left, max(0.0, limits.end - time.time()) / 60)
            more = f", about {left:.1f} min left" if left else ""
            say(f"{len(plan.done)}/{len(plan.cells)} {called}: {row['seconds']:.1f} s{more}")


def vouched(cell: Cell, experiment: Experiment, done: dict[str, Row]) -> bool | None:
    """Whether a cell's control succeeded, or neither of the two is an attack; None where one has not been measured."""
    control, measure = control_of(cell, experiment), experiment.measure
    pair = [one.key(experiment) for one in (control or cell, cell)]
    if any(about not in done for about in pair):
        return None
    found = [done[about]["found"] for about in pair]
    return control is None or measure.works(found[0]) or not any(map(measure.attacks, found))


def in_order(series: Iterable[str]) -> list[str]:
    """Names of series as they are, numbers by size: a cell that was kept comes back in the order of text.

    >>> in_order(["10", "100", "20"]), in_order(["dgp", "adgp"])
    (['10', '20', '100'], ['dgp', 'adgp'])
    """
    names = list(series)
    return sorted(names, key=float) if all(name.isdecimal() for name in names) else names


def points(experiment: Experiment, size: Size, done: dict[str, Row]) -> Iterator[Point]:
    """Every series at every setting over the seeds that were measured, up to the first that was not."""
    sweep = experiment.sweeps[size]
    for settings in sweep.cells:
        every = [Cell(settings, seed, "") for seed in sweep.seeds]
        cells = list(itertools.takewhile(lambda cell: vouched(cell, experiment, done) is not None, every))
        found = [done[cell.key(experiment)]["found"] for cell in cells]
        good = all(vouched(cell, experiment, done) for cell in cells)
        fixed = tuple(str(settings[key]) for key in experiment.keys)
        for series in in_order(dict.fromkeys(name for row in found for name in row)):
            own = {cell.seed: row[series] for cell, row in zip(cells, found, strict=True) if series in row}
            rows = list(own.values())  # of fewer seeds where an attack found nothing left to do
            shared = [metric for metric in rows[0] if all(metric in row for row in rows)]
            values = {metric: tuple(row[metric] for row in rows) for metric in shared}
            yield Point((*fixed, series), values, good, tuple(own) if values else ())


def missing(experiment: Experiment, size: Size, done: dict[str, Row]) -> int:
    """How many cells have not been measured."""
    return sum(cell.key(experiment) not in done for cell in cells_of(experiment, size))
