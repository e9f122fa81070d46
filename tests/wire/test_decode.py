"""Any byte string gives a valid tree or a typed error, and no more memory than the declared model explains."""

import json
import tracemalloc

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.errors import WireError
from prunella.core.trees import Tree, apply_mask, full_mask
from prunella.wire import coding
from prunella.wire.coding import ZSTD, prefixed
from prunella.wire.encode import REASONS, decode, decode_mask, encode, encode_mask
from prunella.wire.layout import MAGIC, PREFIX, VERSION

LIKE: Tree = {"conv.weight": torch.zeros(40, 1, 3, 3), "conv.bias": torch.zeros(4), "scale": torch.zeros(())}
MASKS = [
    {n: torch.rand(t.shape, generator=torch.Generator().manual_seed(i)) < 0.7 for n, t in LIKE.items()} for i in (1, 2)
]


def blob(rows: object, body: bytes = b"", flags: int = 1) -> bytes:
    text = rows if isinstance(rows, bytes) else json.dumps(rows).encode()
    return PREFIX.pack(MAGIC, VERSION, flags, len(text)) + text + body


def reason(data: bytes, like: Tree = LIKE) -> str:
    with pytest.raises(WireError) as caught:
        decode(data, like)
    assert caught.value.reason in REASONS
    return caught.value.reason


def good_blobs() -> list[bytes]:
    g = torch.Generator().manual_seed(0)
    tree = {n: torch.randn(t.shape, generator=g).round() for n, t in LIKE.items()}
    inside = {n: MASKS[0][n] & MASKS[1][n] for n in LIKE}
    return [
        encode(tree, MASKS[0]),
        encode(tree, inside, MASKS[1]),
        encode(tree, MASKS[1], MASKS[1], "int8"),
        encode(tree, full_mask(tree), None, "float16"),
        encode(tree, {n: m & (torch.arange(m.numel()).reshape(m.shape) % 40 == 3) for n, m in MASKS[1].items()}),
    ]


def test_the_last_good_blob_is_one_of_gaps_and_so_is_damaged_too() -> None:
    text = PREFIX.unpack(good_blobs()[-1][: PREFIX.size])[3]
    assert good_blobs()[-1][PREFIX.size + text + 4] in coding.GAPS.values()


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_typed_error(data: bytes, prefixed_well: bool) -> None:
    reason(PREFIX.pack(MAGIC, VERSION, 1, len(data) // 2) + data if prefixed_well else data)


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_any_damage_gives_a_valid_tree_or_a_typed_error(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(good_blobs())))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    try:
        tree, mask = decode(bytes(damaged), LIKE, MASKS[1])
    except WireError as error:
        assert error.reason in REASONS
    else:
        assert {n: (t.shape, t.dtype) for n, t in tree.items()} == {n: (t.shape, t.dtype) for n, t in LIKE.items()}
        assert {n: (m.shape, m.dtype) for n, m in mask.items()} == {n: (t.shape, torch.bool) for n, t in LIKE.items()}
        outside = apply_mask(tree, {n: ~m for n, m in mask.items()})
        assert not any(torch.count_nonzero(t) for t in outside.values())


def test_every_truncation_is_refused() -> None:
    for whole in good_blobs():
        for end in range(len(whole)):
            with pytest.raises(WireError):
                decode(whole[:end], LIKE, MASKS[1])


def test_a_deeply_nested_or_lying_header_is_malformed_not_a_crash() -> None:
    assert reason(blob(b"[" * 100_000)) == "malformed"
    assert reason(blob(b"[" * 700)) == "malformed"
    assert reason(blob(b"\xff\xfe")) == "malformed"
    assert reason(blob([["conv.bias", "f4", [4, 10**12], "f"]] * 3)) == "shape"
    assert reason(blob({"a": 1})) == "malformed"
    assert reason(blob([[["conv.bias"], {}, None, 3]] * 3)) == "name"
    assert reason(blob([["conv.bias", ["f4"], [4], "f"]] * 3)) == "dtype"
    assert reason(blob([["conv.bias", "f4", [4], ["f"]]] * 3)) == "malformed"
    assert reason(blob([["conv.bias", "f4", [4], "r"]] * 3)) == "name"


def test_flags_and_references_that_do_not_fit_are_refused() -> None:
    like = {"w": torch.zeros(2)}
    assert reason(blob([["w", "f4", [2], "f"]], flags=9), like) == "malformed"
    assert reason(blob([["w", "f4", [2], "r"]], b"\0\0\0\0"), like) == "reference"
    assert reason(blob([["w", "f4", [2], "w"]], b"\0\0\0\0"), like) == "reference"


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), 1, "1", None, True])
def test_a_scale_must_be_a_positive_number(scale: object) -> None:
    body = b"\4\0\0\0" + b"\0\1" * 2
    assert reason(blob([["w", "f4/i1", [2], "f", scale]], body), {"w": torch.zeros(2)}) == "value"
    assert reason(blob([["w", "f4/i1", [2], "f"]], body), {"w": torch.zeros(2)}) == "value"
    assert reason(blob([["w", "f4", [2], "f", 1.0]], body), {"w": torch.zeros(2)}) == "malformed"
    assert reason(blob([["w", "i8/i1", [2], "f", 1.0]], body), {"w": torch.zeros(2).long()}) == "dtype"


