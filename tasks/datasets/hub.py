"""Datasets of the Hugging Face hub, through Flower Datasets and its partitioners, or from a local Parquet copy.

Columns, sizes and classes stand in the table of ``tasks.datasets``, so the server describes a task without any data.
A local copy goes through ``tasks.datasets.parquet`` and yields the same shares. Only names are sent to the hub.
"""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prunella.core.errors import DataError
from prunella.core.extras import require
from prunella.tasks.datasets import parquet
from prunella.tasks.datasets.dataset import Dataset
from prunella.tasks.datasets.parquet import Table
from prunella.tasks.examples import Examples
from prunella.tasks.models.layers import Shape
from prunella.tasks.partition import Partition

if TYPE_CHECKING:
    from datasets import Dataset as HubRows
    from flwr_datasets.partitioner import Partitioner


class UnreachableHub(DataError):
    """No network, and no copy from before."""


@dataclass(frozen=True)
class Hub:
    """A dataset's name on the hub, its subset, and whether it has a split named ``test``."""

    name: str
    table: Table
    subset: str | None = None
    has_test: bool = True


def partitioner(partition: Partition, table: Table) -> "Partitioner":
    """Flower Datasets' partitioner for a ``Partition``."""
    require("vision", "flwr_datasets")
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, NaturalIdPartitioner

    if partition.kind == "iid":
        return IidPartitioner(partition.clients)
    if partition.kind == "natural":
        if table.natural is None:
            raise DataError("this dataset has no natural ids: use partition iid or dirichlet")
        return NaturalIdPartitioner(table.natural)
    return DirichletPartitioner(
        partition.clients, table.label, partition.alpha, min_partition_size=1, seed=partition.seed
    )


def _examples(rows: "HubRows", table: Table) -> Examples:
    from datasets import Image

    labels = parquet.checked_labels(np.asarray(rows[table.label]), table.classes)
    cells = rows.cast_column(table.image, Image(decode=False))[table.image]
    return parquet.decoded(list(parquet.encoded(cells)), table, labels)


def _federated(hub: Hub, partitioners: "dict[str, Partitioner | int]", seed: int) -> Any:
    require("vision", "flwr_datasets")
    from flwr_datasets import FederatedDataset

    return FederatedDataset(dataset=hub.name, subset=hub.subset, partitioners=partitioners, seed=seed)


@contextmanager
def _reached(hub: Hub) -> Iterator[None]:
    """Raise ``UnreachableHub`` for an error of the network, in place of the two lines that the hub's client logs of
    each of its tries. A disk that is full or may not be written to is none, and its path stays here."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise DataError(f"{hub.name} cannot be kept in the hub's cache: {os.strerror(error.errno)}") from None
        raise UnreachableHub(
            f"{hub.name} cannot be fetched from the hub and is not cached: put its Parquet files (train*.parquet, "
            "test*.parquet) in a folder and name it behind the data set, as in 'mnist:/folder', or as the node's own "
            "data root"
        ) from None


def fetch_train(hub: Hub, partition: Partition, client: int) -> Examples:
    """One client's share. Raises ``DataError`` when the hub cannot be reached, and for a client who is not there."""
    if not 0 <= client < partition.clients:
        raise DataError(f"client {client} is not one of {partition.clients} clients")
    federated = _federated(hub, {"train": partitioner(partition, hub.table)}, partition.seed)
    try:
        with _reached(hub):
            rows = federated.load_partition(client)
    except UnreachableHub:
        raise
    except (ValueError, KeyError, IndexError):
        raise DataError(f"{hub.name} has no share for client {client}: fewer clients, or a larger alpha") from None
    return _examples(rows, hub.table)


def fetch_test(hub: Hub) -> Examples | None:
    if not hub.has_test:
        return None
    with _reached(hub):
        rows = _federated(hub, {"train": 1}, 0).load_split("test")
    return _examples(rows, hub.table)


def _describe(hub: Hub, path: Path | None) -> tuple[Shape, int]:
    return hub.table.shape, hub.table.classes


def _train(hub: Hub, path: Path | None, partition: Partition, client: int) -> Examples:
    return parquet.train(hub.table, path, partition, client) if path else fetch_train(hub, partition, client)


def _test(hub: Hub, path: Path | None) -> Examples | None:
    return parquet.test(hub.table, path) if path else fetch_test(hub)


def _held_out(hub: Hub, path: Path | None) -> bool:
    return parquet.held_out(path) if path else hub.has_test


def from_hub(hub: Hub, learning_rate: float) -> Dataset:
    how = partial(_describe, hub), partial(_train, hub), partial(_test, hub)
    return Dataset(*how, learning_rate=learning_rate, held_out=partial(_held_out, hub))
