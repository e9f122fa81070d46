"""The reading half of the wire codec (format: ``core.wire``): bytes from a stranger to a tree, or ``WireError``.

Order of the checks: prefix, header against the declared model, lengths of all frames, and only then are the tree's
arrays allocated and the frames read. What is allocated is the tree and its mask once, a frame's temporaries for each
thread, and for a header no more than the declared names explain.
"""

import json
import math
from dataclasses import dataclass

import numpy as np
import torch

from core.coding import Reader, unpack_bits, unpack_numbers
from core.errors import WireError
from core.parallel import each
from core.rounding import CODES, WIDE, restore
from core.trees import Mask, Tree
from core.wire_layout import (
    DTYPES,
    HAS_REFERENCE,
    HAS_VALUES,
    MAGIC,
    MASK_ONLY,
    NAMES,
    PREFIX,
    VERSION,
    Bits,
    Frame,
    Mode,
    Numbers,
    fingerprint,
    flat_bits,
    plan,
)


@dataclass(frozen=True)
class _Row:
    """One tensor's line of the header, checked. ``kind`` is its wire type; ``scale`` is None for exact values."""

    kind: str
    mode: Mode
    scale: float | None


@dataclass(frozen=True)
class _Target:
    """Where frames write to: flat arrays by name. ``numbers`` is empty for a message without values."""

    rows: dict[str, _Row]
    numbers: dict[str, Numbers]
    bits: dict[str, Bits]
    reference: dict[str, Bits]


def _prefix(reader: Reader, values: bool) -> tuple[int, bool]:
    """Length of the header, and whether a reference is used."""
    magic, version, flags, length = PREFIX.unpack(reader.take(PREFIX.size))
    if magic != MAGIC:
        raise WireError("malformed", "these bytes are not a coded tree")
    if version != VERSION:
        raise WireError("version", f"wire version {version} is not {VERSION}: update both sides to one release")
    if flags & ~(HAS_VALUES | HAS_REFERENCE) or bool(flags & HAS_VALUES) != values:
        raise WireError("malformed", f"flags {flags} do not fit this message")
    return length, bool(flags & HAS_REFERENCE)


def _header(reader: Reader, length: int, like: Tree) -> list[list[object]]:
    # Objects of parsed JSON take many times their text. Names may triple in length when escaped; a row has few numbers.
    if length > sum(200 + 6 * len(name.encode()) + 24 * like[name].dim() for name in like) + 200:
        raise WireError("malformed", "the header is longer than any of this model")
    try:
        header = json.loads(bytes(reader.take(length)))
    except (ValueError, RecursionError) as error:
        raise WireError("malformed", "the header is not JSON") from error
    if not isinstance(header, list) or not all(isinstance(row, list) and len(row) in (4, 5) for row in header):
        raise WireError("malformed", "the header is not a list of [name, dtype, shape, mode] or [..., scale]")
    if len(header) != len(like):
        raise WireError("name", f"{len(header)} tensors came, the model has {len(like)}")
    return header


def _kinds(dtype: torch.dtype, values: bool) -> list[str]:
    """Wire types a tensor of this dtype may come in; all but the first are rounded."""
    if not values:
        return [MASK_ONLY]
    exact = NAMES.get(dtype, "")
    return [exact, *(f"{exact}/{NAMES[code]}" for code in CODES.values() if dtype in WIDE)]


def _check_row(row: list[object], name: str, like: torch.Tensor, values: bool) -> _Row:
    label, kind, shape, mode, *scale = row
    if label != name:
        raise WireError("name", f"expected the tensor {name!r} here")
    if shape != list(like.shape):
        raise WireError("shape", f"{name}: the shape is not the model's {tuple(like.shape)}")
    kinds = _kinds(like.dtype, values)
    if not isinstance(kind, str) or kind not in kinds:
        raise WireError("dtype", f"{name}: the dtype is not the model's {like.dtype}")
    if mode not in ("f", "e", "b", "r", "w"):
        raise WireError("malformed", f"{name}: unknown mask mode")
    if kind == kinds[0]:
        if scale:
            raise WireError("malformed", f"{name}: exact values have no scale")
        return _Row(kind, mode, None)
    if not scale or not isinstance(scale[0], float) or not 0 < scale[0] < math.inf:
        raise WireError("value", f"{name}: the scale is not a positive number")
    return _Row(kind, mode, scale[0])


