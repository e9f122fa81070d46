"""Measures a claim of the papers again, or a table of docs/: one engine for all of ``benchmarks.papers``.

Finished cells are kept in ``--cache`` under a digest of measure, settings and seed: a killed run continues where it
stopped, and claims share cells. The positive control of an attack is a cell, too, and runs before the cells that depend
on it. Where one fails, nothing is compared: the verdict is "not judged". The engine writes a page, a plot and a JSON
file into ``--out``, and rewrites ``README.md`` there, the list of all claims.

    prunella reproduce --list
    prunella reproduce D3 [--size small] [--data /data] [--out results]
    prunella reproduce board --budget 30min --jobs 2
    prunella reproduce board --submit my_module:DEFENSE
    prunella reproduce my_module:CLAIM
"""

import argparse
import dataclasses
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prunella.benchmarks.engine.cells import Cache, must_be_writable
from prunella.benchmarks.engine.claim import SIZES, Claim, Size, judged
from prunella.benchmarks.engine.machine import machine, use_device
from prunella.benchmarks.engine.measuring import ALONE, RunLimits, Say, measured, missing, points
from prunella.benchmarks.engine.results import Measured, listing, write
from prunella.benchmarks.engine.results_index import write_index, write_pages
from prunella.benchmarks.registry import CLAIMS, TABLES
from prunella.benchmarks.scenarios.board import BOARD, submission
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.foreign import is_foreign, lookup

VERSION = 1
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
USAGE, INTERRUPTED = 2, 130
EPILOG = "Exit code: 0, 2 for what you can fix, 130 after Ctrl-C. A run that was stopped goes on where it was."
UNITS = {"s": 1, "min": 60, "h": 3600}


def seconds(text: str) -> float:
    """Of a time as somebody writes it. Raises ``ArgumentTypeError``, from which the command line makes its message.

    >>> seconds("90s"), seconds("30min"), seconds("1.5h")
    (90.0, 1800.0, 5400.0)
    """
    found = re.fullmatch(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(UNITS)})", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 90s, 30min or 2h")
    return float(found[1]) * UNITS[found[2]]


def reproduce(
    claim: Claim, size: Size, cache: Path, data: Path | None, say: Say, limits: RunLimits = ALONE
) -> Measured:
    """Measure and judge. Raises ``ConfigError`` when the claim does not run at this size."""
    experiment = claim.experiment
    if size not in experiment.sweeps:
        raise ConfigError(f"{claim.name} has no size {size!r}: choose {', '.join(claim.sizes())}")
    for name in elsewhere(claim, size, data):
        say(f"{name} has no folder under --data: its images come from the hub, or from where they were kept before")
    done = measured(experiment, size, Cache(cache, VERSION), data, say, limits)
    found, left = list(points(experiment, size, done)), missing(experiment, size, done)
    if not found:
        raise ConfigError("the budget was over before one cell and its control: give it more time; they are kept")
    took = sum(row["seconds"] for row in done.values())
    box = {key: value for key, value in machine().items() if key != "platform"}
    box["data"] = "local Parquet copies" if data is not None else "the hub"
    return Measured(claim, size, found, judged(experiment, size, found, left), took, box, left)


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


def parser() -> argparse.ArgumentParser:
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
    parser.add_argument("--jobs", type=int, default=1, help="cells side by side, on a thread each (1)")
    parser.add_argument(
        "--budget", type=seconds, default=math.inf, help="begin no cell after 90s, 30min, 2h; the same command goes on"
    )
    parser.add_argument("--device", default="cpu", help="of attacks and federations: cpu (the default), cuda, auto")
    parser.add_argument("--submit", default="", help="of board: my_module:NAME, a defense or an attack of your own")
    parser.add_argument("--out", type=Path, default=Path("results"), help="gets page, plot and numbers")
    parser.add_argument("--cache", type=Path, default=Path("runs/claims"), help="finished cells; a second run goes on")
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA if DATA.is_dir() else None,
        help="folder of local Parquet copies, one folder a dataset (mnist, cifar10); without one, the hub",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 and one line for what a user can fix, or 130 after Ctrl-C."""
    chosen: Any = parser().parse_args(arguments)
    if chosen.listed or not (chosen.claim or chosen.index or chosen.pages):
        print(listing((*CLAIMS.values(), *TABLES.values())))
        return 0 if chosen.listed else USAGE
    try:
        must_be_writable(chosen.out, "--out")
        if chosen.index or chosen.pages:
            written = write_pages((*CLAIMS.values(), *TABLES.values()), chosen.out) if chosen.pages else []
            for path in (*written, write_index(CLAIMS.values(), chosen.out)):
                print(path)
            return 0
        must_be_writable(chosen.cache, "--cache")
        if chosen.jobs < 1 or (chosen.submit and chosen.claim.casefold() != BOARD.name):
            raise ConfigError("--jobs is at least 1, and --submit is of the board")
        use_device(chosen.device)
        claim = submission(chosen.submit) if chosen.submit else claim_of(chosen.claim)
        if chosen.data is not None and not chosen.data.is_dir():
            raise ConfigError(f"there is no folder {chosen.data}: give --data a folder of local copies")
        limits = RunLimits(chosen.jobs, time.time() + chosen.budget, chosen.device)
        done = reproduce(claim, chosen.size, chosen.cache, chosen.data, lambda x: print(x, file=sys.stderr), limits)
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
