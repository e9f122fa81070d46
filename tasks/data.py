"""Examples by the name of their dataset.

A name is an entry of ``DATASETS``, perhaps with a shape and a place: ``digits``, ``imagefolder:/data/site-a``,
``imagefolder@1x64x64:/data/site-a``, ``parquet:/data/cells``, ``mnist:/data/mnist`` (a local copy of the hub's Parquet
files). ``root``, a node's own setting, goes before the place in the name: each site keeps its data where it likes.

>>> describe("digits", None)
((1, 8, 8), 10)
>>> len(load_client("digits", Partition("iid", clients=4), 0, None))
360
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from prunella.core.errors import ConfigError, DataError, unknown
from prunella.tasks.datasets import DATASETS
from prunella.tasks.datasets.dataset import Dataset
from prunella.tasks.examples import Examples, batches
from prunella.tasks.models.layers import Shape
from prunella.tasks.partition import Partition
from prunella.tasks.task import MAX_VALUES, Task

__all__ = [
    "Examples",
    "Partition",
    "batches",
    "describe",
    "has_test",
    "load_client",
    "load_public",
    "load_test",
    "make_task",
]
logger = logging.getLogger(__name__)


def _find(dataset: str, root: Path | None) -> tuple[Dataset, Path | None]:
    name, _, place = dataset.partition(":")
    name, _, size = name.partition("@")
    if name not in DATASETS and set(name) & set("/\\."):
        raise ConfigError(
            f"dataset {dataset!r} is a place: write its kind before it, imagefolder:/folder for images in folders by "
            "class, parquet:/folder or mnist:/folder for Parquet files"
        )
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    entry = DATASETS[name]
    if size:
        found = re.fullmatch(r"([13])x([1-9]\d*)x([1-9]\d*)", size)
        if entry.sized is None:
            raise ConfigError(f"dataset {dataset!r}: only imagefolder can be resized, as in 'imagefolder@1x64x64'")
        if found is None:
            raise ConfigError(
                f"dataset {dataset!r}: a size is channels (1 or 3), height and width, each of 1 at least, as in "
                "'imagefolder@1x64x64'"
            )
        channels, height, width = map(int, found.groups())
        if channels * height * width > MAX_VALUES:
            raise ConfigError(f"dataset {dataset!r}: more than {MAX_VALUES} values an image")
        entry = entry.sized((channels, height, width))
    return entry, root or (Path(place) if place else None)


def describe(dataset: str, root: Path | None) -> tuple[Shape, int]:
    """(C, H, W) and the number of classes."""
    entry, path = _find(dataset, root)
    return entry.describe(path)


def recommended_rate(dataset: str) -> float:
    """The learning rate of a run that names none. Raises ``ConfigError`` for an unknown dataset."""
    return _find(dataset, None)[0].learning_rate


def class_names(dataset: str, root: Path | None) -> tuple[str, ...]:
    """The classes in the order of their numbers; empty where the data does not name them."""
    entry, path = _find(dataset, root)
    return entry.names(path)


def require_same_classes(own: Sequence[str], others: Sequence[str]) -> None:
    """Raise ``DataError`` where two sides number other classes, as far as both name them. What differs goes to this
    machine's log only: a count would tell a server that guesses at names how many of them are right."""
    if not own or not others or tuple(own) == tuple(others):
        return
    more, missing = sorted(set(own) - set(others)), sorted(set(others) - set(own))
    logger.error("classes only this client has: %s; only the server: %s", ", ".join(more), ", ".join(missing))
    raise DataError("this client's classes are not the server's, or in another order; this client's log names them")


def load_client(dataset: str, partition: Partition, client: int, root: Path | None) -> Examples:
    """One client's training examples: its part of what all share, or the whole of what is its own."""
    entry, path = _find(dataset, root)
    if root is not None and entry.own:
        partition, client = Partition("iid", 1), 0
    return entry.train(path, partition, client)


def load_test(dataset: str, root: Path | None) -> Examples | None:
    """The examples held out for the server, or None where the dataset has none."""
    entry, path = _find(dataset, root)
    found = entry.test(path)
    if found is not None:
        found.x  # noqa: B018 - what cannot be read shows now, and not after a round
    return found


def has_test(dataset: str) -> bool:
    """Whether ``load_test`` gives examples of it here, without reading them."""
    entry, path = _find(dataset, None)
    return entry.held_out(path)


def require_folder(dataset: str) -> None:
    """Raise ``ConfigError`` where the name has a place that is no folder of this machine."""
    place = dataset.partition(":")[2]
    if place and not Path(place).is_dir():
        raise ConfigError(f"dataset {dataset!r}: there is no folder {Path(place).absolute()} on this machine")


def load_public(dataset: str, root: Path | None) -> Examples | None:
    """``load_test``, where the installation or the hub has these examples, so that they are anybody's.

    None where files are named, by the node or in the run's settings: a server could call a site's own files by a public
    dataset's name."""
    entry, path = _find(dataset, root)
    return None if entry.own or path is not None else entry.test(None)


def make_task(model: str, dataset: str, root: Path | None) -> Task:
    """The task all sides agree on."""
    shape, classes = describe(dataset, root)
    return Task(model, shape, classes)