def _reference(reader: Reader, used: bool, reference: Mask | None) -> dict[str, Bits]:
    if not used:
        return {}
    mark = bytes(reader.take(8))
    if reference is None or mark != fingerprint(reference):
        raise WireError("reference", "coded against a mask this side does not hold")
    return {name: flat_bits(bits) for name, bits in reference.items()}


def _empty_bits(name: str, row: _Row, size: int, reference: dict[str, Bits]) -> Bits:
    if row.mode in ("r", "w") and name not in reference:
        raise WireError("reference", f"{name}: coded against a mask this side does not hold")
    if row.mode == "r":
        return reference[name].copy()
    return np.full(size, row.mode == "f")


def _read_masks(reader: Reader, frame: Frame, target: _Target) -> None:
    """The bits of a frame's pieces in modes ``b`` and ``w``, into place."""
    places = []
    for piece in frame:
        mode = target.rows[piece.name].mode
        if mode == "b":
            places.append((piece, np.arange(0)))
        elif mode == "w":
            places.append((piece, np.flatnonzero(piece.of(target.reference))))
    sizes = [piece.stop - piece.start if target.rows[piece.name].mode == "b" else at.size for piece, at in places]
    sent = np.split(unpack_bits(reader, sum(sizes), frame[0].name), np.cumsum(sizes)[:-1]) if places else []
    for (piece, at), bits in zip(places, sent, strict=True):
        if target.rows[piece.name].mode == "b":
            piece.of(target.bits)[:] = bits
        else:
            piece.of(target.bits)[at] = bits


def _read_values(reader: Reader, frame: Frame, target: _Target) -> None:
    where = [np.flatnonzero(piece.of(target.bits)) for piece in frame]
    width = target.numbers[frame[0].name].itemsize
    numbers, at = unpack_numbers(reader, sum(places.size for places in where), width, frame[0].name), 0
    for piece, places in zip(frame, where, strict=True):
        piece.of(target.numbers)[places] = numbers[at : at + places.size]
        at += places.size


def _read_frame(reader: Reader, frame: Frame, target: _Target) -> None:
    _read_masks(reader, frame, target)
    if target.numbers:
        _read_values(reader, frame, target)
    reader.end()


def _numbers(row: _Row, size: int) -> Numbers:
    """Zeros from NumPy: it asks for large pages, which PyTorch does not, and first touching 45 MB of small ones costs
    more than all the decoding."""
    width = DTYPES[row.kind.split("/")[-1]].itemsize
    return np.zeros(size, dtype=f"i{width}")


def _read(data: bytes, like: Tree, reference: Mask | None, values: bool) -> _Target:
    reader = Reader(data)
    length, uses_reference = _prefix(reader, values)
    base = _reference(reader, uses_reference, reference)
    header = _header(reader, length, like)
    names = sorted(like)
    rows = {name: _check_row(row, name, like[name], values) for row, name in zip(header, names, strict=True)}
    sizes = {name: like[name].numel() for name in names}
    frames = plan(sizes, {name: row.kind for name, row in rows.items()})
    readers = [Reader(reader.take(reader.length())) for _ in frames]
    reader.end()
    bits = {name: _empty_bits(name, row, sizes[name], base) for name, row in rows.items()}
    numbers = {name: _numbers(row, sizes[name]) for name, row in rows.items()} if values else {}
    target = _Target(rows, numbers, bits, base)
    each(lambda part: _read_frame(part[0], part[1], target), list(zip(readers, frames, strict=True)))
    return target


def _as_mask(bits: dict[str, Bits], like: Tree) -> Mask:
    return {name: torch.from_numpy(bits[name]).reshape(like[name].shape) for name in like}


def _as_tensor(numbers: Numbers, row: _Row, like: torch.Tensor) -> torch.Tensor:
    tensor = torch.from_numpy(numbers).view(DTYPES[row.kind.split("/")[-1]])
    exact = tensor if row.scale is None else restore(tensor, row.scale, like.dtype)
    return exact.reshape(like.shape)


def decode(data: bytes, like: Tree, reference: Mask | None = None) -> tuple[Tree, Mask]:
    """Tree and mask from bytes; zero outside the mask. ``like`` declares names, shapes and dtypes."""
    target = _read(data, like, reference, values=True)
    tree = {name: _as_tensor(target.numbers[name], target.rows[name], like[name]) for name in like}
    return tree, _as_mask(target.bits, like)


def decode_mask(data: bytes, like: Tree, reference: Mask | None = None) -> Mask:
    """A mask coded by ``encode_mask``, with the names and shapes of ``like``."""
    return _as_mask(_read(data, like, reference, values=False).bits, like)
