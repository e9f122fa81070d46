"""What a dataset is: three functions of where it lies. ``None`` means its own place (bundled, or the hub)."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from prunella.tasks.examples import Examples
from prunella.tasks.models.layers import Shape
from prunella.tasks.partition import Partition


class Dataset(NamedTuple):
    """``describe`` gives (C, H, W) and the number of classes, ``train`` one client's share, ``test`` the examples held
    out for the server, or None where there are none, ``names`` those of the classes in their order, where the data has
    any, ``held_out`` whether there are test examples, without reading them. All raise ``DataError`` when the data is
    not as described. ``own``: what a node's own configuration points at
    is all its own, and not a copy of what all clients share. ``sized`` gives the same dataset with images of another
    shape, where they are resized anyway. ``learning_rate`` is one at which ``cnn`` learns it in the default ten rounds
    (``tasks.recommended``)."""

    describe: Callable[[Path | None], tuple[Shape, int]]
    train: Callable[[Path | None, Partition, int], Examples]
    test: Callable[[Path | None], Examples | None]
    learning_rate: float
    names: Callable[[Path | None], tuple[str, ...]] = lambda _: ()
    held_out: Callable[[Path | None], bool] = lambda _: True
    own: bool = False
    sized: "Callable[[Shape], Dataset] | None" = None
