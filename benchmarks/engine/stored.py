"""The cells of a stored result, so that a measurement goes on where its JSON ends, on a machine without its cache.

A JSON has the values of every series, seed by seed, and how long all cells took together, of which every cell is given
its share. Controls that are no cell of the sweep are not in it, and are measured again; so are cells of somebody's own
code that was edited since, or of which the JSON has no digest. The settings of every cell are in the JSON, so that a
claim that has got other cells or seeds keeps those that it had.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prunella.benchmarks.engine.cells import Cache
from prunella.benchmarks.engine.claim import Claim, Experiment, Found, Settings, Size
from prunella.benchmarks.engine.machine import device
from prunella.benchmarks.engine.measuring import Cell
from prunella.benchmarks.engine.results import points_of
from prunella.benchmarks.engine.results_index import found
from prunella.core.errors import ConfigError


def cells(row: dict[str, Any], experiment: Experiment) -> Iterator[tuple[Cell, Found]]:
    """Every finished cell of a JSON with what it found. Those of a setting with a series that some seed lacks are left
    out where nobody wrote which. Of cells that share a label, each has the series of its ``arm``."""

    def fixed(settings: Settings) -> tuple[str, ...]:
        return tuple(str(settings[key]) for key in experiment.keys)

    every, points = [one for one in row["settings"] if one.keys() >= set(experiment.keys)], points_of(row)
    shared = Counter(map(fixed, every))
    for settings in every:
        label = fixed(settings)
        rows = [point for point in points if point.label[:-1] == label]
        own = {p.label[-1]: p for p in rows if shared[label] == 1 or p.label[-1] == settings.get("arm")}
        for seed in row["seeds"] if all(point.seeds for point in own.values()) else ():
            there = {series: point.at([seed]).values for series, point in own.items() if seed in point.seeds}
            made = {series: {metric: value for metric, (value,) in of.items()} for series, of in there.items()}
            if made:
                yield Cell(settings, seed, ""), made


def usable(row: dict[str, Any], claim: Claim, size: Size) -> bool:
    """Whether a JSON has cells of today's measure, and both are of a processor."""
    return (
        device().type == "cpu"
        and row.get("size") == size
        and row.get("version") == claim.experiment.measure.version
        and "device" not in row["machine"]
    )


def same_code(cell: Cell, row: dict[str, Any], experiment: Experiment) -> bool:
    """Whether a result was measured with somebody's own code as a cell would run it today; not, where it is unknown."""
    code = cell.about(experiment).get("code", {})
    return all(row.get("code", {}).get(name) == digest for name, digest in code.items())


def keep(claims: Iterable[Claim], size: Size, folder: Path, cache: Cache) -> int:
    """Put the cells of the results in ``folder`` into ``cache``, where they are not there yet; how many of those that
    are asked for there are. Raises ``ConfigError`` where there is none, or no such folder."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: give --stored a folder of results")
    many, names = 0, list[str]()
    for claim in claims:
        names.append(claim.name)
        experiment = claim.experiment
        sweep = experiment.sweeps[size]
        asked = {json.dumps([one, seed], sort_keys=True) for one in sweep.cells for seed in sweep.seeds}
        for _, row in found(claim, folder):
            if not usable(row, claim, size):
                continue
            every = list(cells(row, experiment))
            # No code is looked for that a file alone names.
            mine = [(cell, of) for cell, of in every if json.dumps([cell.settings, cell.seed], sort_keys=True) in asked]
            mine = [(cell, of) for cell, of in mine if same_code(cell, row, experiment)]
            for cell, of in mine:
                kept = {"found": of, "seconds": row["seconds"] / len(every)}
                cache.get(cell.about(experiment), lambda kept=kept: kept)  # type: ignore[misc]
            many += len(mine)
    if not many:
        raise ConfigError(
            f"{folder} has no finished cell of {', '.join(names)} of this version, size and settings: name another "
            "folder, or measure from nothing, without --stored"
        )
    return many
