"""Finished measurements on disk, one JSON file each, by a digest of their settings: a stopped program can go on later.

>>> import tempfile
>>> cache = Cache(Path(tempfile.mkdtemp()), version=1)
>>> cache.get({"seed": 0}, lambda: {"psnr": 31.0}), cache.get({"seed": 0}, lambda: {"psnr": 0.0})
({'psnr': 31.0}, {'psnr': 31.0})
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prunella.core.errors import ConfigError
from prunella.core.files import write_json

Row = dict[str, Any]


def must_be_writable(folder: Path, option: str) -> None:
    """Raise ``ConfigError`` where nothing can be written, before anything is measured for it. Makes nothing."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.exists(each))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise ConfigError(f"cannot write to {folder}: {there} {why}; choose another directory with {option}")


class Cache:
    """A folder of cells. ``version`` is of what a cell means: a change forgets the cells of before."""

    def __init__(self, folder: Path, version: int) -> None:
        self.folder, self.version = folder, version
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, about: Mapping[str, Any]) -> Path:
        """Where the cell of these settings stands. Settings are JSON: ``TypeError`` for anything else."""
        text = json.dumps({"version": self.version, **about}, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def has(self, about: Mapping[str, Any]) -> bool:
        return self.path(about).exists()

    def get(self, about: Mapping[str, Any], make: Callable[[], Row]) -> Row:
        """The cell of these settings, made when it is not there; it appears whole or not at all."""
        path = self.path(about)
        if not path.exists():
            write_json(path, {"about": about, "cell": make()})
        cell: Row = json.loads(path.read_text())["cell"]
        return cell
