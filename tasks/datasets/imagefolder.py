"""A folder of pictures, one folder per class, as ``torchvision.datasets.ImageFolder`` reads it.

A client's own folder belongs to it as a whole; a folder that all clients are given is shared out among them. Pictures
become RGB of 32x32, or of the shape named with the dataset (``imagefolder@1x64x64``: channels, height, width):
bilinear, aspect not kept. Classes are numbered in the order of their folders' names, so every site keeps a folder for
every class, an empty one where it has no pictures; a server without data describes the task by such a folder of empty
ones. With folders ``train`` and ``test`` inside, those are the two splits; without, all pictures are for training and
the server evaluates elsewhere. A picture that cannot be read stops the client with ``DataError``; an error of a client
reaches the server and a file's name can name a patient, so how many they are and which goes to this machine's log only.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from prunella.core.errors import ConfigError, DataError, of_data
from prunella.core.extras import require
from prunella.tasks.datasets.dataset import Dataset
from prunella.tasks.datasets.images import open_image, pixels, to_tensor
from prunella.tasks.examples import Examples, Pictures
from prunella.tasks.models.layers import Shape
from prunella.tasks.partition import Indices, Partition, members

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

SHAPE: Shape = (3, 32, 32)
RATE = 0.02  # of CIFAR-10, whose shape this is; smaller for larger pictures


def _open(path: Path | None, split: str) -> "ImageFolder":
    if path is None:
        raise ConfigError(
            "say where the pictures lie: dataset 'imagefolder:/folder', or a node's own --data; on a server without "
            "pictures a folder with an empty one per class will do"
        )
    require("vision", "torchvision")
    try:
        from torchvision.datasets import ImageFolder
    except RuntimeError as error:  # "operator torchvision::nms does not exist"
        raise ConfigError("torchvision was built for another PyTorch: reinstall both from the same index") from error
    try:
        return ImageFolder(str(path / split), allow_empty=True)
    except OSError:
        raise of_data("the data folder has no readable folder per class", path / split) from None


def _split(path: Path | None, split: str) -> str:
    return split if path is not None and (path / split).is_dir() else ""


def _readable(file: str, shape: Shape) -> bool:
    try:
        pixels(open_image(Path(file).read_bytes()), shape, resize=True)
    except (OSError, ValueError):
        return False
    return True


def _decode(files: Sequence[str], path: Path, shape: Shape) -> Tensor:
    """Raises ``DataError``, which names the pictures in this machine's log, when some cannot be read."""
    try:
        return to_tensor((_read(file) for file in files), shape, resize=True)
    except (OSError, DataError):
        bad = [str(Path(file).relative_to(path)) for file in files if not _readable(file, shape)]
        raise of_data("pictures cannot be read: remove or repair them", ", ".join(bad)) from None


def _read(file: str) -> bytes:
    return Path(file).read_bytes()


def load(path: Path, folder: "ImageFolder", chosen: Indices, shape: Shape) -> Examples:
    """The chosen pictures of an opened folder, read and decoded when they are used."""
    files = [folder.samples[index][0] for index in chosen]
    pictures = Pictures(files, partial(_decode, path=path, shape=shape), shape, _read)
    return Examples(pictures, torch.tensor(folder.targets)[torch.from_numpy(chosen)])


def names(path: Path | None) -> tuple[str, ...]:
    return tuple(_open(path, _split(path, "train")).classes)


def describe(shape: Shape, path: Path | None) -> tuple[Shape, int]:
    return shape, len(names(path))


def train(shape: Shape, path: Path | None, partition: Partition, client: int) -> Examples:
    folder, place = _open(path, _split(path, "train")), Path(path or "")
    if not folder.samples:
        raise of_data("the data folder has no pictures", place)
    return load(place, folder, np.sort(members(partition, client, np.array(folder.targets))), shape)


def test(shape: Shape, path: Path | None) -> Examples | None:
    if not _split(path, "test"):
        return None
    folder = _open(path, "test")
    if tuple(folder.classes) != names(path):
        raise DataError("the folders in 'test' are not those beside it or in 'train': every class needs one in both")
    return load(Path(path or ""), folder, np.arange(len(folder.samples)), shape) if folder.samples else None


def of_shape(shape: Shape) -> Dataset:
    """Pictures of [C, H, W], C 1 (grey) or 3."""
    how = partial(describe, shape), partial(train, shape), partial(test, shape)
    rate = min(RATE, RATE * SHAPE[1] * SHAPE[2] / (shape[1] * shape[2]))
    return Dataset(*how, rate, names, lambda path: bool(_split(path, "test")), own=True, sized=of_shape)


IMAGEFOLDER = of_shape(SHAPE)