def test_gaps_cannot_ask_for_more_than_the_mask() -> None:
    """A frame that announces a hundred million gaps, packed to a few kilobytes."""
    like = {"w": torch.zeros(100_000)}
    gaps = zstandard.ZstdCompressor().compress(bytes(10**8))
    section = bytes([coding.GAPS[1]]) + (10**8).to_bytes(4, "little") + bytes([ZSTD]) + b"".join(prefixed([gaps]))
    tracemalloc.start()
    assert reason(blob([["w", "f4", [100_000], "b"]], b"".join(prefixed([section]))), like) == "length"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_padding_bits_must_be_clear() -> None:
    like = {"w": torch.zeros(3)}
    data = bytearray(encode_mask({"w": torch.tensor([True, False, True])}))
    data[-1] |= 1
    with pytest.raises(WireError) as caught:
        decode_mask(bytes(data), like)
    assert caught.value.reason == "mask"


def lying_frame(announced: int, real: int) -> bytes:
    """A zstd frame of zeros with another content size in its header, whose last four bytes that is."""
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(real)))
    end = zstandard.frame_header_size(bytes(frame))
    frame[end - 4 : end] = announced.to_bytes(4, "little")
    assert zstandard.get_frame_parameters(bytes(frame)).content_size == announced
    return bytes(frame)


def test_a_bomb_is_refused_before_it_is_opened() -> None:
    """2 KB that unpack to 64 MB, honestly announced or not, where the model needs 400 KB."""
    like = {"w": torch.zeros(100_000)}
    bombs = [
        zstandard.ZstdCompressor().compress(bytes(2**26)),
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**26)),
        lying_frame(100_000, 2**26),
    ]
    for bomb in bombs:
        section = b"".join([bytes([ZSTD]), *prefixed([bomb])])
        data = blob([["w", "f4", [100_000], "f"]], b"".join(prefixed([section * 4])))
        tracemalloc.start()
        assert reason(data, like) in ("length", "malformed")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000


def test_a_header_of_many_objects_is_refused_before_it_is_parsed() -> None:
    tracemalloc.start()
    assert reason(blob(b"[" + b"[]," * 1_000_000 + b"[]]")) == "malformed"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_a_message_without_frames_is_refused_before_the_tree_is_allocated() -> None:
    like = {"w": torch.zeros(1).expand(10**9)}  # declared, and never touched
    assert reason(blob([["w", "f4", [10**9], "f"]]), like) == "length"


def test_an_error_does_not_say_how_many_classes_this_side_has() -> None:
    """A client's last layer has a row for each class of its own files, and its errors are told to the server."""
    told = []
    for classes in (3, 17):
        sent, own = ({"fc.weight": torch.zeros(rows, 4)} for rows in (10, classes))
        with pytest.raises(WireError) as caught:
            decode(encode(sent, full_mask(sent)), own)
        told.append(str(caught.value))
    assert told[0] == told[1] and "fc.weight" in told[0]
