"""Images with labels, and batches of them.

>>> import torch
>>> data = Examples(torch.zeros(5, 1, 8, 8), torch.arange(5))
>>> [sorted(b.y.tolist()) for b in batches(data, 5, 2, torch.Generator().manual_seed(0))]
[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from core.errors import ConfigError, DataError


@dataclass(frozen=True)
class Examples:
    """``x`` [N, C, H, W] float32 in [0, 1], ``y`` [N] int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


def batches(examples: Examples, batch_size: int, steps: int, generator: Generator) -> Iterator[Examples]:
    """Exactly ``steps`` batches of ``batch_size`` (of all examples where there are fewer), in reshuffled epochs.

    A batch may span two epochs, so that every example is seen before any is seen a second time more than another.
    """
    if not len(examples):
        raise DataError("there are no examples to train on")
    if batch_size < 1:
        raise ConfigError("batch-size must be at least 1")
    size = min(batch_size, len(examples))
    queue = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(queue) < size:
            queue = torch.cat([queue, torch.randperm(len(examples), generator=generator)])
        chosen, queue = queue[:size], queue[size:]
        yield Examples(examples.x[chosen], examples.y[chosen])


def poisson_batches(examples: Examples, batch_size: int, steps: int, generator: Generator) -> Iterator[Examples]:
    """Exactly ``steps`` batches in which every example is with probability ``batch_size`` / N, on its own each time.

    This is the sampling that accountants of differential privacy amplify by; a batch may be empty.
    """
    if not len(examples):
        raise DataError("there are no examples to train on")
    if batch_size < 1:
        raise ConfigError("batch-size must be at least 1")
    rate = min(1.0, batch_size / len(examples))
    for _ in range(steps):
        chosen = torch.rand(len(examples), generator=generator, dtype=torch.float64) < rate
        yield Examples(examples.x[chosen], examples.y[chosen])
