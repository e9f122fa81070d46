import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import WireError
from core.trees import Tree, apply_mask
from core.wire import MAGIC, REASONS, decode, decode_mask, dense_bytes, encode, encode_mask, fingerprint

LIKE: Tree = {"conv.weight": torch.zeros(4, 1, 3, 3), "conv.bias": torch.zeros(4), "scale": torch.zeros(())}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]


def random_mask(like: Tree, seed: int, keep: float = 0.5) -> Tree:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.rand(t.shape, generator=g) < keep for name, t in like.items()}


def random_tree(like: Tree, seed: int) -> Tree:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(t.shape, generator=g).to(t.dtype) for name, t in like.items()}


def same_bits(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.sampled_from(DTYPES), st.booleans())
@settings(max_examples=60, deadline=None)
def test_round_trip_is_lossless(seed: int, keep: float, dtype: torch.dtype, with_reference: bool) -> None:
    like = {name: t.to(dtype) for name, t in LIKE.items()}
    tree, mask = random_tree(like, seed), random_mask(like, seed + 1, keep)
    reference = random_mask(like, seed + 2, 0.7) if with_reference else None
    decoded, kept = decode(encode(tree, mask, reference), like, reference)
    assert same_bits(decoded, apply_mask(tree, mask))
    assert same_bits(kept, mask)
    assert same_bits(decode_mask(encode_mask(mask, reference), like, reference), mask)


def test_negative_zero_nan_and_infinity_survive_bit_for_bit() -> None:
    like = {"w": torch.zeros(4)}
    tree = {"w": torch.tensor([-0.0, float("nan"), float("inf"), 1e-45])}
    decoded, _ = decode(encode(tree, {"w": torch.ones(4, dtype=torch.bool)}), like)
    assert torch.equal(decoded["w"].view(torch.int32), tree["w"].view(torch.int32))


def test_the_mask_costs_one_bit_a_coordinate_once_and_nothing_after() -> None:
    like = {"w": torch.zeros(80_000)}
    tree, mask = random_tree(like, 1), random_mask(like, 2, 0.5)
    kept = int(mask["w"].sum())
    first, later = len(encode(tree, mask)), len(encode(tree, mask, mask))
    assert kept * 4 + 10_000 < first < kept * 4 + 10_100
    assert kept * 4 < later < kept * 4 + 100
    assert later < first < dense_bytes(tree)


def test_a_subset_of_the_reference_costs_bits_only_inside_it() -> None:
    like = {"w": torch.zeros(80_000)}
    reference = random_mask(like, 3, 0.25)
    subset = {"w": reference["w"] & random_mask(like, 4, 0.5)["w"]}
    inside = int(reference["w"].sum())
    assert len(encode_mask(subset, reference)) < inside / 8 + 100


def test_fingerprint_depends_on_every_bit_and_on_shape() -> None:
    a = {"w": torch.tensor([[True, False], [True, True]])}
    assert fingerprint(a) == fingerprint({"w": a["w"].clone()})
    assert fingerprint(a) != fingerprint({"w": a["w"].reshape(4)})
    assert fingerprint(a) != fingerprint({"w": ~a["w"]})


def reason(data: bytes, like: Tree = LIKE, reference: Tree | None = None) -> str:
    with pytest.raises(WireError) as caught:
        decode(data, like, reference)
    assert caught.value.reason in REASONS
    return caught.value.reason


def test_each_kind_of_wrong_reply_is_told_apart() -> None:
    tree, mask = random_tree(LIKE, 0), random_mask(LIKE, 1)
    good = encode(tree, mask)
    renamed = {("other" if n == "scale" else n): t for n, t in tree.items()}
    assert reason(encode(renamed, {n: t == t for n, t in renamed.items()})) == "name"
    fewer = {"scale": tree["scale"]}
    assert reason(encode(fewer, {"scale": mask["scale"]})) == "name"
    reshaped = tree | {"conv.bias": torch.zeros(5)}
    assert reason(encode(reshaped, mask | {"conv.bias": torch.ones(5, dtype=torch.bool)})) == "shape"
    assert reason(encode(tree | {"conv.bias": tree["conv.bias"].double()}, mask)) == "dtype"
    assert reason(good[:-1]) == "length"
    assert reason(good + b"\0") == "length"
    assert reason(b"") == "length"
    assert reason(b"XXXX" + good[4:]) == "malformed"
    assert reason(good[:4] + b"\x09" + good[5:]) == "version"
    assert reason(encode_mask(mask)) == "malformed"


def test_a_blob_coded_against_another_mask_is_refused() -> None:
    tree, reference = random_tree(LIKE, 0), random_mask(LIKE, 1)
    data = encode(tree, reference, reference)
    assert reason(data) == "reference"
    assert reason(data, reference=random_mask(LIKE, 2)) == "reference"


def test_padding_bits_must_be_clear() -> None:
    like = {"w": torch.zeros(3)}
    data = bytearray(encode_mask({"w": torch.tensor([True, False, True])}))
    data[-1] |= 1
    with pytest.raises(WireError) as caught:
        decode_mask(bytes(data), like)
    assert caught.value.reason == "mask"


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_typed_error(data: bytes) -> None:
    reason(data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_gives_a_valid_tree_or_a_typed_error(data: st.DataObject) -> None:
    blob = bytearray(encode(random_tree(LIKE, 0), random_mask(LIKE, 1), random_mask(LIKE, 2, 0.9)))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        tree, mask = decode(bytes(blob), LIKE, random_mask(LIKE, 2, 0.9))
    except WireError as error:
        assert error.reason in REASONS
    else:
        assert {n: t.shape for n, t in tree.items()} == {n: t.shape for n, t in LIKE.items()}
        assert same_bits(apply_mask(tree, mask), tree) or not all(torch.isfinite(t).all() for t in tree.values())


def test_a_deeply_nested_or_lying_header_is_malformed_not_a_crash() -> None:
    def blob(text: bytes) -> bytes:
        return struct.pack("<4sBBI", MAGIC, 1, 1, len(text)) + text

    assert reason(blob(b"[" * 100_000)) == "malformed"
    assert reason(blob(json.dumps([["conv.bias", "f4", [4, 10**12], "f"]] * 3).encode())) == "shape"
    assert reason(blob(json.dumps({"a": 1}).encode())) == "malformed"
    assert reason(blob(json.dumps([[["conv.bias"], {}, None, 3]] * 3).encode())) == "name"
