"""The reading half of the wire codec (format: ``wire.encode``): bytes from a stranger to a tree, or ``WireError``.

Order of the checks: prefix, header against the declared model, lengths of all frames, and only then are the tree's
arrays allocated and the frames read. What is allocated is the tree and its mask once, a frame's temporaries for each
thread, and for a header no more than the declared names explain.
"""

import json
import math
from dataclasses import dataclass

import numpy as np
import torch

from prunella.core.errors import WireError
from prunella.core.parallel import each
from prunella.core.trees import Mask, Tree
from prunella.wire.coding import Places, Reader, places_of, unpack_bits, unpack_numbers, unpack_places
from prunella.wire.layout import (
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
    Piece,
    Reference,
    as_reference,
    flat_bits,
    frames_of,
)
from prunella.wire.rounding import CODES, WIDE, restore
from prunella.wire.sparse import SparseTree, zeros


@dataclass(frozen=True)
class _Row:
    """One tensor's line of the header, checked. ``kind`` is its wire type; ``scale`` is None for exact values."""

    kind: str
    mode: Mode
    scale: float | None


@dataclass(frozen=True)
class _Message:
    """A blob whose header and lengths are right: what its frames write to, flat arrays by name."""

    rows: dict[str, _Row]
    bits: dict[str, Bits]
    reference: Reference | None
    frames: list[Frame]
    readers: list[Reader]


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
        # Which one it is stays here: a client's last layer has as many rows as its own files have classes.
        raise WireError("shape", f"{name}: the shape is not the model's")
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


def _reference(reader: Reader, used: bool, reference: Reference | None) -> Reference | None:
    if not used:
        return None
    mark = bytes(reader.take(8))
    if reference is None or mark != reference.mark:
        raise WireError("reference", "coded against a mask this side does not hold")
    return reference


def _bits(rows: dict[str, _Row], sizes: dict[str, int], reference: Mask) -> dict[str, Bits]:
    """The masks of modes ``f``, ``e`` and ``r``, the last not copied; zeros to write to for the others."""
    absent = [name for name, row in rows.items() if row.mode in ("r", "w") and name not in reference]
    if absent:
        raise WireError("reference", f"{absent[0]}: coded against a mask this side does not hold")
    own = {name: size for name, size in sizes.items() if rows[name].mode != "r"}
    bits = {name: flat.view(np.bool_) for name, flat in zeros(own, dict.fromkeys(own, 1)).items()}
    for name in own:
        if rows[name].mode == "f":
            bits[name][:] = True
    return {name: bits[name] if name in bits else flat_bits(reference[name]) for name in rows}


def _open(data: bytes, like: Tree, reference: Reference | None, values: bool) -> _Message:
    reader = Reader(data)
    length, uses_reference = _prefix(reader, values)
    base = _reference(reader, uses_reference, reference)
    header = _header(reader, length, like)
    names = sorted(like)
    rows = {name: _check_row(row, name, like[name], values) for row, name in zip(header, names, strict=True)}
    sizes = {name: like[name].numel() for name in names}
    frames = frames_of(sizes, {name: row.kind for name, row in rows.items()})
    readers = [Reader(reader.take(reader.length())) for _ in frames]
    reader.end()
    return _Message(rows, _bits(rows, sizes, base.mask if base else {}), base, frames, readers)


def _read_gaps(message: _Message, reader: Reader, frame: Frame) -> list[Places] | None:
    """The bits of a frame that is all in mode ``b`` and coded as gaps, into place, and where each piece has them."""
    if any(message.rows[piece.name].mode != "b" for piece in frame):
        return None
    sizes = [piece.stop - piece.start for piece in frame]
    places = unpack_places(reader, sum(sizes), frame[0].name)
    if places is None:
        return None
    starts = np.cumsum([0, *sizes[:-1]])
    parts = np.split(places, np.searchsorted(places, starts[1:]))
    found = [part - start for part, start in zip(parts, starts, strict=True)]
    for piece, at in zip(frame, found, strict=True):
        piece.of(message.bits)[at] = True
    return found


def _read_bits(message: _Message, reader: Reader, frame: Frame) -> None:
    """The bits of a frame's pieces in modes ``b`` and ``w``, into place."""
    places: list[tuple[Piece, Places | None]] = []
    base = message.reference
    for piece in frame:
        mode = message.rows[piece.name].mode
        if mode == "b":
            places.append((piece, None))
        elif mode == "w" and base is not None:
            places.append((piece, places_of(flat_bits(base.mask[piece.name])[piece.start : piece.stop])))
    sizes = [piece.stop - piece.start if at is None else at.size for piece, at in places]
    sent = np.split(unpack_bits(reader, sum(sizes), frame[0].name), np.cumsum(sizes)[:-1]) if places else []
    for (piece, at), bits in zip(places, sent, strict=True):
        piece.of(message.bits)[slice(None) if at is None else at] = bits


def _count(message: _Message, piece: Piece) -> int:
    mode, base = message.rows[piece.name].mode, message.reference
    if mode == "r" and base is not None:
        return base.kept(piece)
    return piece.stop - piece.start if mode == "f" else int(np.count_nonzero(piece.of(message.bits)))


