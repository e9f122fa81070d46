"""What the tests of this room share."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from prunella.tasks.models.layers import Shape


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real images beside the repository, which are no part of it."""
    folder = Path(__file__).parents[2].parent / "shared" / "data"
    if not (folder / "mnist" / "train.parquet").is_file():
        pytest.skip("no ../shared/data with MNIST and CIFAR-10 beside the repository")
    return folder


@pytest.fixture(scope="session")
def parameters() -> Callable[..., int]:
    """Counts a builder's parameters without allocating them."""

    def count(builder: Callable[..., torch.nn.Module], shape: Shape, classes: int) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in builder(shape, classes).parameters())

    return count
