"""Finished measurements on disk, one JSON file each, by a digest of their settings: a stopped program can go on later.

>>> import tempfile
>>> cache = Cache(Path(tempfile.mkdtemp()), version=1)
>>> cache.get({"seed": 0}, lambda: {"psnr": 31.0}), cache.get({"seed": 0}, lambda: {"psnr": 0.0})
({'psnr': 31.0}, {'psnr': 31.0})
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prunella.core.errors import ConfigError
from prunella.core.files import write_json
from prunella.core.folders import unwritable

Row = dict[str, Any]


def must_be_writable(folder: Path, option: str) -> None:
    """Raise ``ConfigError`` where nothing can be written, before anything is measured for it. Leaves nothing."""
    if reason := unwritable(folder):
        raise ConfigError(f"cannot write to {folder}: {reason}; choose another directory with {option}")


def digest_of(folder: Path) -> str:
    """Of the names and contents of the files in a folder, wherever it lies; "" where there is none."""
    whole, files = hashlib.sha256(), sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return whole.hexdigest() if files else ""


class Cache:
    """A folder of cells. ``version`` is of what a cell means: a change forgets the cells of before.

    The digest of a cell's ``data`` stands beside the cell and not in its name, so that one without a record counts:
    of images from the hub, or from before there was a record. One of other data is not there.
    """

    def __init__(self, folder: Path, version: int) -> None:
        self.folder, self.version = folder, version
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, about: Mapping[str, Any]) -> Path:
        """Where the cell of these settings stands. Settings are JSON: ``TypeError`` for anything else."""
        text = json.dumps({"version": self.version, **about}, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def has(self, about: Mapping[str, Any], data: str = "") -> bool:
        path = self.path(about)
        if not path.exists():
            return False
        kept = json.loads(path.read_text()).get("data", "")
        return not kept or kept == data

    def get(self, about: Mapping[str, Any], make: Callable[[], Row], data: str = "") -> Row:
        """The cell of these settings, made when it is not there; it appears whole or not at all."""
        path = self.path(about)
        if not self.has(about, data):
            write_json(path, {"about": about, "cell": make(), **({"data": data} if data else {})})
        cell: Row = json.loads(path.read_text())["cell"]
        return cell
