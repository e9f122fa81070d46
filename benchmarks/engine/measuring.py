"""The cells of an experiment: which there are, measuring them one after the other or side by side, and their points.

Cells go seed by seed: everything has its first seed before anything has its second, so that a run may end anywhere.
With a time limit those of a seed that took least elsewhere go first. Only finished seeds of a point count, and only
where its control has been measured, too.
"""

import itertools
import math
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from prunella.benchmarks.engine.cells import Cache, Row
from prunella.benchmarks.engine.claim import Experiment, Found, Point, Settings, Size
from prunella.benchmarks.engine.machine import device, use_device
from prunella.core.foreign import digest, is_foreign

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
                    found.setdefault(str(one.about(experiment)), one)
    return list(found.values())


def remaining(taken: Sequence[float], left: int, limits: RunLimits = ALONE) -> str:
    """About how long ``left`` cells take, from those of this run, and no longer than there is time.

    >>> remaining([], 3), remaining([10.0, 20.0], 4), remaining([60.0], 4, RunLimits(2))
    ('', ', about 1.0 min left', ', about 2.0 min left')
    """
    if not taken or not left:
        return ""
    seconds = min(statistics.fmean(taken) * left / limits.jobs, max(0.0, limits.end - time.time()))
    return f", about {seconds / 60:.1f} min left"


def in_time(experiment: Experiment, todo: Sequence[Cell], cache: Cache) -> list[Cell]:
    """Seed by seed as they are, but within a seed first those that took least with another seed."""
    known = dict[str, float]()
    for cell in todo:
        if cache.has(cell.about(experiment)):
            known[str(cell.settings)] = cache.get(cell.about(experiment), dict)["seconds"]
    seeds = list(dict.fromkeys(cell.seed for cell in todo))
    return sorted(todo, key=lambda cell: (seeds.index(cell.seed), known.get(str(cell.settings), 0.0)))


def work(make: Make, settings: Settings, seed: int, data: Path | None, limits: RunLimits) -> Row | None:
    """One cell, on one thread; None where it is too late to begin."""
    if time.time() >= limits.end:
        return None
    use_device(limits.device)
    begin = time.perf_counter()
    torch.set_num_threads(1)  # sums keep their order on every machine
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


def made(
    experiment: Experiment, todo: Sequence[Cell], data: Path | None, limits: RunLimits
) -> Iterator[tuple[Cell, Row | None]]:
    """Every cell with what it gives, as they are finished."""
    make = experiment.measure.make
    if limits.jobs == 1:
        for cell in todo:
            yield cell, work(make, cell.settings, cell.seed, data, limits)
        return
    with workers(limits.jobs) as pool:
        asked = {pool.submit(work, make, cell.settings, cell.seed, data, limits): cell for cell in todo}
        for done in as_completed(asked):
            yield asked[done], done.result()


def measured(
    experiment: Experiment, size: Size, cache: Cache, data: Path | None, say: Say, limits: RunLimits = ALONE
) -> dict[str, Row]:
    """Every cell's ``found`` and ``seconds``, by what it is about; those that the time did not suffice for are not
    among them."""
    every = cells_of(experiment, size)
    order = every if limits.end == math.inf else in_time(experiment, every, cache)
    todo = [cell for cell in order if not cache.has(cell.about(experiment))]
    kept, taken = len(every) - len(todo), list[float]()
    if kept:
        say(f"{kept}/{len(every)} kept from before")
    for cell, row in made(experiment, todo, data, limits):
        if row is None:
            continue
        cache.get(cell.about(experiment), lambda row=row: row)  # type: ignore[misc]
        taken.append(row["seconds"])
        left = remaining(taken, len(todo) - len(taken), limits)
        say(f"{kept + len(taken)}/{len(every)} {cell.name}: {row['seconds']:.1f} s{left}")
    abouts = [cell.about(experiment) for cell in every]
    return {str(about): cache.get(about, dict) for about in abouts if cache.has(about)}


def vouched(cell: Cell, experiment: Experiment, done: dict[str, Row]) -> bool | None:
    """Whether a cell's control succeeded; None where one of the two has not been measured."""
    control = control_of(cell, experiment)
    about = str(cell.about(experiment) if control is None else control.about(experiment))
    if about not in done or str(cell.about(experiment)) not in done:
        return None
    return control is None or experiment.measure.works(done[about]["found"])


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
        found = [done[str(cell.about(experiment))]["found"] for cell in cells]
        good = all(vouched(cell, experiment, done) for cell in cells)
        fixed = tuple(str(settings[key]) for key in experiment.keys)
        for series in in_order(found[0] if found else ()):
            rows = [row[series] for row in found if series in row]  # an attack may find nothing left to do on a seed
            shared = [metric for metric in rows[0] if all(metric in row for row in rows)]
            values = {metric: tuple(row[metric] for row in rows) for metric in shared}
            yield Point((*fixed, series), values, good)


def missing(experiment: Experiment, size: Size, done: dict[str, Row]) -> int:
    """How many cells have not been measured."""
    return sum(str(cell.about(experiment)) not in done for cell in cells_of(experiment, size))
