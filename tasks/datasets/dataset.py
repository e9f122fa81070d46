"""What a dataset is: three functions of where it lies. ``None`` means its own place (bundled, or the hub)."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tasks.examples import Examples
from tasks.models.layers import Shape
from tasks.partition import Partition


class Dataset(NamedTuple):
    """``describe`` gives (C, H, W) and the number of classes, ``train`` one client's share, ``test`` the examples held
    out for the server, or None where there are none. All raise ``DataError`` when the data is not as described."""

    describe: Callable[[Path | None], tuple[Shape, int]]
    train: Callable[[Path | None, Partition, int], Examples]
    test: Callable[[Path | None], Examples | None]
