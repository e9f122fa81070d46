"""1797 real 8x8 grey images of handwritten digits, values 0 to 16, here divided by 16; scikit-learn's ``load_digits``.

They lie beside this file (UCI Machine Learning Repository, CC BY 4.0), so that the default job needs no other package
and no network. The held-out fifth is a fixed random choice: neighbours in the file are by one writer, and its labels
come in runs.
"""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from prunella.tasks.datasets.dataset import Dataset
from prunella.tasks.examples import Examples, raw_digests
from prunella.tasks.models.layers import Shape
from prunella.tasks.partition import Partition, members

FILE = Path(__file__).with_name("digits.json")
SHAPE: Shape = (1, 8, 8)
CLASSES = 10
TEST_SHARE = 0.2
LEVELS = 16.0


@lru_cache(maxsize=1)
def everything() -> Examples:
    """All digits in file order."""
    rows = json.loads(FILE.read_text())["digits"]  # 64 pixels and the label a row, each one character: 0 to 9, a to g
    codes = np.frombuffer("".join(rows).encode(), np.uint8).reshape(len(rows), -1)
    table = np.where(codes < ord("a"), codes - ord("0"), codes - ord("a") + 10).astype(np.float32)
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


DIGITS = Dataset(lambda path: (SHAPE, CLASSES), client_share, lambda path: split()[1], learning_rate=0.25)
