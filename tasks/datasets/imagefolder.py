"""A folder of pictures, one folder per class, as ``torchvision.datasets.ImageFolder`` reads it.

Each client has its own folder, so no partition applies. Pictures become RGB of 32x32 (bilinear, aspect not kept).
Classes are numbered in the order of their folders' names, so every site keeps a folder for every class, an empty one
where it has no pictures; a server without data describes the task by such a folder of empty ones. With folders
``train`` and ``test`` inside, those are the two splits; without, all pictures are for training and the server
evaluates elsewhere. A picture that cannot be read stops the client with ``DataError`` that says how many; an error of a
client reaches the server and a file's name can name a patient, so names go to this machine's log only.
"""

import logging
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
logger = logging.getLogger(__name__)


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
        logger.error("pictures that cannot be read: %s", ", ".join(str(Path(file).relative_to(path)) for file in bad))
        raise DataError(
            f"{len(bad)} of {len(files)} pictures cannot be read: this machine's log names them; remove or mend them"
        ) from None
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
