"""Images with labels, and batches of them.

>>> import torch
>>> data = Examples(torch.zeros(5, 1, 8, 8), torch.arange(5))
>>> [sorted(b.y.tolist()) for b in batches(data, 5, 2, PrivateGenerator(bytes(32)))]
[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from prunella.core.errors import ConfigError, DataError
from prunella.core.randomness import PrivateGenerator

TOGETHER = 1024  # pictures decoded at a time by a check


@dataclass(frozen=True)
class Pictures:
    """Encoded images that are decoded when they are used: a message trains on a few of thousands.

    ``cells`` are their bytes, or whatever ``read`` makes bytes of, in order; ``decode`` makes them float32
    [n, C, H, W] in [0, 1], or raises ``DataError``; it is a function of the bytes and of ``shape``.
    """

    cells: Sequence[Any]
    decode: Callable[[Sequence[Any]], Tensor]
    shape: tuple[int, ...]
    read: Callable[[Any], bytes] = bytes

    def take(self, chosen: Tensor) -> "Pictures":
        places = (chosen.nonzero().flatten() if chosen.dtype == torch.bool else chosen).tolist()
        return replace(self, cells=[self.cells[place] for place in places])

    def encoded(self) -> Iterable[bytes]:
        return (self.read(cell) for cell in self.cells)

    def digest(self) -> str:
        """SHA-256 of all that they are decoded from, and of their order."""
        whole = hashlib.sha256(repr((len(self.cells), self.shape)).encode())
        for piece in self.encoded():
            whole.update(len(piece).to_bytes(8) + piece)
        return whole.hexdigest()


class Examples:
    """``x`` [N, C, H, W] float32 in [0, 1], ``y`` [N] int64. ``raw`` [N] int64, where the examples are a client's own:
    a digest of the bytes each was decoded from (``raw_digests``), the same whatever it is decoded to.

    Made of ``Pictures``, ``x`` and ``raw`` are what these give, when first asked for.
    """

    def __init__(self, x: Tensor | Pictures, y: Tensor, raw: Tensor | None = None) -> None:
        self.y = y
        self.pictures = x if isinstance(x, Pictures) else None
        self._x, self._raw = None if isinstance(x, Pictures) else x, raw

    def __len__(self) -> int:
        return len(self.y)

    @property
    def x(self) -> Tensor:
        if self._x is None:
            assert self.pictures is not None
            self._x = self.pictures.decode(self.pictures.cells)
        return self._x

    @property
    def raw(self) -> Tensor | None:
        if self._raw is None and self.pictures is not None:
            self._raw = raw_digests(self.pictures.encoded())
        return self._raw

    def take(self, chosen: Tensor) -> "Examples":
        """Those at the positions, or under the truth values, ``chosen``."""
        part = Examples(self.x[chosen] if self.pictures is None else self.pictures.take(chosen), self.y[chosen])
        part._x = None if self._x is None else self._x[chosen]
        part._raw = None if self._raw is None else self._raw[chosen]
        return part

    def check(self) -> None:
        """Decode every picture once, keeping none. Raises ``DataError``."""
        if self._x is None and self.pictures is not None:
            cells = self.pictures.cells
            try:
                for start in range(0, len(cells), TOGETHER):
                    self.pictures.decode(cells[start : start + TOGETHER])
            except DataError:
                self.pictures.decode(cells)  # which says how many, or which, of all
                raise


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
    if steps * size >= len(examples):
        examples.x  # noqa: B018 - every picture is used, some of them again: decoded once
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
