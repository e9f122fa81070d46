"""Measures a claim of the papers again, or a table of docs/: one engine for all of ``benchmarks.papers``.

Finished cells are kept in ``--cache`` under a digest of measure, settings and seed: a killed run continues where it
stopped, and claims share cells. The positive control of an attack is a cell, too, and runs before the cells that depend
on it. Where one fails, nothing is compared: the verdict is "not judged". The engine writes a page, a plot and a JSON
file into ``--out``, and rewrites ``README.md`` there, the list of all claims.

    prunella reproduce --list
    prunella reproduce D3 [--size small] [--data /data] [--out docs/results]
    prunella reproduce defenses --out results
    prunella reproduce my_module:CLAIM
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prunella.benchmarks.engine.cells import Cache, Row
from prunella.benchmarks.engine.claim import SIZES, Claim, Experiment, Point, Settings, Size, judged
from prunella.benchmarks.engine.machine import machine
from prunella.benchmarks.engine.results import Measured, listing, write
from prunella.benchmarks.engine.results_index import write_index, write_pages
from prunella.benchmarks.papers import CLAIMS, TABLES
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.foreign import digest, is_foreign, lookup

VERSION = 1
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
USAGE, INTERRUPTED = 2, 130
EPILOG = "Exit code: 0, 2 for what you can fix, 130 after Ctrl-C. A run that was stopped goes on where it was."
Say = Callable[[str], object]
NAMING = ("model", "defenses", "attack")  # settings that may name somebody's own code
OURS = "prunella."  # rob's planted model, of which a measure's version tells


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


def remaining(taken: Sequence[float], left: int) -> str:
    """About how long ``left`` cells take, from those of this run.

    >>> remaining([], 3), remaining([10.0, 20.0], 4)
    ('', ', about 1.0 min left')
    """
    return f", about {statistics.fmean(taken) * left / 60:.1f} min left" if taken and left else ""


def measured(experiment: Experiment, size: Size, cache: Cache, data: Path | None, say: Say) -> dict[str, Row]:
    """Every cell's ``found`` and ``seconds``, by what it is about."""
    todo, done, taken = cells_of(experiment, size), {}, []
    for number, cell in enumerate(todo, 1):
        about = cell.about(experiment)
        new = not cache.has(about)

        def make(cell: Cell = cell) -> Row:
            begin = time.perf_counter()
            torch.set_num_threads(1)  # sums keep their order on every machine
            found = experiment.measure.make(cell.settings, cell.seed, data)
            return {"found": found, "seconds": time.perf_counter() - begin}

        row = cache.get(about, make)
        done[str(about)] = row
        taken += [row["seconds"]] if new else []
        left = sum(not cache.has(later.about(experiment)) for later in todo[number:])
        how = f"{row['seconds']:.1f} s" if new else "kept from before"
        say(f"{number}/{len(todo)} {cell.name}: {how}{remaining(taken, left)}")
    return done


def failed_controls(experiment: Experiment, size: Size, done: dict[str, Row]) -> set[str]:
    """The cells whose control did not succeed."""
    failed = set()
    for cell in cells_of(experiment, size):
        control = control_of(cell, experiment)
        if control is not None and not experiment.measure.works(done[str(control.about(experiment))]["found"]):
            failed.add(str(cell.about(experiment)))
    return failed


def in_order(series: Iterable[str]) -> list[str]:
    """Names of series as they are, numbers by size: a cell that was kept comes back in the order of text.

    >>> in_order(["10", "100", "20"]), in_order(["dgp", "adgp"])
    (['10', '20', '100'], ['dgp', 'adgp'])
    """
    names = list(series)
    return sorted(names, key=float) if all(name.isdecimal() for name in names) else names


def points(experiment: Experiment, size: Size, done: dict[str, Row]) -> Iterator[Point]:
    """Every series at every setting over the seeds."""
    sweep, failed = experiment.sweeps[size], failed_controls(experiment, size, done)
    for settings in sweep.cells:
        abouts = [str(Cell(settings, seed, "").about(experiment)) for seed in sweep.seeds]
        rows = [done[about]["found"] for about in abouts]
        fixed = tuple(str(settings[key]) for key in experiment.keys)
        for series in in_order(rows[0]):
            values = {metric: tuple(row[series][metric] for row in rows) for metric in rows[0][series]}
            yield Point((*fixed, series), values, not failed & set(abouts))


