"""Sections of a coded tree: bytes whose size both sides know beforehand, compressed where that helps.

A section is one byte, ``RAW`` or ``ZSTD``; raw bytes follow as they are, a zstd frame after its length (u32). Numbers
are cut into planes first, byte 0 of every value, then byte 1, …: sign and exponent of neighbouring values are alike,
mantissas are noise, and each plane is a section of its own, so that noise is stored and not searched.

zstd runs as an entropy coder: a tiny hash table and matches of seven bytes at least. Level 1 finds chance matches in
such data which cost more than they save: on the sign plane of a ResNet18 update it needed 3 to 4 times the time for 5
to 8 % more bytes.

Reading trusts nothing: the size a frame announces must be the size that is expected *before* anything is allocated, so
a few bytes cannot ask for more memory than the model needs. Errors are ``WireError``; they name what was read.

Writing gives lists of buffers, so that the bytes of a blob are copied once, when it is joined.

>>> section = b"".join(pack(bytes(1000)))
>>> len(section) < 40, unpack(Reader(section), 1000, "zeros") == bytes(1000)
(True, True)
"""

import struct

import numpy as np
import zstandard
from numpy.typing import NDArray

from core.errors import WireError

Bytes = NDArray[np.uint8]
Parts = list[bytes | memoryview]
RAW, ZSTD = 0, 1
SMALLEST = 64  # a zstd frame of fewer bytes is never smaller
_LENGTH = struct.Struct("<I")
_HUFFMAN = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, window_log=17, hash_log=6, chain_log=6, search_log=1, min_match=7
)


class Reader:
    """A cursor over untrusted bytes: every read is checked against what is left."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.at = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise WireError("length", f"{count} bytes were announced, {len(self.data) - self.at} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def length(self) -> int:
        return int(_LENGTH.unpack(self.take(_LENGTH.size))[0])

    def end(self) -> None:
        if self.at != len(self.data):
            raise WireError("length", f"{len(self.data) - self.at} bytes too many")


def prefixed(parts: Parts) -> Parts:
    """The parts after their length."""
    return [_LENGTH.pack(sum(len(part) for part in parts)), *parts]


def pack(data: bytes | memoryview) -> Parts:
    """A section; nothing for nothing, and never more than one byte above raw."""
    if len(data) >= SMALLEST:
        packed = zstandard.ZstdCompressor(compression_params=_HUFFMAN).compress(data)
        if _LENGTH.size + len(packed) < len(data):
            return [bytes([ZSTD]), *prefixed([packed])]
    return [bytes([RAW]), data] if data else []


def _decompress(frame: memoryview, size: int, name: str) -> bytes:
    try:
        if zstandard.get_frame_parameters(frame).content_size != size:
            raise WireError("length", f"{name}: compressed bytes announce another size than {size}")
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError("malformed", f"{name}: the compressed bytes are damaged") from error
    if len(data) != size:
        raise WireError("length", f"{name}: compressed bytes hold {len(data)} bytes, not {size}")
    return data


def unpack(reader: Reader, size: int, name: str) -> bytes | memoryview:
    """The ``size`` bytes of a section."""
    if not size:
        return b""
    (codec,) = reader.take(1)
    if codec == RAW:
        return reader.take(size)
    if codec != ZSTD:
        raise WireError("malformed", f"{name}: unknown codec of a section")
    return _decompress(reader.take(reader.length()), size, name)


def pack_bits(bits: NDArray[np.bool_]) -> Parts:
    """A section with one bit for every flag, the last byte padded with zeros."""
    return pack(np.packbits(bits).data)


def unpack_bits(reader: Reader, count: int, name: str) -> NDArray[np.bool_]:
    packed = np.frombuffer(unpack(reader, (count + 7) // 8, name), dtype=np.uint8)
    bits = np.unpackbits(packed)
    if bits[count:].any():
        raise WireError("mask", f"{name}: padding bits are set")
    return bits[:count].view(np.bool_)


def pack_numbers(numbers: NDArray[np.signedinteger]) -> Parts:
    """One section for every byte of the numbers' type."""
    columns: Bytes = np.ascontiguousarray(numbers).view(np.uint8)
    size = numbers.itemsize
    return [part for plane in range(size) for part in pack(np.ascontiguousarray(columns[plane::size]).data)]


def unpack_numbers(reader: Reader, count: int, size: int, name: str) -> NDArray[np.signedinteger]:
    """``count`` integers of ``size`` bytes."""
    numbers: NDArray[np.signedinteger] = np.empty(count, f"i{size}")
    columns: Bytes = numbers.view(np.uint8)
    for plane in range(size):
        columns[plane::size] = np.frombuffer(unpack(reader, count, name), dtype=np.uint8)
    return numbers
