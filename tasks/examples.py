"""Images with labels, and batches of them.

>>> import torch
>>> data = Examples(torch.zeros(5, 1, 8, 8), torch.arange(5))
>>> [sorted(b.y.tolist()) for b in batches(data, 5, 2, PrivateGenerator(bytes(32)))]
[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.errors import ConfigError, DataError
from prunella.core.randomness import PrivateGenerator


@dataclass(frozen=True)
class Examples:
    """``x`` [N, C, H, W] float32 in [0, 1], ``y`` [N] int64. ``raw`` [N] int64, where the examples are a client's own:
    a digest of the bytes each was decoded from (``raw_digests``), the same whatever it is decoded to."""

    x: Tensor
    y: Tensor
    raw: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, chosen: Tensor) -> "Examples":
        """Those at the positions, or under the truth values, ``chosen``."""
        return Examples(self.x[chosen], self.y[chosen], None if self.raw is None else self.raw[chosen])


def raw_digests(pieces: Iterable[bytes]) -> Tensor:
    """64 bits of BLAKE2b for each of ``pieces``: int64 [N].

    >>> one, two, three = raw_digests([b"a", b"b", b"a"]).tolist()
    >>> one == three, one == two
    (True, False)
    """
    each = b"".join(hashlib.blake2b(piece, digest_size=8).digest() for piece in pieces)
    return torch.frombuffer(bytearray(each), dtype=torch.int64) if each else torch.empty(0, dtype=torch.int64)


def batches(examples: Examples, batch_size: int, steps: int, generator: PrivateGenerator) -> Iterator[Examples]:
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
            queue = torch.cat([queue, generator.permutation(len(examples))])
        chosen, queue = queue[:size], queue[size:]
        yield examples.take(chosen)


def poisson_batches(examples: Examples, batch_size: int, steps: int, generator: PrivateGenerator) -> Iterator[Examples]:
    """Exactly ``steps`` batches in which every example takes part with probability ``batch_size`` / N, independently.

    This is Poisson sampling, which accountants of differential privacy assume; a batch may be empty.
    """
    if not len(examples):
        raise DataError("there are no examples to train on")
    if batch_size < 1:
        raise ConfigError("batch-size must be at least 1")
    rate = min(1.0, batch_size / len(examples))
    for _ in range(steps):
        chosen = generator.uniform(len(examples)) < rate
        yield examples.take(chosen)
