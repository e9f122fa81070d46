import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.errors import WireError
from prunella.core.trees import Tree, apply_mask, full_mask
from prunella.wire import layout as wire_layout
from prunella.wire.encode import (
    FRAME_COST,
    HEADER_ROW,
    REASONS,
    Reference,
    decode,
    decode_mask,
    decode_sparse,
    dense_bytes,
    encode,
    encode_mask,
)
from prunella.wire.layout import FRAME, MAGIC, VERSION
from prunella.wire.records import record_bytes, to_dense

LIKE: Tree = {"conv.weight": torch.zeros(4, 1, 3, 3), "conv.bias": torch.zeros(4), "scale": torch.zeros(())}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]


def random_mask(like: Tree, seed: int, keep: float = 0.5) -> Tree:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.rand(t.shape, generator=g) < keep for name, t in like.items()}


def random_tree(like: Tree, seed: int) -> Tree:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(t.shape, generator=g).to(t.dtype) for name, t in like.items()}


def noise(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Every bit random: nothing in it compresses."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, shape, generator=g).to(torch.int32).view(torch.float32)


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


@given(
    st.integers(0, 10_000), st.sampled_from([0.02, 0.3, 1.0]), st.sampled_from(["float32", "float16"]), st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_what_is_kept_are_the_dense_values_inside_the_mask(
    seed: int, keep: float, values, with_reference: bool
) -> None:
    like = LIKE | {"long": torch.zeros(900), "count": torch.zeros((), dtype=torch.int64)}
    tree, mask = random_tree(like, seed), random_mask(like, seed + 1, keep)
    reference = random_mask(like, seed + 2, 0.7) | {"long": mask["long"]} if with_reference else None
    data = encode(tree, mask, reference, values)
    kept = decode_sparse(data, like, reference)
    dense, bits = decode(data, like, reference)
    assert list(kept.values) == list(kept.mask) == list(like) and same_bits(kept.mask, bits) and same_bits(bits, mask)
    assert same_bits(kept.values, {name: t[bits[name]] for name, t in dense.items()})


def test_a_mask_both_sides_hold_is_neither_copied_nor_fingerprinted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, mask = random_tree(LIKE, 1), random_mask(LIKE, 2)
    base = Reference(mask)
    assert encode(tree, mask, base) == encode(tree, {n: m.clone() for n, m in mask.items()}, mask)
    data = encode(tree, mask, base)
    monkeypatch.setattr(wire_layout, "fingerprint", None)
    got, bits = decode(data, LIKE, base)
    assert same_bits(got, apply_mask(tree, mask)) and all(bits[name] is mask[name] for name in mask)


def test_flags_of_one_memory_are_the_same_only_if_they_lie_alike() -> None:
    flags = torch.tensor([True, False, True, True])
    like = {"w": torch.ones(2)}
    assert same_bits(
        decode_mask(encode_mask({"w": flags[::2]}, {"w": flags[:2]}), like, {"w": flags[:2]}), {"w": flags[::2]}
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_many_frames_mixed_types_and_all_modes_round_trip(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """Frames of 100 coordinates, so that tensors are cut, share frames and change dtype between them."""
    monkeypatch.setattr(wire_layout, "FRAME", 100)
    monkeypatch.setattr("prunella.core.parallel.threads", lambda: workers)
    like = {f"t{i}": torch.zeros(30 + 47 * i, dtype=DTYPES[i // 3 % 5]) for i in range(12)} | {
        "none": torch.zeros(0, 3)
    }
    tree, reference = random_tree(like, 1), random_mask(like, 2, 0.6)
    modes = {"all": torch.logical_or, "same": lambda a, b: b, "inside": torch.logical_and, "none": torch.logical_xor}
    other = random_mask(like, 3, 0.4)
    for join in modes.values():
        mask = {name: join(other[name], reference[name]) for name in like}
        mask["t3"], mask["t4"] = torch.ones_like(mask["t3"]), torch.zeros_like(mask["t4"])
        decoded, kept = decode(encode(tree, mask, reference), like, reference)
        assert same_bits(decoded, apply_mask(tree, mask)) and same_bits(kept, mask)


def test_threads_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = random_tree({"w": torch.zeros(3 * FRAME + 5)}, 1)
    mask = random_mask(tree, 2, 0.1)
    blobs = []
    for workers in (1, 4):
        monkeypatch.setattr("prunella.core.parallel.threads", lambda workers=workers: workers)
        blobs.append(encode(tree, mask))
    assert blobs[0] == blobs[1]


def test_negative_zero_nan_and_infinity_survive_bit_for_bit() -> None:
    like = {"w": torch.zeros(5)}
    odd = torch.tensor([-0.0, float("nan"), float("inf"), 1e-45, 0.0])
    odd[4:].view(torch.int32).fill_(0x7F800001)  # a signalling NaN, which arithmetic would quieten
    decoded, _ = decode(encode({"w": odd}, {"w": torch.ones(5, dtype=torch.bool)}), like)
    assert torch.equal(decoded["w"].view(torch.int32), odd.view(torch.int32))


def test_the_mask_costs_at_most_one_bit_a_coordinate_once_and_nothing_after() -> None:
    like = {"w": torch.zeros(80_000)}
    tree, mask = {"w": noise((80_000,), 1)}, random_mask(like, 2, 0.5)
    kept = int(mask["w"].sum())
    first, later = len(encode(tree, mask)), len(encode(tree, mask, mask))
    assert kept * 4 + 10_000 < first < kept * 4 + 10_100
    assert kept * 4 < later < kept * 4 + 100
    sparse = encode_mask(random_mask(like, 3, 0.1))
    assert 4_600 < len(sparse) < 5_200  # entropy: 0.469 bit a coordinate, 4690 bytes


def test_a_subset_of_the_reference_costs_bits_only_inside_it() -> None:
    like = {"w": torch.zeros(80_000)}
    reference = random_mask(like, 3, 0.25)
    subset = {"w": reference["w"] & random_mask(like, 4, 0.5)["w"]}
    inside = int(reference["w"].sum())
    assert len(encode_mask(subset, reference)) < inside / 8 + 100


def test_gaussian_values_take_less_than_their_bytes() -> None:
    """Sign and exponent of Gaussian float32 hold about 3.5 of their 9 bits: 26.5 bits of 32."""
    tree = random_tree({"w": torch.zeros(100_000)}, 1)
    assert 0.82 < len(encode(tree, full_mask(tree))) / 400_000 < 0.86


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_noise_is_never_larger_than_the_bound_nor_than_flowers_dense_record(
    sizes: list[int], keep: float, seed: int
) -> None:
    tree = {f"layer{i}.weight": noise((size,), seed + i) for i, size in enumerate(sizes)}
    mask = random_mask(tree, seed, keep)
    size = len(encode(tree, mask))
    assert size <= dense_bytes(tree) + 10 + sum(HEADER_ROW + len(name) for name in tree) + FRAME_COST
    assert size <= record_bytes(to_dense(tree))


@pytest.mark.parametrize("keep", [0.9, 0.99, 0.999, 0.9999, 1.0])
def test_a_nearly_full_mask_of_noise_over_several_frames_stays_within_the_bound(keep: float) -> None:
    tree = {"w": noise((2 * FRAME + 77,), 1)}
    assert len(encode(tree, random_mask(tree, 2, keep))) <= dense_bytes(tree) + 10 + HEADER_ROW + 1 + 3 * FRAME_COST


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
    assert reason(encode_mask(mask)) == "malformed"


@pytest.mark.parametrize("version", [0, 1, 2, 255])
def test_another_version_is_refused_by_name(version: int) -> None:
    good = encode(random_tree(LIKE, 0), random_mask(LIKE, 1))
    assert reason(good[:4] + bytes([version]) + good[5:]) == "version"


def test_a_real_version_1_blob_is_refused() -> None:
    header = json.dumps([["w", "f4", [2], "f"]], separators=(",", ":")).encode()
    blob = struct.pack("<4sBBI", MAGIC, 1, 1, len(header)) + header + struct.pack("<2f", 1.0, 2.0)
    assert reason(blob, {"w": torch.zeros(2)}) == "version"


def test_a_blob_coded_against_another_mask_is_refused() -> None:
    tree, reference = random_tree(LIKE, 0), random_mask(LIKE, 1)
    data = encode(tree, reference, reference)
    assert reason(data) == "reference"
    assert reason(data, reference=random_mask(LIKE, 2)) == "reference"


def test_a_type_without_a_code_is_refused_by_the_sender() -> None:
    with pytest.raises(WireError, match="complex64"):
        encode({"w": torch.zeros(1, dtype=torch.complex64)}, {"w": torch.ones(1, dtype=torch.bool)})


@pytest.mark.parametrize(("values", "share"), [("float16", 0.5), ("int8", 0.25)])
def test_rounded_values_are_smaller_by_what_they_drop(values, share: float) -> None:
    tree = random_tree({"w": torch.zeros(1000, 10), "b": torch.zeros(3)}, 1)
    mask = random_mask(tree, 2, 0.5)
    decoded, kept = decode(encode(tree, mask, mask, values), tree, mask)
    assert same_bits(kept, mask) and decoded["w"].dtype == torch.float32
    worst = (decoded["w"] - apply_mask(tree, mask)["w"]).abs().max() / tree["w"][mask["w"]].abs().max()
    assert 0 < worst <= (2**-12 if values == "float16" else 1 / 254 + 1e-6)
    assert len(encode(tree, mask, mask, values)) < share * 4 * int(mask["w"].sum()) + 200


def test_the_header_says_the_version() -> None:
    assert encode(LIKE, full_mask(LIKE))[:5] == MAGIC + bytes([VERSION])
