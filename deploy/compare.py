"""Runs side by side: what was set differently, and what came of it.

>>> differing([{"rate": 0.3, "seed": 0, "run-dir": "a"}, {"rate": 0.5, "seed": 0, "run-dir": "b"}])
[('rate', ['0.3', '0.5'])]
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from deploy.runs import RunDir
from deploy.summary import rows
from server.report import OWN
from server.store import read_audits, read_metrics, read_run

MISSING = "—"
Cells = list[tuple[str, list[str]]]


def differing(settings: Sequence[Mapping[str, Any]]) -> Cells:
    """Settings that are not the same everywhere, with each run's value; those of the place are no difference.

    Settings that not every run has, since another version of Prunella made it, are counted in one line.
    """
    names = [set(each) - set(OWN) for each in settings]
    shared = set.intersection(*names)
    found = [(name, [str(each[name]) for each in settings]) for name in sorted(shared)]
    more = [str(len(each - shared)) for each in names]
    return [(name, row) for name, row in [*found, ("settings not in all", more)] if len(set(row)) > 1]


def figures(run: RunDir) -> dict[str, str]:
    """The lines of a run's table by their label; those of one label together."""
    found: dict[str, list[str]] = {}
    for label, value in rows(read_run(run.path), read_metrics(run.path), read_audits(run.path)):
        found.setdefault(label, []).append(value)
    return {label: "\n".join(values) for label, values in found.items()}


def outcomes(runs: Sequence[RunDir]) -> Cells:
    """Every figure that any of the runs has."""
    each = [figures(run) for run in runs]
    labels = dict.fromkeys(label for found in each for label in found)
    return [(label, [found.get(label, MISSING) for found in each]) for label in labels]


def comparison(runs: Sequence[RunDir]) -> Table:
    """A column a run: first the settings in which they differ, then the figures."""
    table = Table(title="settings that differ, then results", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    for run in runs:
        table.add_column(run.id, overflow="fold")
    for label, values in differing([read_run(run.path).get("settings", {}) for run in runs]):
        table.add_row(label, *map(Text, values))
    table.add_section()
    for label, values in outcomes(runs):
        table.add_row(label, *map(Text, values))
    return table
