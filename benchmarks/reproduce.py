"""Measures a claim of the papers again, or a table of docs/, or all of them: one engine for ``benchmarks.papers``.

Finished cells are kept in ``--cache`` under a digest of measure, settings and seed: a killed run continues where it
stopped, and claims share cells. The positive control of an attack is a cell, too, and runs before the cells that depend
on it. Where one fails, nothing is compared: the verdict is "not judged". The engine writes a page, a plot and a JSON
file into ``--out``, and rewrites ``README.md`` there, the list of all claims.

Without a claim, all that have the size are measured, by information per second (``engine.schedule``), as far as
``--budget`` goes. At its end, or after Ctrl-C, every claim with a finished point gets its files, and the rest is named.

    prunella reproduce --list
    prunella reproduce --size paper --budget 30min --device cuda
    prunella reproduce D3 [--size small] [--data /data] [--out results]
    prunella reproduce board --budget 30min --jobs 2
    prunella reproduce board --stored docs/results
    prunella reproduce board --submit my_module:DEFENSE
    prunella reproduce my_module:CLAIM
"""

import argparse
import dataclasses
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prunella.benchmarks.engine.cells import Cache, must_be_writable
from prunella.benchmarks.engine.claim import SIZES, Claim, Size, judged
from prunella.benchmarks.engine.machine import machine, use_device
from prunella.benchmarks.engine.measuring import ALONE, Plan, RunLimits, Say, fill, missing, points
from prunella.benchmarks.engine.results import Measured, listing, write
from prunella.benchmarks.engine.results_index import found as results_of
from prunella.benchmarks.engine.results_index import must_be_ours, typical, write_index, write_pages
from prunella.benchmarks.engine.stored import keep
from prunella.benchmarks.registry import CLAIMS, TABLES
from prunella.benchmarks.scenarios.board import BOARD, submission
from prunella.core.errors import ConfigError, PrunellaError, with_article
from prunella.core.foreign import is_foreign, lookup
from prunella.core.interrupts import signals_interrupt
from prunella.tasks.datasets.hub import UnreachableHub

VERSION = 1
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"  # of a checkout
USAGE, INTERRUPTED = 2, 130
EPILOG = (
    "Exit code: 0, 2 for what you can fix, 130 after Ctrl-C or SIGTERM. A run that was stopped goes on where it was."
)
TOO_SHORT = "the budget was over before one cell and its control: give it more time; they are kept"
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
    """Measure and judge. Raises ``ConfigError`` when the claim does not run at this size, or has no point yet."""
    plan = planned([claim], size, cache, data)
    run(plan, [claim], size, data, say, limits)
    found = result(claim, size, plan, data)
    if not found.points:
        raise ConfigError(TOO_SHORT)
    return found


def planned(
    claims: Sequence[Claim], size: Size, cache: Path, data: Path | None, took: Mapping[str, float] | None = None
) -> Plan:
    """Raises ``ConfigError`` when a claim does not run at this size."""
    for claim in claims:
        if size not in claim.experiment.sweeps:
            raise ConfigError(f"{claim.name} has no size {size!r}: choose {', '.join(claim.sizes())}")
    return Plan({claim.name: claim.experiment for claim in claims}, size, Cache(cache, VERSION), took, data)


def run(plan: Plan, claims: Sequence[Claim], size: Size, data: Path | None, say: Say, limits: RunLimits) -> None:
    """Measure, after a word on images that are not local. Raises ``ConfigError`` where the hub has to have those of a
    claim, and cannot be reached."""
    away = sorted({name for claim in claims for name in elsewhere(claim, size, data)})
    for name in away:
        say(f"{name} has no folder under --data: its images come from the hub, or from where they were kept before")
    try:
        fill(plan, data, say, limits)
    except UnreachableHub as error:
        what = str(error).partition(":")[0]
        raise ConfigError(
            f"{what}: give --data a folder with its Parquet files in a folder below it, called {' or '.join(away)}"
        ) from None


