"""The cells of a stored result, so that a measurement goes on where its JSON ends, on a machine without its cache.

A JSON has the values of every series, seed by seed, and how long all cells took together, of which every cell is given
its share. Controls that are no cell of the sweep are not in it, and are measured again; so are cells of somebody's own
code that was edited since, or of which the JSON has no digest.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prunella.benchmarks.engine.cells import Cache
from prunella.benchmarks.engine.claim import Claim, Found, Settings, Size
from prunella.benchmarks.engine.machine import device
from prunella.benchmarks.engine.measuring import Cell
from prunella.benchmarks.engine.results import Measured, from_json
from prunella.benchmarks.engine.results_index import found
from prunella.core.errors import ConfigError


def cells(result: Measured) -> Iterator[tuple[Cell, Found]]:
    """Every finished cell with what it found. Those of a setting with a series that some seed lacks are left out where
    nobody wrote which. Of cells that share a label, each has the series of its ``arm``."""
    experiment, sweep = result.experiment, result.experiment.sweeps[result.size]

    def fixed(settings: Settings) -> tuple[str, ...]:
        return tuple(str(settings[key]) for key in experiment.keys)

    shared = Counter(map(fixed, sweep.cells))
    for settings in sweep.cells:
        label = fixed(settings)
        rows = [point for point in result.points if point.label[:-1] == label]
        own = {p.label[-1]: p for p in rows if shared[label] == 1 or p.label[-1] == settings.get("arm")}
        for seed in sweep.seeds if all(point.seeds for point in own.values()) else ():
            there = {series: point.at([seed]).values for series, point in own.items() if seed in point.seeds}
            row = {series: {metric: value for metric, (value,) in of.items()} for series, of in there.items()}
            if row:
                yield Cell(settings, seed, ""), row


def usable(row: dict[str, Any], claim: Claim, size: Size) -> bool:
    """Whether a JSON has cells of today's measure, and both are of a processor."""
    return (
        device().type == "cpu"
        and row.get("size") == size
        and row.get("version") == claim.experiment.measure.version
        and "device" not in row["machine"]
    )


def same_code(cell: Cell, result: Measured) -> bool:
    """Whether a result was measured with somebody's own code as a cell would run it today; not, where it is unknown."""
    code = cell.about(result.experiment).get("code", {})
    return all(result.code.get(name) == digest for name, digest in code.items())


def keep(claims: Iterable[Claim], size: Size, folder: Path, cache: Cache) -> int:
    """Put the cells of the results in ``folder`` into ``cache``, where they are not there yet; how many there are.
    Raises ``ConfigError`` where there is none, or no such folder."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: give --stored a folder of results")
    many, names = 0, list[str]()
    for claim in claims:
        names.append(claim.name)
        for _, row in found(claim, folder):
            if not usable(row, claim, size):
                continue
            try:
                result = from_json(row, claim)
            except ConfigError:
                continue  # it has other settings by now: all of it is measured again
            every = [(cell, of) for cell, of in cells(result) if same_code(cell, result)]
            for cell, of in every:
                kept = {"found": of, "seconds": result.seconds / len(every)}
                cache.get(cell.about(claim.experiment), lambda kept=kept: kept)  # type: ignore[misc]
            many += len(every)
    if not many:
        raise ConfigError(
            f"{folder} has no finished cell of {', '.join(names)} of this version, size and settings: name another "
            "folder, or measure from nothing, without --stored"
        )
    return many
