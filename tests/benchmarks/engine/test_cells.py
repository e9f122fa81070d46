"""Cells are made once, and again after a change of settings or meaning."""

from pathlib import Path

import pytest

from prunella.benchmarks.engine.cells import Cache


def test_a_cell_is_made_once_and_a_change_makes_another(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(len(made))
        return {"number": made[-1]}

    cache = Cache(tmp_path / "cells", 1)
    assert not cache.has({"seed": 0}) and cache.get({"seed": 0}, make) == {"number": 0}
    assert cache.has({"seed": 0}) and cache.get({"seed": 0}, make) == {"number": 0}
    assert cache.get({"seed": 1}, make) == {"number": 1}
    assert Cache(tmp_path / "cells", 2).get({"seed": 0}, make) == {"number": 2}


def test_a_cell_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1)

    def fail() -> dict[str, int]:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        cache.get({"seed": 0}, fail)
    assert not list(tmp_path.iterdir()) and cache.get({"seed": 0}, lambda: {"x": 1}) == {"x": 1}
