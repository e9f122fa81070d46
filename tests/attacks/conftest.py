"""Digits, a small model and what a server sees of it."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from prunella.attacks.score.control import undefended_view
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

TASK = Task("cnn", (1, 8, 8), 10)
Batch = Callable[[int, int], PrivateBatch]


@pytest.fixture(scope="session")
def digits() -> PrivateBatch:
    bunch = load_digits()
    x = torch.tensor(bunch.images / 16, dtype=torch.float32).unsqueeze(1)
    return PrivateBatch(x, torch.tensor(bunch.target, dtype=torch.int64))


@pytest.fixture(scope="session")
def batch(digits: PrivateBatch) -> Batch:
    """``batch(first, count)``: digits that no test trains on."""
    return lambda first, count=1: PrivateBatch(
        digits.x[1500 + first :][:count].clone(), digits.y[1500 + first :][:count].clone()
    )


@pytest.fixture(scope="session")
def same_label(digits: PrivateBatch) -> tuple[PrivateBatch, PrivateBatch]:
    """Two images of one class."""
    rows = (digits.y == 3).nonzero().flatten()[-2:]
    return PrivateBatch(digits.x[rows[:1]], digits.y[rows[:1]]), PrivateBatch(digits.x[rows[1:]], digits.y[rows[1:]])


@pytest.fixture(scope="session")
def task() -> Task:
    return TASK


@pytest.fixture(scope="session")
def fresh() -> tuple[Tree, Tree]:
    return initial(TASK, seed=0)


@pytest.fixture(scope="session")
def trained(digits: PrivateBatch) -> tuple[Tree, Tree]:
    """A model after 100 steps of 64 digits: accuracy about 0.85."""
    module, (params, buffers), generator = TASK.build(), initial(TASK, seed=0), stream(0, purpose="training")
    velocity: Tree = {}
    for _ in range(100):
        rows = torch.randint(0, 1400, (64,), generator=generator)
        _, gradient, buffers = loss_and_gradient(module, params, buffers, digits.x[rows], digits.y[rows])
        params, velocity = sgd_step(params, gradient, velocity, Sgd(0.1), None)
    return params, buffers


@pytest.fixture
def view(fresh: tuple[Tree, Tree], batch: Batch) -> ServerView:
    """One undefended image on the fresh model."""
    return undefended_view(TASK, *fresh, batch(0, 1))


@pytest.fixture(scope="session")
def photographs(shared_data: Path) -> Callable[..., PrivateBatch]:
    """``photographs(name, count)``: test images of ``mnist`` or ``cifar10``, from the fourth."""

    def load(name: str, count: int = 1) -> PrivateBatch:
        rows = parquet.read_table(shared_data / name / "test.parquet").slice(3, count).to_pylist()
        cells = [next(cell for key, cell in row.items() if key != "label") for row in rows]
        pixels = [np.array(Image.open(io.BytesIO(cell["bytes"])), dtype=np.float32) / 255 for cell in cells]
        x = torch.tensor(np.stack([p[None] if p.ndim == 2 else p.transpose(2, 0, 1) for p in pixels]))
        return PrivateBatch(x, torch.tensor([row["label"] for row in rows]))

    return load


SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