def result(claim: Claim, size: Size, plan: Plan, data: Path | None) -> Measured:
    """A claim, judged by what was measured of it so far."""
    experiment, own = claim.experiment, {key for keys in plan.claims[claim.name] for key in keys}
    found, left = list(points(experiment, size, plan.done)), missing(experiment, size, plan.done)
    took = sum(row["seconds"] for key, row in plan.done.items() if key in own)
    box = {key: value for key, value in machine().items() if key != "platform"}
    box["data"] = "local Parquet copies" if data is not None else "the hub"
    verdict = judged(experiment, size, found, left)
    code = {name: digest for key in own for name, digest in json.loads(key).get("code", {}).items()}
    return Measured(claim, size, found, verdict, took, box, left, experiment.measure.version, code)


def unfinished(plan: Plan, limits: RunLimits) -> list[str]:
    """A line for every claim that cells are missing of: how many, and about how long they take."""
    lines, every = list[str](), plan.left(plan.claims)
    for name, rounds in plan.claims.items():
        if left := plan.left([name]):
            why = f"; it failed: {plan.failed[name]}" if name in plan.failed else ""
            many = f"{len(left)} of {sum(map(len, rounds))} cells missing"
            lines.append(f"{name}: {many}, about {plan.minutes(left, limits):.0f} min{why}")
    together = f"in all {len(every)} cells missing, about {plan.minutes(every, limits) / 60:.1f} h"
    return [*lines, f"{together}; the same command goes on"] if len(lines) > 1 else lines


def elsewhere(claim: Claim, size: Size, data: Path | None) -> list[str]:
    """The datasets of a claim that are neither bundled nor in the folder of local copies."""
    return [n for n in claim.datasets(size) if n != "digits" and not (data is not None and (data / n).is_dir())]


def claim_of(name: str) -> Claim:
    """The claim of that name, or somebody's own, which is called as it was asked for. Raises ``ConfigError``."""
    entries = {**CLAIMS, **TABLES}
    claim = lookup("claim", next((each for each in entries if each.casefold() == name.casefold()), name), entries)
    if not isinstance(claim, Claim):
        raise ConfigError(f"claim {name!r} is {with_article(claim)}, not a prunella.benchmarks.engine.claim.Claim")
    return dataclasses.replace(claim, name=name) if is_foreign(name) else claim


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="reproduce", description=(__doc__ or "").splitlines()[0], epilog=EPILOG)
    parser.add_argument(
        "claim",
        nargs="?",
        default="",
        help="its name, as D3 or defenses; --list has them all; or my_module:CLAIM; without one, all that have --size",
    )
    parser.add_argument(
        "--list", action="store_true", dest="listed", help="list all claims and tables, and what each one needs"
    )
    parser.add_argument("--index", action="store_true", help="only rewrite the README.md of --out")
    parser.add_argument(
        "--pages", action="store_true", help="judge --out, or the claim in it, again and rewrite it, from JSON"
    )
    parser.add_argument(
        "--size",
        choices=SIZES,
        help="small (the default): most claims take minutes of two cores, tables hours; paper: GPU",
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
        "--stored", type=Path, help="a folder of results: the cells in its JSON count as measured, and it goes on there"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA if DATA.is_dir() else None,
        help="folder of local Parquet copies, one folder a dataset (mnist, cifar10); without one, the hub",
    )
    return parser


def named(chosen: Any) -> list[Claim]:
    """The one that was asked for, if one was. Raises ``ConfigError``."""
    if chosen.submit:
        return [submission(chosen.submit)]
    return [claim_of(chosen.claim)] if chosen.claim else []


