"""Who holds which training examples: index lists, computed from labels alone.

The three ways of Flower Datasets (``IidPartitioner``, ``DirichletPartitioner`` after Yurochkin et al. 2019 and Hsu et
al. 2019, ``NaturalIdPartitioner``), index for index the same as those after its seeded shuffle. Written again because
every message a client answers starts a new process and importing Flower Datasets alone takes about 2 s, a whole digits
round; a test holds the two together. Departure: no client may be empty, but Flower's least size of 10 is dropped.

>>> labels = np.arange(12) % 3
>>> [len(members(Partition("iid", clients=5), client, labels)) for client in range(5)]
[3, 3, 2, 2, 2]
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prunella.core.errors import ConfigError, DataError, of_data

Kind = Literal["iid", "dirichlet", "natural"]
Indices = NDArray[np.int64]
TRIES = 11  # as often as Flower Datasets draws


@dataclass(frozen=True)
class Partition:
    """``clients`` shares; with ``dirichlet``, each class is split by Dir(``alpha``): the smaller, the more skewed.
    With ``natural``, client k holds the k-th of the sorted ids (writer, person, site)."""

    kind: Kind
    clients: int
    alpha: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("iid", "dirichlet", "natural"):
            raise ConfigError("partition must be iid, dirichlet or natural")
        if self.clients < 1 or not self.alpha > 0 or self.seed < 0:
            raise ConfigError("a partition needs clients >= 1, alpha > 0 and seed >= 0")


def members(partition: Partition, client: int, labels: Indices, ids: NDArray[Any] | None = None) -> Indices:
    """Positions of this client's examples among ``labels`` [N]; ``ids`` [N] are the natural ids."""
    if not 0 <= client < partition.clients:
        raise DataError(f"client {client} is not one of {partition.clients} clients")
    order = np.random.default_rng(partition.seed).permutation(len(labels))
    if partition.kind == "natural":
        return order[_natural(client, ids[order] if ids is not None else None)]
    if partition.clients > len(labels):
        raise of_data(f"too few examples for {partition.clients} clients", f"there are {len(labels)}")
    if partition.kind == "iid":
        return np.array_split(order, partition.clients)[client]
    return order[_dirichlet(partition, labels[order])[client]]


def _natural(client: int, ids: NDArray[Any] | None) -> Indices:
    if ids is None:
        raise DataError("this dataset has no natural ids: use partition iid or dirichlet")
    names, holder = np.unique(ids, return_inverse=True)
    if client >= len(names):
        raise of_data(f"client {client} asks for more natural ids than there are", f"there are {len(names)}")
    return np.flatnonzero(holder == client)


def _dirichlet(partition: Partition, labels: Indices) -> list[Indices]:
    generator = np.random.default_rng(partition.seed)
    for _ in range(TRIES):
        pieces = [_split_class(np.flatnonzero(labels == label), partition, generator) for label in np.unique(labels)]
        shares = [np.concatenate(share) for share in zip(*pieces, strict=True)]
        if min(len(share) for share in shares) > 0:
            return [generator.permutation(share) for share in shares]
    raise DataError(f"Dirichlet shares leave one of {partition.clients} clients empty: raise alpha or lower clients")


def _split_class(positions: Indices, partition: Partition, generator: np.random.Generator) -> list[Indices]:
    shares = generator.dirichlet(np.full(partition.clients, partition.alpha))
    return np.split(positions, (np.cumsum(shares) * len(positions)).astype(int)[:-1])
