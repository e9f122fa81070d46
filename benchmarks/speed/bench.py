"""What benchmarks of speed share: arms timed in turns, and a command line that prints a table or one JSON object."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from prunella.benchmarks.engine.machine import machine

Work = Callable[[], object]
Result = dict[str, Any]


def timed(arms: Mapping[str, Work], repeat: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of every arm in each of ``repeat`` turns: on a busy machine all arms meet the same neighbours."""
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeat):
        for name, work in arms.items():
            begin = clock()
            work()
            taken[name].append(clock() - begin)
    return taken


def turns(arms: Mapping[str, Work], base: str, repeat: int) -> dict[str, dict[str, float]]:
    """Median, least and largest of every arm's processor seconds over those of ``base`` in that turn; the first turn is
    left out.

    >>> sorted(turns({"a": lambda: None, "b": lambda: sum(range(9))}, "a", 1)["b"])
    ['least', 'most', 'ratio', 'seconds']
    """
    taken, found = timed(arms, repeat + 1, time.process_time), {}
    for name, (_, *seconds) in taken.items():
        ratios = [s / b for s, b in zip(seconds, taken[base][1:], strict=True)]
        middle = {"seconds": statistics.median(seconds), "ratio": statistics.median(ratios)}
        found[name] = {**middle, "least": min(ratios), "most": max(ratios)}
    return found


def fastest(arms: Mapping[str, Work], repeat: int) -> dict[str, float]:
    """The least seconds of each, timed in turn ``repeat`` times."""
    return {name: min(seconds) for name, seconds in timed(arms, repeat, time.perf_counter).items()}


def importable(packages: Mapping[str, str]) -> set[str]:
    """Which of others' packages, by the name they are imported under, are here; the values are what pip installs.

    They are no dependency of this project. Of those that are missing, stderr says how to get them.

    >>> importable({"json": "json"})
    {'json'}
    """
    here = {name for name in packages if find_spec(name) is not None}
    if missing := [wanted for name, wanted in packages.items() if name not in here]:
        line = f"pip install {' '.join(missing)}"
        print(f"left out, not installed: {', '.join(missing)}. In an environment of its own: {line}", file=sys.stderr)
    return here


def show_table(title: str, heads: str, rows: Iterable[Iterable[str]], width: int | None = None) -> None:
    """A table on the console; ``heads`` are parted by commas."""
    table = Table(*heads.split(", "), title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)


def command(
    doc: str | None,
    measure: Callable[[argparse.Namespace], Result],
    show: Callable[[Result], None],
    options: Mapping[str, Any],
) -> Result:
    """Measures as the command line asks, and shows the result, or prints it as JSON with ``--json``. It tells of the
    machine, too.

    An option is its default, or keywords of ``add_argument``. An ``ArgumentTypeError`` of ``measure`` is a wrong usage.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    for name, given in {**options, "--json": options.get("--json", {"action": "store_true"})}.items():
        parser.add_argument(name, **(given if isinstance(given, dict) else {"type": type(given), "default": given}))
    asked = parser.parse_args()
    try:
        result = {**measure(asked), "machine": machine()}
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if asked.json is True:
        print(json.dumps(result))
        return result
    show(result)
    if isinstance(asked.json, Path):
        asked.json.write_text(json.dumps(result))
    return result
