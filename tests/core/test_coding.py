import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from core.coding import RAW, ZSTD, Reader, pack, pack_bits, pack_numbers, prefixed, unpack, unpack_bits, unpack_numbers
from core.errors import WireError


def reason(data: bytes, size: int) -> str:
    with pytest.raises(WireError) as caught:
        unpack(Reader(data), size, "x")
    return caught.value.reason


@given(st.binary(max_size=300) | st.integers(0, 3000).map(bytes))
def test_a_section_round_trips_and_costs_one_byte_at_most(data: bytes) -> None:
    section = b"".join(pack(data))
    assert len(section) <= len(data) + 1
    reader = Reader(section)
    assert bytes(unpack(reader, len(data), "x")) == data
    reader.end()


def test_what_compresses_is_compressed_and_noise_is_not() -> None:
    noise = np.random.default_rng(0).bytes(5000)
    assert pack(noise)[0] == bytes([RAW]) and pack(bytes(5000))[0] == bytes([ZSTD])


@given(st.lists(st.booleans(), max_size=70))
def test_bits_round_trip(flags: list[bool]) -> None:
    bits = np.array(flags, dtype=bool)
    assert np.array_equal(unpack_bits(Reader(b"".join(pack_bits(bits))), bits.size, "x"), bits)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_numbers_round_trip_in_planes(size: int, count: int) -> None:
    numbers = np.random.default_rng(1).normal(0, 30, count).astype(f"i{size}")
    data = b"".join(pack_numbers(numbers))
    assert np.array_equal(unpack_numbers(Reader(data), count, size, "x"), numbers)
    if count == 5000 and size > 1:
        assert len(data) < 0.6 * numbers.nbytes  # all but the lowest plane are signs


def test_each_fault_of_a_section_is_told_apart() -> None:
    packed = zstandard.ZstdCompressor().compress(bytes(1000))
    section = b"".join([bytes([ZSTD]), *prefixed([packed])])
    assert len(unpack(Reader(section), 1000, "x")) == 1000
    assert reason(section, 999) == reason(section, 1001) == "length"
    assert reason(section[:-1], 1000) == "length"
    assert reason(b"\7" + section[1:], 1000) == "malformed"
    assert reason(b"".join([bytes([ZSTD]), *prefixed([b"no zstd frame"])]), 1000) == "malformed"
    assert reason(b"".join([bytes([ZSTD]), *prefixed([packed + b"more"])]), 1000) == "malformed"
    two = b"".join([bytes([ZSTD]), *prefixed([packed[:-3]])])
    assert reason(two, 1000) == "malformed"
    assert reason(bytes([RAW]) + bytes(9), 10) == "length"
    assert reason(b"", 1) == "length"


def test_a_reader_counts() -> None:
    reader = Reader(b"".join(prefixed([b"ab", b"c"])))
    assert reader.length() == 3 and bytes(reader.take(2)) == b"ab"
    with pytest.raises(WireError, match="1 bytes too many"):
        reader.end()
    with pytest.raises(WireError, match="2 bytes were announced, 1 are left"):
        reader.take(2)
