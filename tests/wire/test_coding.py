import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.errors import WireError
from prunella.wire.coding import (
    GAPS,
    RAW,
    ZSTD,
    Reader,
    pack,
    pack_bits,
    pack_numbers,
    places_of,
    prefixed,
    unpack,
    unpack_bits,
    unpack_numbers,
)


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


def flags(share: float, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(count) < share


@given(st.floats(0, 0.2), st.integers(0, 4000), st.integers(0, 99))
@settings(deadline=None)
def test_places_are_those_of_flatnonzero(share: float, count: int, seed: int) -> None:
    bits = flags(share, count, seed)
    assert np.array_equal(places_of(bits), np.flatnonzero(bits))


@given(st.lists(st.integers(0, 70_000), max_size=12), st.sampled_from([0, 900, 66_000]))
@settings(deadline=None)
def test_sparse_bits_round_trip_and_never_take_more_than_their_bits(gaps: list[int], after: int) -> None:
    """Gaps up to what two bytes hold and above, next to each other and far apart, at the very end and not."""
    places = np.cumsum(np.array(gaps, dtype=int) + 1) - 1
    bits = np.zeros(sum(gaps) + len(gaps) + after, dtype=bool)
    bits[places] = True
    section = b"".join(pack_bits(bits))
    assert section == b"".join(pack_bits(bits, places))
    assert len(section) <= (bits.size + 7) // 8 + 1
    reader = Reader(section + b"next")
    assert np.array_equal(unpack_bits(reader, bits.size, "x"), bits) and bytes(reader.take(4)) == b"next"


@pytest.mark.parametrize(("share", "width"), [(0.07, 1), (0.01, 1), (0.001, 2)])
def test_a_sparse_mask_costs_its_entropy(share: float, width: int) -> None:
    """Within a tenth; eight flags a byte took 1.05 to 1.8 times as much, and the fewer are set the more."""
    bits = flags(share, 2**19)
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) * bits.size / 8
    section = b"".join(pack_bits(bits))
    assert section[0] == GAPS[width]
    assert 0.9 * entropy < len(section) < 1.1 * entropy
    assert np.array_equal(unpack_bits(Reader(section), bits.size, "x"), bits)


def test_gaps_that_lie_are_refused() -> None:
    def told(entries: int, gaps: bytes, count: int, width: int = 1) -> str:
        planes = b"".join(bytes([RAW]) + gaps[plane::width] for plane in range(width))
        section = bytes([GAPS[width]]) + entries.to_bytes(4, "little") + planes
        try:
            return str(np.flatnonzero(unpack_bits(Reader(section), count, "x")).tolist())
        except WireError as error:
            return error.reason

    assert told(2, b"\x05\x00", 1000) == "[5, 6]"
    assert told(3, b"\xff\xff\x02", 1000) == "[512]"
    assert told(1, b"\x05\x01", 1000, 2) == "[261]"
    assert told(2, b"\xfe\xff", 600) == "[254]"  # an escape with nothing behind it
    assert told(2, b"\x62\x00", 100) == "[98, 99]" and told(2, b"\x62\x01", 100) == "mask"
    assert told(4, b"\xff\xff\xff\xff", 1000) == "mask"
    assert told(2**32 - 1, b"\0", 1000) == "length"
    assert told(125, bytes(125), 1000) == "length" and told(124, bytes(124), 1000) != "length"
    assert told(2, b"\0", 1000) == "length"


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_numbers_round_trip_in_planes(size: int, count: int) -> None:
    numbers = np.random.default_rng(1).normal(0, 30, count).astype(f"i{size}")
    data = b"".join(pack_numbers(numbers))
    assert np.array_equal(unpack_numbers(Reader(data), count, size, "x"), numbers)
    out = np.ones(count, f"i{size}")
    assert unpack_numbers(Reader(data), count, size, "x", out) is out and np.array_equal(out, numbers)
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
