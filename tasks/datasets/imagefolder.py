"""A folder of pictures, one folder per class, as ``torchvision.datasets.ImageFolder`` reads it.

Each client has its own folder, so no partition applies. Pictures become RGB of 32x32 (bilinear, aspect not kept).
Classes are numbered in the order of their folders' names, so every site keeps a folder for every class, an empty one
where it has no pictures; a server without data describes the task by such a folder of empty ones. With folders
``train`` and ``test`` inside, those are the two splits; without, all pictures are for training and the server
evaluates elsewhere. A picture that cannot be read stops the client with ``DataError``: how many, and the name of the
first inside the data folder.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from core.errors import ConfigError, DataError
from tasks.datasets.dataset import Dataset
from tasks.datasets.images import to_tensor
from tasks.examples import Examples
from tasks.models.layers import Shape
from tasks.partition import Partition

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

SHAPE: Shape = (3, 32, 32)


def _open(path: Path | None, split: str) -> "ImageFolder":
    if path is None:
        raise ConfigError("say where the pictures lie: dataset 'imagefolder:/folder', or a node's own data root")
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(str(path / split), allow_empty=True)
    except OSError:
        raise DataError(f"the data folder {path.name!r} has no readable folder per class") from None


def _split(path: Path | None, split: str) -> str:
    return split if path is not None and (path / split).is_dir() else ""


def _readable(file: str) -> bool:
    try:
        to_tensor([Path(file).read_bytes()], SHAPE, resize=True)
    except (OSError, DataError):
        return False
    return True


def load(path: Path, folder: "ImageFolder") -> Examples:
    """All pictures of an opened folder. Raises ``DataError`` when there are none or some cannot be read."""
    files = [file for file, _ in folder.samples]
    if not files:
        raise DataError(f"the data folder {path.name!r} has no pictures")
    try:
        images = to_tensor((Path(file).read_bytes() for file in files), SHAPE, resize=True)
    except (OSError, DataError):
        bad = [file for file in files if not _readable(file)]
        first = Path(bad[0]).relative_to(path) if bad else "unknown"
        raise DataError(f"{len(bad)} of {len(files)} pictures cannot be read, the first is {first}") from None
    return Examples(images, torch.tensor(folder.targets))


def describe(path: Path | None) -> tuple[Shape, int]:
    return SHAPE, len(_open(path, _split(path, "train")).classes)


def train(path: Path | None, partition: Partition, client: int) -> Examples:
    folder = _open(path, _split(path, "train"))
    return load(Path(path or ""), folder)


def test(path: Path | None) -> Examples | None:
    if not _split(path, "test"):
        return None
    return load(Path(path or ""), _open(path, "test"))


IMAGEFOLDER = Dataset(describe, train, test)
