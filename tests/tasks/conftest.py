"""What the tests of tasks share."""

from collections.abc import Callable

import pytest
import torch

from prunella.tasks.models.layers import Shape


@pytest.fixture(scope="session")
def parameters() -> Callable[..., int]:
    """Counts a builder's parameters without allocating them."""

    def count(builder: Callable[..., torch.nn.Module], shape: Shape, classes: int) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in builder(shape, classes).parameters())

    return count
