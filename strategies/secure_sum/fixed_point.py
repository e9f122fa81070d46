"""Numbers as masked sums need them: whole numbers modulo 2^(8·width), wide enough that no sum wraps.

Client i has the weight n_i (its example count, at most ``weight``) and values v_i. It sends n_i·round(v_i / GRID). The
width in bytes is the smallest in which the sum over ``clients`` fits, sign included, where all values lie within
±``range``. So the sum of the words, read back, is exactly the sum of the rounded products, and a round's mean differs
from that of the exact values by at most half a grid step, 2^-21.

A value outside the range is not refused, and not cut: the range is the server's, and a client that refuses what is
above it, asked again under one range after the other, tells its own value bit by bit. The words are what they are
modulo 2^(8·width), a function of the sum alone; whether that is one of values within the range is seen when it is
opened (``vector.from_sum``).

Rounding is to the nearest, ties to even. Flower's ``quantize`` draws from NumPy's global generator, clips in silence
and keeps 22 bits of the range.

>>> form = FixedPoint(range=16.0, weight=65536, clients=10)
>>> form.width, decode(encode(np.array([0.5, -2.0]), 3, form), form).tolist() == [3 * 2**19, -3 * 2**21]
(6, True)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prunella.core.errors import ConfigError

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
GRID = 2.0**-20  # of an update's values: a millionth; an update of float32 values near 1 has steps of 2^-23
WIDEST = 7  # bytes: 64-bit words then hold a sum and its sign with room


@dataclass(frozen=True)
class FixedPoint:
    """What all clients of a round and the server agree on. Raises ``ConfigError`` where 56 bits do not hold a sum."""

    range: float
    weight: int
    clients: int

    def __post_init__(self) -> None:
        if self.width > WIDEST:
            raise ConfigError(
                f"sums of {self.clients} clients within ±{self.range:g} and {self.weight} examples need "
                f"{8 * self.width} bits: lower secure-sum.range or secure-sum.examples"
            )

    @property
    def most(self) -> int:
        """The largest magnitude of one client's value, in grid steps."""
        return steps(self.range)

    @property
    def width(self) -> int:
        """Bytes of a word."""
        largest = self.clients * self.weight * max(self.most, 1)
        return ((2 * largest + 1).bit_length() + 7) // 8

    @property
    def ones(self) -> int:
        """The modulus less one."""
        return (1 << 8 * self.width) - 1


def steps(range: float) -> int:
    """Grid steps from 0 to the end of a range; of one that no sum fits, as many as no sum fits."""
    return int(min(range / GRID, 2.0 ** (8 * WIDEST)))


def capacity(range: float, weight: int) -> int:
    """The most clients whose sum 56 bits hold.

    >>> capacity(16.0, 65536), capacity(1e9, 65536)
    (32767, 0)
    """
    return ((1 << 8 * WIDEST) - 2) // (2 * weight * max(steps(range), 1))


def encode(values: NDArray[np.float64], weight: int, form: FixedPoint) -> Words:
    """``weight`` · round(values / GRID) as words, whatever the values: without one where any is not finite."""
    if not np.isfinite(values).all():
        values = np.zeros_like(values)
    steps: Integers = np.rint(np.fmod(values, GRID * 2.0 ** (8 * WIDEST)) / GRID).astype(np.int64)
    steps *= weight  # whole numbers modulo 2^64, so of any width below that
    return reduced(steps.view(np.uint64), form)


def reduced(words: Words, form: FixedPoint) -> Words:
    """Words modulo 2^(8·width)."""
    kept: Words = words & np.uint64(form.ones)
    return kept


def decode(words: Words, form: FixedPoint) -> Integers:
    """The signed whole numbers that words stand for: those above half the modulus are negative."""
    shift = np.uint64(64 - 8 * form.width)
    signed: Integers = (words << shift).view(np.int64) >> shift.astype(np.int64)
    return signed


def pack(words: Words, form: FixedPoint) -> bytes:
    """The low ``width`` bytes of every word, little endian."""
    return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : form.width].tobytes()


def unpack(data: bytes, form: FixedPoint) -> Words:
    """The inverse of ``pack``, of a length that the caller has checked."""
    padded = np.zeros((len(data) // form.width, 8), np.uint8)
    padded[:, : form.width] = np.frombuffer(data, np.uint8).reshape(-1, form.width)
    return padded.view("<u8").reshape(-1).astype(np.uint64)
