"""Scikit-learn's bundled digits: 1797 real 8x8 grey images of handwritten digits, values 0 to 16, here divided by 16.

The file inside scikit-learn is read directly (``load_digits`` reads the same one), because importing
``sklearn.datasets`` takes over a second and every message a client answers starts a new process. The held-out fifth
is a fixed random choice: neighbours in the file are by one writer, and its labels come in runs.
"""

import gzip
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from prunella.core.errors import DataError
from prunella.tasks.datasets.dataset import Dataset
from prunella.tasks.examples import Examples, raw_digests
from prunella.tasks.models.layers import Shape
from prunella.tasks.partition import Partition, members

SHAPE: Shape = (1, 8, 8)
CLASSES = 10
TEST_SHARE = 0.2
LEVELS = 16.0


@lru_cache(maxsize=1)
def everything() -> Examples:
    """All digits in file order."""
    spec = find_spec("sklearn")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    path = folder / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataError("scikit-learn's digits.csv.gz is missing: install scikit-learn")
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1] / LEVELS).reshape(-1, *SHAPE)
    raw = raw_digests(row.tobytes() for row in table)
    return Examples(images, torch.from_numpy(table[:, -1]).long(), raw)


def split() -> tuple[Examples, Examples]:
    """Training and test examples, the same everywhere."""
    digits = everything()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(digits)))
    held_out = round(TEST_SHARE * len(digits))
    test, train = order[:held_out], order[held_out:]
    return digits.take(train), digits.take(test)


def client_share(path: Path | None, partition: Partition, client: int) -> Examples:
    train = split()[0]
    mine = torch.from_numpy(members(partition, client, train.y.numpy()))
    return train.take(mine)


DIGITS = Dataset(lambda path: (SHAPE, CLASSES), client_share, lambda path: split()[1])
