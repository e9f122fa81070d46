"""Runs side by side: the settings that differ, and the results; on request, runs of several seeds in one column.

>>> differing([{"rate": 0.3, "seed": 0, "run-dir": "a"}, {"rate": 0.5, "seed": 0, "run-dir": "b"}])
[('rate', ['0.3', '0.5'])]
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from prunella.deploy.console.summary import rows
from prunella.deploy.errors import UsageError
from prunella.deploy.runs import RunDir, state
from prunella.server.store.read import read_audits, read_metrics, read_run
from prunella.server.store.schema import LOCAL_SETTINGS

MISSING = "—"
Cells = list[tuple[str, list[str]]]
Arm = list[RunDir]
NUMBER = re.compile(r"(\d+\.\d+)")
WHOLE = re.compile(r"ε |\d\s?%? ?to \d")  # what is no mean of such: a bound, an interval


def differing(settings: Sequence[Mapping[str, Any]]) -> Cells:
    """Settings that differ, with each run's value; where the run is kept does not count.

    Settings that only some runs have, since another version of Prunella made the others, are counted in one line.
    """
    names = [set(each) - set(LOCAL_SETTINGS) for each in settings]
    shared = set.intersection(*names)
    found = [(name, [str(each[name]) for each in settings]) for name in sorted(shared)]
    more = [str(len(each - shared)) for each in names]
    return [(name, row) for name, row in [*found, ("settings not in all", more)] if len(set(row)) > 1]


def figures(run: RunDir) -> dict[str, str]:
    """The lines of a run's table by label; lines with the same label together."""
    found: dict[str, list[str]] = {}
    for label, value in rows(read_run(run.path), read_metrics(run.path), read_audits(run.path)):
        found.setdefault(label, []).append(value)
    return {label: "\n".join(values) for label, values in found.items()}


def by_seed(runs: Sequence[RunDir]) -> list[Arm]:
    """Group runs that differ only in their seed. Raises ``UsageError`` for a run that has not completed, a seed that
    occurs twice (they are not independent samples), or runs of the same settings that another version made or that were
    scored on other examples."""
    arms: dict[str, Arm] = {}
    for run in runs:
        if state(run) != "completed":
            raise UsageError(f"run {run.id} is {state(run)}: compare completed runs, or leave out --seeds")
        if "seed" not in settings_of([run]):
            raise UsageError(f"the run.json of {run.id} names no seed: restore it, or leave out that run or --seeds")
        plain = {key: value for key, value in settings_of([run]).items() if key not in (*LOCAL_SETTINGS, "seed")}
        arms.setdefault(json.dumps(plain, sort_keys=True), []).append(run)
    for arm in arms.values():
        if len({settings_of([run])["seed"] for run in arm}) < len(arm):
            raise UsageError(f"{', '.join(run.id for run in arm)}: two have the same seed and settings: leave one out")
        if unlike := [f"{name} ({', '.join(row)})" for name, row in made_by(arm) if len(set(row)) > 1]:
            told = f"{', '.join(run.id for run in arm)} differ not only in their seed but in {'; '.join(unlike)}"
            raise UsageError(f"{told}: leave out those runs, or --seeds")
    return list(arms.values())


def made_by(arm: Arm) -> Cells:
    """What made a group of runs beside their settings: versions of packages, and how many examples they were scored
    on."""
    every = [read_run(run.path) for run in arm]
    each = [{**(one.get("versions") or {}), "test examples": one.get("test_examples")} for one in every]
    names = dict.fromkeys(name for one in each for name in one)
    return [(name, [str(one.get(name) or "unknown") for one in each]) for name in names]


def settings_of(arm: Arm) -> dict[str, Any]:
    """The settings of a group of runs, with all their seeds."""
    each = [read_run(run.path).get("settings", {}) for run in arm]
    return {**each[0], **({"seed": ", ".join(str(one["seed"]) for one in each)} if "seed" in each[0] else {})}


def averaged(texts: Sequence[str]) -> str:
    """Merge texts that differ only in decimal numbers, into mean ± standard deviation; join others line by line. A mean
    ε bounds nothing, and means of the ends of intervals are no interval, so that these are joined, too.

    >>> averaged(["PSNR 20.0 of 4", "PSNR 22.0 of 4"]), averaged(["3 of 4", "4 of 4"]), averaged(["0.5", "0.5"])
    ('PSNR 21.0 ± 1.4 of 4', '3 of 4\\n4 of 4', '0.5')
    >>> averaged(["ε 2.0 at δ 1e-05", "ε 4.0 at δ 1e-05"]), averaged(["ε 2.0", "ε 2.0"])
    ('ε 2.0 at δ 1e-05\\nε 4.0 at δ 1e-05', 'ε 2.0')
    >>> averaged(["5.0 % (1.0 % to 9.0 %)", "7.0 % (2.0 % to 9.0 %)"])
    '5.0 % (1.0 % to 9.0 %)\\n7.0 % (2.0 % to 9.0 %)'
    >>> averaged(["5.0\u202f% (1.0\u202f% to 9.0\u202f%)", "7.0\u202f% (2.0\u202f% to 9.0\u202f%)"]).splitlines()
    ['5.0\u202f% (1.0\u202f% to 9.0\u202f%)', '7.0\u202f% (2.0\u202f% to 9.0\u202f%)']
    """
    parts = [NUMBER.split(text) for text in texts]
    if len({tuple(part[::2]) for part in parts}) > 1 or (WHOLE.search(texts[0]) and len(set(texts)) > 1):
        return "\n".join(texts)
    found = []
    for column in zip(*parts, strict=True):
        digits = len(column[0].partition(".")[2])
        numbers = [float(text) for text in column] if len(set(column)) > 1 else []
        told = f"{statistics.fmean(numbers):.{digits}f} ± {statistics.stdev(numbers):.{digits}f}" if numbers else ""
        found.append(told or column[0])
    return "".join(found)


def outcomes(arms: Sequence[Arm]) -> Cells:
    """Every figure that any of the runs has."""
    each = [[figures(run) for run in arm] for arm in arms]
    labels = dict.fromkeys(label for arm in each for found in arm for label in found)
    return [(label, [averaged([found.get(label, MISSING) for found in arm]) for arm in each]) for label in labels]


def comparison(arms: Sequence[Arm]) -> Table:
    """One column per run, or per group of runs: first the settings that differ, then the results."""
    table = Table(title="settings that differ, then results", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    for arm in arms:
        table.add_column("\n".join(run.id for run in arm), overflow="fold")
    for label, values in differing([settings_of(arm) for arm in arms]):
        table.add_row(label, *map(Text, values))
    table.add_section()
    for label, values in outcomes(arms):
        table.add_row(label, *map(Text, values))
    return table
