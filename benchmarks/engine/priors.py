"""The priors of the attacks that have one (``ggl``, ``rog``), learnt from training images; test images are attacked.

A process learns them once, when a cell first asks for them, and deletes them when it ends.
"""

import functools
import tempfile
from pathlib import Path

from prunella.attacks import ggl, rog
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.data import Examples, Partition, describe, load_client

LEARNT = ("ggl", "rog")
PUBLIC = 5000  # images they are learnt from, at most


def learn(classes: int, train: Examples, folder: Path) -> None:
    """Both priors, as files in ``folder``."""
    draw, x, y = stream(0, purpose="prior"), train.x[:PUBLIC], train.y[:PUBLIC]
    ggl.save(folder / "ggl.safetensors", ggl.train(PrivateBatch(x, y), classes, draw))
    rog.save(folder / "rog.safetensors", rog.train(x, draw, epochs=10))


@functools.lru_cache(maxsize=4)
def _learnt(dataset: str) -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory()  # there as long as the cache holds it
    train = load_client(dataset, Partition("iid", clients=1), 0, None)
    learn(describe(dataset, None)[1], train, Path(folder.name))
    return folder


def prior(attack: str, dataset: str) -> str:
    """The file an attack's setting ``prior`` names."""
    return str(Path(_learnt(dataset).name) / f"{attack}.safetensors")