def reproduce(claim: Claim, size: Size, cache: Path, data: Path | None, say: Say) -> Measured:
    """Measure and judge. Raises ``ConfigError`` when the claim does not run at this size."""
    experiment = claim.experiment
    if size not in experiment.sweeps:
        raise ConfigError(f"{claim.name} has no size {size!r}: choose {', '.join(claim.sizes())}")
    for name in elsewhere(claim, size, data):
        say(f"{name} has no folder under --data: its images come from the hub, or from where they were kept before")
    done = measured(experiment, size, Cache(cache, VERSION), data, say)
    found = list(points(experiment, size, done))
    seconds = sum(row["seconds"] for row in done.values())
    box = {key: value for key, value in machine().items() if key != "platform"}
    box["data"] = "local Parquet copies" if data is not None else "the hub"
    return Measured(claim, size, found, judged(experiment, found), seconds, box)


def elsewhere(claim: Claim, size: Size, data: Path | None) -> list[str]:
    """The datasets of a claim that are neither bundled nor in the folder of local copies."""
    return [n for n in claim.datasets(size) if n != "digits" and not (data is not None and (data / n).is_dir())]


def claim_of(name: str) -> Claim:
    """The claim of that name, or somebody's own, which is called as it was asked for. Raises ``ConfigError``."""
    entries = {**CLAIMS, **TABLES}
    claim = lookup("claim", next((each for each in entries if each.casefold() == name.casefold()), name), entries)
    if not isinstance(claim, Claim):
        raise ConfigError(f"claim {name!r} is a {type(claim).__name__}, not a prunella.benchmarks.engine.claim.Claim")
    return dataclasses.replace(claim, name=name) if is_foreign(name) else claim


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="reproduce", description=(__doc__ or "").splitlines()[0], epilog=EPILOG)
    parser.add_argument(
        "claim", nargs="?", default="", help="its name, as D3 or defenses; --list has them all; or my_module:CLAIM"
    )
    parser.add_argument(
        "--list", action="store_true", dest="listed", help="list all claims and tables, and what each one needs"
    )
    parser.add_argument("--index", action="store_true", help="only rewrite the README.md of --out")
    parser.add_argument("--pages", action="store_true", help="judge --out again and rewrite it, from its JSON")
    parser.add_argument(
        "--size", default="small", choices=SIZES, help="small (the default) fits 15 minutes on two cores; paper: a GPU"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="gets page, plot and numbers")
    parser.add_argument("--cache", type=Path, default=Path("runs/claims"), help="finished cells; a second run goes on")
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA if DATA.is_dir() else None,
        help="folder of local Parquet copies, one folder a dataset (mnist, cifar10); without one, the hub",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 and one line for what a user can fix, or 130 after Ctrl-C."""
    chosen: Any = options(arguments)
    if chosen.listed or not (chosen.claim or chosen.index or chosen.pages):
        print(listing((*CLAIMS.values(), *TABLES.values())))
        return 0 if chosen.listed else USAGE
    try:
        if chosen.index or chosen.pages:
            written = write_pages((*CLAIMS.values(), *TABLES.values()), chosen.out) if chosen.pages else []
            for path in (*written, write_index(CLAIMS.values(), chosen.out)):
                print(path)
            return 0
        claim = claim_of(chosen.claim)
        if chosen.data is not None and not chosen.data.is_dir():
            raise ConfigError(f"there is no folder {chosen.data}: give --data a folder of local copies")
        done = reproduce(claim, chosen.size, chosen.cache, chosen.data, lambda line: print(line, file=sys.stderr))
        written = write(done, chosen.out)
        for path in (*written, write_index(CLAIMS.values(), chosen.out)) if claim.name in CLAIMS else written:
            print(path)
        print(f"{claim.name} {done.verdict.word}: {done.verdict.reason}")
    except PrunellaError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("reproduce: stopped; the same command goes on after the last finished cell", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