def rewritten(chosen: Any) -> list[Path]:
    """What lies in ``--out``, judged and written anew as far as it was asked for, and the list of claims with it.
    Raises ``ConfigError``."""
    if not chosen.out.is_dir():
        raise ConfigError(f"there is no folder {chosen.out}: name that of the results with --out")
    one = named(chosen)
    if one and chosen.index:
        raise ConfigError("--index is of all claims: leave the claim out")
    if one and not results_of(one[0], chosen.out):
        raise ConfigError(f"{chosen.out} has no result of {one[0].name}: measure it, or name another folder with --out")
    listed = [] if one and one[0].name not in CLAIMS else list(CLAIMS.values())
    if listed:
        must_be_ours(chosen.out)
    written = write_pages(one or (*CLAIMS.values(), *TABLES.values()), chosen.out) if chosen.pages else []
    return [*written, write_index(listed, chosen.out)] if listed else written


def chosen_claims(chosen: Any, size: Size) -> list[Claim]:
    """The one that was asked for, or all of this size. Raises ``ConfigError``, also where there is another file in the
    place of the list of claims."""
    every = (*CLAIMS.values(), *TABLES.values())
    claims = named(chosen) or [claim for claim in every if size in claim.sizes()]
    if any(claim.name in CLAIMS for claim in claims):
        must_be_ours(chosen.out)
    return claims


def measure(chosen: Any) -> int:
    """Measure what was chosen, and write what has a point. 0, or 2 where a claim failed, or 130 after Ctrl-C. Raises
    ``ConfigError``."""
    must_be_writable(chosen.cache, "--cache")
    if chosen.jobs < 1 or (chosen.submit and chosen.claim.casefold() != BOARD.name):
        raise ConfigError("--jobs is at least 1, and --submit is of the board")
    use_device(chosen.device)
    size: Size = chosen.size or "small"
    claims = chosen_claims(chosen, size)
    if chosen.data is not None and not chosen.data.is_dir():
        raise ConfigError(f"there is no folder {chosen.data}: give --data a folder of local copies")
    limits = RunLimits(chosen.jobs, time.time() + chosen.budget, chosen.device)
    if chosen.stored is not None:
        many = keep(claims, size, chosen.stored, Cache(chosen.cache, VERSION))
        complain(f"{many} cells are stored in {chosen.stored}")
    plan = planned(claims, size, chosen.cache, chosen.data, typical(claims, size, (RESULTS, chosen.out)))
    stopped = False
    try:
        run(plan, claims, size, chosen.data, complain, limits)
    except KeyboardInterrupt:
        stopped = True
    found = [each for each in (result(claim, size, plan, chosen.data) for claim in claims) if each.points]
    if not found and not stopped:
        raise ConfigError("no claim could be measured, for the reasons above" if plan.failed else TOO_SHORT)
    for each in found:
        print(*write(each, chosen.out), sep="\n")
        print(f"{each.claim.name} {each.verdict.word}: {each.verdict.reason}")
    if any(each.claim.name in CLAIMS for each in found):
        print(write_index(CLAIMS.values(), chosen.out))
    for line in unfinished(plan, limits):
        complain(line)
    if stopped:
        complain("reproduce: stopped; the same command goes on after the last finished cell")
    return INTERRUPTED if stopped else USAGE if plan.failed else 0


def complain(line: str) -> None:
    print(line, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 and one line for what a user can fix, or 130 after Ctrl-C."""
    chosen: Any = parser().parse_args(arguments)
    asked = chosen.claim or chosen.submit or chosen.size or chosen.budget < math.inf
    if chosen.listed or not (asked or chosen.index or chosen.pages):
        print(listing((*CLAIMS.values(), *TABLES.values())))
        return 0 if chosen.listed else USAGE
    try:
        must_be_writable(chosen.out, "--out")
        with signals_interrupt():
            if not (chosen.index or chosen.pages):
                return measure(chosen)
            print(*rewritten(chosen), sep="\n")
    except PrunellaError as error:
        complain(f"reproduce: {error}")
        return USAGE
    except KeyboardInterrupt:
        complain("reproduce: stopped; the same command goes on after the last finished cell")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
