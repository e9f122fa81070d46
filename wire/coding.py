"""Sections of a coded tree: bytes whose size both sides know beforehand, compressed where that helps.

A section is one byte, ``RAW`` or ``ZSTD``; raw bytes follow as they are, a zstd frame after its length (u32). Numbers
are cut into planes first, byte 0 of every value, then byte 1, …: sign and exponent of neighbouring values are alike,
mantissas are noise, and each plane is a section of its own, so that noise is stored and not searched.

zstd runs as an entropy coder: a tiny hash table and matches of seven bytes at least. Level 1 finds chance matches in
such data which cost more than they save: on the sign plane of a ResNet18 update it needed 3 to 4 times the time for 5
to 8 % more bytes.

Flags are packed eight a byte. Where less than one in ``FEW`` is set, the gaps between the set ones travel instead:
their number (u32) and their planes, of one byte or of two. zstd spends at least one bit on a byte of eight flags, which
from there on is more than their entropy; the gaps stay near it.

Reading trusts nothing: the size a frame announces must be the size that is expected *before* anything is allocated, so
a few bytes cannot ask for more memory than the model needs. Errors are ``WireError``; they name what was read.

Writing gives lists of buffers, so that the bytes of a blob are copied once, when it is joined.

>>> section = b"".join(pack(bytes(1000)))
>>> len(section) < 40, unpack(Reader(section), 1000, "zeros") == bytes(1000)
(True, True)
"""

import struct
import threading

import numpy as np
import zstandard
from numpy.typing import NDArray

from prunella.core.errors import WireError

Bytes = NDArray[np.uint8]
Places = NDArray[np.intp]
Parts = list[bytes | memoryview]
RAW, ZSTD = 0, 1
GAPS = {1: 2, 2: 3}  # the codec by the bytes of a gap
FEW = 12  # gaps where less than one flag in so many is set: zstd gives a byte of eight flags one bit at least
LONG_GAP = 128  # mean gap from which on two bytes cost less than the larger number of gaps that fill one
SMALLEST = 64  # a zstd frame of fewer bytes is never smaller
_LENGTH = struct.Struct("<I")
_HUFFMAN = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, window_log=17, hash_log=6, chain_log=6, search_log=1, min_match=7
)


class _Contexts(threading.local):
    """A zstd context is one thread's, and making one for every section costs a tenth of the time."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(compression_params=_HUFFMAN)
        self.decompressor = zstandard.ZstdDecompressor()


_own = _Contexts()


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

    def peek(self) -> int:
        """The next byte, or -1."""
        return self.data[self.at] if self.at < len(self.data) else -1

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
        packed = _own.compressor.compress(data)
        if _LENGTH.size + len(packed) < len(data):
            return [bytes([ZSTD]), *prefixed([packed])]
    return [bytes([RAW]), data] if data else []


def _decompress(frame: memoryview, size: int, name: str) -> bytes:
    try:
        if zstandard.get_frame_parameters(frame).content_size != size:
            raise WireError("length", f"{name}: compressed bytes announce another size than {size}")
        data = _own.decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
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


def places_of(bits: NDArray[np.bool_]) -> Places:
    """``np.flatnonzero(bits)``, faster.

    NumPy looks for the next one with memchr where at most a tenth are set, and above runs a loop without branches. That
    loop is the faster one from about 1 in 30 on: ones at the end make NumPy take it.

    >>> places_of(np.array([True, False, True])).tolist()
    [0, 2]
    """
    kept = int(np.count_nonzero(bits))
    if kept * 30 < bits.size or kept * 10 > bits.size:
        return np.flatnonzero(bits)
    return np.flatnonzero(np.concatenate([bits, np.ones(bits.size // 9, np.bool_)]))[:kept]


def _gaps(places: Places, width: int) -> NDArray[np.unsignedinteger]:
    """Coordinates between one kept and the next. The type's largest number stands for as many and none kept after."""
    most = 2 ** (8 * width) - 1
    gaps = np.empty(places.size, np.int32)
    np.subtract(places[1:], places[:-1], out=gaps[1:], casting="same_kind")
    gaps[:1] = places[:1] + 1
    gaps -= 1
    if gaps.size and gaps.max() >= most:
        whole, rest = np.divmod(gaps, most)
        gaps = np.full(gaps.size + int(whole.sum()), most)
        gaps[np.cumsum(whole + 1) - 1] = rest
    return gaps.astype(f"u{width}")


def pack_bits(bits: NDArray[np.bool_], places: Places | None = None) -> Parts:
    """A section with one bit for every flag, the last byte padded with zeros; or the gaps, where few flags are set.

    ``places`` are those of the set flags, if the caller has them already.
    """
    raw, kept = (bits.size + 7) // 8, int(np.count_nonzero(bits)) if places is None else places.size
    width = 1 if kept * LONG_GAP > bits.size else 2
    if kept * FEW < bits.size:
        gaps = _gaps(places_of(bits) if places is None else places, width)
        if gaps.nbytes + width + 1 + _LENGTH.size < raw:
            return [bytes([GAPS[width]]), _LENGTH.pack(gaps.size), *pack_numbers(gaps)]
    return pack(np.packbits(bits).data)


def unpack_places(reader: Reader, count: int, name: str) -> Places | None:
    """The places of the set among ``count`` flags, where gaps follow in the reader; None where flags do."""
    width = next((width for width, codec in GAPS.items() if count and reader.peek() == codec), 0)
    if not width:
        return None
    reader.take(1)
    entries = reader.length()
    if entries * width >= (count + 7) // 8:
        raise WireError("length", f"{name}: {entries} gaps are more than a mask of {count} is coded with")
    most = 2 ** (8 * width) - 1
    gaps = unpack_numbers(reader, entries, width, name).view(f"u{width}")
    ends = gaps < most
    places: Places = np.cumsum(gaps + ends.astype(np.intp))
    if places.size and places[-1] > count:
        raise WireError("mask", f"{name}: the gaps lead out of the tensor")
    found: Places = places[ends] - 1
    return found


def unpack_bits(reader: Reader, count: int, name: str) -> NDArray[np.bool_]:
    places = unpack_places(reader, count, name)
    if places is not None:
        sparse = np.zeros(count, np.bool_)
        sparse[places] = True
        return sparse
    packed = np.frombuffer(unpack(reader, (count + 7) // 8, name), dtype=np.uint8)
    bits = np.unpackbits(packed)
    if bits[count:].any():
        raise WireError("mask", f"{name}: padding bits are set")
    return bits[:count].view(np.bool_)


def pack_numbers(numbers: NDArray[np.integer]) -> Parts:
    """One section for every byte of the numbers' type, the lowest first."""
    if numbers.itemsize == 1:
        return pack(np.ascontiguousarray(numbers).view(np.uint8).data)
    # Shifts and casts run in vectors, copies with a stride do not.
    planes = (numbers >> (8 * plane) if plane else numbers for plane in range(numbers.itemsize))
    return [part for plane in planes for part in pack(plane.astype(np.uint8).data)]


def unpack_numbers(
    reader: Reader, count: int, size: int, name: str, out: NDArray[np.signedinteger] | None = None
) -> NDArray[np.signedinteger]:
    """``count`` integers of ``size`` bytes, written to ``out`` if there is one."""
    numbers: NDArray[np.signedinteger] = np.empty(count, f"i{size}") if out is None else out
    columns: Bytes = numbers.view(np.uint8)
    for plane in range(size):
        columns[plane::size] = np.frombuffer(unpack(reader, count, name), dtype=np.uint8)
    return numbers
