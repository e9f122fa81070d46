"""Examples by the name of their dataset.

A name is an entry of ``DATASETS``, perhaps with a place after a colon: ``digits``, ``imagefolder:/data/site-a``,
``parquet:/data/cells``, ``mnist:/data/mnist`` (a local copy of the hub's Parquet files). ``root``, a node's own
setting, goes before the place in the name, since each site keeps its data where it likes.

>>> describe("digits", None)
((1, 8, 8), 10)
>>> len(load_client("digits", Partition("iid", clients=4), 0, None))
360
"""

from pathlib import Path

from core.errors import unknown
from tasks.datasets import DATASETS
from tasks.datasets.dataset import Dataset
from tasks.examples import Examples, batches
from tasks.models.layers import Shape
from tasks.partition import Partition
from tasks.task import Task

__all__ = ["Examples", "Partition", "batches", "describe", "load_client", "load_test", "make_task"]


def _find(dataset: str, root: Path | None) -> tuple[Dataset, Path | None]:
    name, _, place = dataset.partition(":")
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name], root or (Path(place) if place else None)


def describe(dataset: str, root: Path | None) -> tuple[Shape, int]:
    """(C, H, W) and the number of classes."""
    entry, path = _find(dataset, root)
    return entry.describe(path)


def load_client(dataset: str, partition: Partition, client: int, root: Path | None) -> Examples:
    """One client's training examples."""
    entry, path = _find(dataset, root)
    return entry.train(path, partition, client)


def load_test(dataset: str, root: Path | None) -> Examples | None:
    """The examples held out for the server, or None where the dataset has none."""
    entry, path = _find(dataset, root)
    return entry.test(path)


def make_task(model: str, dataset: str, root: Path | None) -> Task:
    """The task all sides agree on."""
    shape, classes = describe(dataset, root)
    return Task(model, shape, classes)
