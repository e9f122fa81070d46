"""The cells of a stored result are those that it was made of."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from prunella.benchmarks.engine.cells import Cache
from prunella.benchmarks.engine.measuring import points
from prunella.benchmarks.engine.results import from_json
from prunella.benchmarks.engine.stored import cells, keep
from prunella.benchmarks.registry import CLAIMS, TABLES
from prunella.core.errors import ConfigError

RESULTS = Path(__file__).parents[3] / "docs" / "results"
EVERY = {**CLAIMS, **TABLES}


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.json")))
def test_they_give_the_points_back(name: str) -> None:
    """Of every committed result; cells whose control is not in the JSON give no point."""
    row = json.loads((RESULTS / f"{name}.json").read_text())
    claim = EVERY[row["claim"]]
    result = from_json(row, claim)
    done = {cell.key(claim.experiment): {"found": found} for cell, found in cells(row, claim.experiment)}
    there = defaultdict(list)
    for point in result.points:
        there[point.label].append((dict(point.values), point.control))
    for point in points(claim.experiment, result.size, done):
        assert (dict(point.values), point.control) in there[point.label]


@pytest.mark.parametrize("name", ["board", "C4", "X1", "membership"])
def test_nothing_of_these_is_left_out(name: str) -> None:
    """Of C4 two defenses have the same label."""
    row = json.loads((RESULTS / f"{name}.json").read_text())
    found = list(cells(row, EVERY[name].experiment))
    assert len(found) == len(row["settings"]) * len(row["seeds"]) - row["missing"]


def test_a_cell_of_which_a_seed_found_nothing_is_left_out() -> None:
    """Its values are of three seeds, and nobody wrote which; of a result with cells missing, the first three."""
    row = json.loads((RESULTS / "board.json").read_text())

    def finished(missing: int) -> int:
        return len(list(cells({**row, "missing": missing}, EVERY["board"].experiment)))

    before = finished(row["missing"]), finished(2)
    *fixed, _ = row["points"][-1]["label"]
    for point in row["points"]:
        if point["label"][:-1] == fixed:
            point["values"] = {key: seeds[:3] for key, seeds in point["values"].items()}
    lost = 2 if row["missing"] else 5
    assert (finished(row["missing"]), finished(2)) == (before[0] - lost, before[1] - 2)


def test_a_claim_that_has_got_cells_and_seeds_keeps_those_that_it_had(tmp_path: Path) -> None:
    """And what it no longer asks for is no cell of it."""
    row = json.loads((RESULTS / "X1.json").read_text())
    had, seeds = row["settings"], row["seeds"]
    (tmp_path / "X1.json").write_text(json.dumps(row))
    sweep = replace(CLAIMS["X1"].experiment.sweeps["small"], cells=(*had[1:], {**had[0], "batch": 99}))
    experiment = replace(CLAIMS["X1"].experiment, sweeps={"small": replace(sweep, seeds=(*seeds, 77))})
    many = keep([replace(CLAIMS["X1"], experiment=experiment)], "small", tmp_path, Cache(tmp_path / "cells", 1))
    assert many == (len(had) - 1) * len(seeds)


def test_a_claim_of_other_settings_is_measured_again(tmp_path: Path) -> None:
    row = json.loads((RESULTS / "X1.json").read_text())
    settings = [{**one, "batch": 99} for one in row["settings"]]
    (tmp_path / "X1.json").write_text(json.dumps({**row, "settings": settings}))
    with pytest.raises(ConfigError, match=r"no finished cell of X1 .* measure from nothing, without --stored"):
        keep([CLAIMS["X1"]], "small", tmp_path, Cache(tmp_path / "cells", 1))


def test_a_folder_that_is_not_there_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere: give --stored a folder of results"):
        keep([CLAIMS["X1"]], "small", tmp_path / "nowhere", Cache(tmp_path / "cells", 1))