def _read_all_masks(message: _Message) -> tuple[list[int], dict[str, int]]:
    """How many coordinates are kept, by frame and by tensor."""

    def read(part: tuple[Reader, Frame]) -> list[int]:
        found = _read_gaps(message, *part)
        if found is not None:
            return [places.size for places in found]
        _read_bits(message, *part)
        return [_count(message, piece) for piece in part[1]]

    parts = list(zip(message.readers, message.frames, strict=True))
    carried = any(row.mode in ("b", "w") for row in message.rows.values())
    counts = each(read, parts) if carried else [read(part) for part in parts]
    kept = dict.fromkeys(message.rows, 0)
    for frame, found in zip(message.frames, counts, strict=True):
        for piece, count in zip(frame, found, strict=True):
            kept[piece.name] += count
    return [sum(found) for found in counts], kept


def _dtype(kind: str) -> torch.dtype:
    return DTYPES[kind.split("/")[-1]]


def _width(kind: str) -> int:
    return _dtype(kind).itemsize


def _read_values(message: _Message, counts: list[int]) -> dict[str, Numbers]:
    """The kept values of every kind, tensor by tensor."""
    kinds = [message.rows[frame[0].name].kind for frame in message.frames]
    ends = {kind: 0 for kind in kinds}
    jobs = []
    for reader, frame, kind, kept in zip(message.readers, message.frames, kinds, counts, strict=True):
        jobs.append((reader, frame[0].name, kind, slice(ends[kind], ends[kind] + kept)))
        ends[kind] += kept
    numbers = zeros(ends, {kind: _width(kind) for kind in ends})

    def read(job: tuple[Reader, str, str, slice]) -> None:
        reader, name, kind, at = job
        unpack_numbers(reader, at.stop - at.start, _width(kind), name, numbers[kind][at])
        reader.end()

    each(read, jobs)
    return numbers


def _mask_of(message: _Message, like: Tree) -> Mask:
    """Names in the order of ``like``; a mask that is the reference's is that very tensor."""
    return {
        name: message.reference.mask[name]
        if message.reference is not None and message.rows[name].mode == "r"
        else torch.from_numpy(message.bits[name]).reshape(like[name].shape)
        for name in like
    }


def decode_sparse(data: bytes, like: Tree, reference: Mask | Reference | None = None) -> SparseTree:
    """What a blob carries, from bytes. ``like`` declares names, shapes and dtypes."""
    message = _open(data, like, as_reference(reference), values=True)
    frames, counts = _read_all_masks(message)
    numbers = _read_values(message, frames)
    at, values = dict.fromkeys(numbers, 0), {}
    for name in sorted(like):
        row, dtype = message.rows[name], _dtype(message.rows[name].kind)
        if counts[name]:
            flat = torch.from_numpy(numbers[row.kind][at[row.kind] : at[row.kind] + counts[name]]).view(dtype)
            at[row.kind] += counts[name]
        else:
            flat = torch.empty(0, dtype=dtype)
        values[name] = flat if row.scale is None else restore(flat, row.scale, like[name].dtype)
    return SparseTree(_mask_of(message, like), {name: values[name] for name in like})


def _read_dense(message: _Message, reader: Reader, frame: Frame, flat: dict[str, Numbers]) -> None:
    """A frame's values into place, in one go, while what its masks say is in the processor's cache."""
    places: list[Places | slice] | None = _read_gaps(message, reader, frame)  # type: ignore[assignment]
    if places is None:
        _read_bits(message, reader, frame)
        whole = [message.rows[piece.name].mode == "f" for piece in frame]
        places = [
            slice(0, piece.stop - piece.start) if full else places_of(piece.of(message.bits))
            for piece, full in zip(frame, whole, strict=True)
        ]
    counts = [at.stop if isinstance(at, slice) else at.size for at in places]
    numbers, start = unpack_numbers(reader, sum(counts), flat[frame[0].name].itemsize, frame[0].name), 0
    for piece, at, count in zip(frame, places, counts, strict=True):
        piece.of(flat)[at] = numbers[start : start + count]
        start += count
    reader.end()


def decode(data: bytes, like: Tree, reference: Mask | Reference | None = None) -> tuple[Tree, Mask]:
    """Tree and mask from bytes, as of ``decode_sparse``; zero outside the mask. Tensors may share one memory."""
    message = _open(data, like, as_reference(reference), values=True)
    rows = message.rows
    flat = zeros({n: like[n].numel() for n in rows}, {name: _width(row.kind) for name, row in rows.items()})
    each(lambda part: _read_dense(message, *part, flat), list(zip(message.readers, message.frames, strict=True)))
    tree = {}
    for name, tensor in like.items():
        row, codes = rows[name], torch.from_numpy(flat[name]).view(_dtype(rows[name].kind))
        tree[name] = (codes if row.scale is None else restore(codes, row.scale, tensor.dtype)).reshape(tensor.shape)
    return tree, _mask_of(message, like)


def decode_mask(data: bytes, like: Tree, reference: Mask | Reference | None = None) -> Mask:
    """A mask coded by ``encode_mask``, with the names and shapes of ``like``."""
    message = _open(data, like, as_reference(reference), values=False)
    _read_all_masks(message)
    for reader in message.readers:
        reader.end()
    return _mask_of(message, like)
