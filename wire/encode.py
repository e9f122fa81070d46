"""The wire codec: a masked tree as bytes, exact, smaller than dense, and safe to decode from a stranger.

Version 3. ``MAGIC``, version, flags (1 = values follow the masks, 2 = a reference mask is used), header length (u32),
the reference's fingerprint (8 bytes, with flag 2), header, frames. The header is a JSON list with one
``[name, dtype, shape, mode]`` per tensor in sorted order, and the scale as a fifth entry where values were rounded
(dtype ``f4/f2`` or ``f4/i1``, ``wire.rounding``). ``mode`` says how the mask travels: ``f`` all kept, ``e`` none kept,
``b`` one bit per coordinate, ``r`` as in the reference mask both sides hold, ``w`` one bit per coordinate that the
reference keeps. A frame is ``FRAME`` coordinates of the sorted, flattened tensors, fewer before a change of dtype and
at the end: its length (u32), its masks' bits (or the gaps between the set ones, where they are few), the planes of its
kept values (``wire.coding``). Frames do not depend on each other; several threads code them. Hosts are little-endian.

Never larger than dense: a section that does not compress is stored as it is. Pure noise costs the kept values, the mask
bits as far as they compress, the header (``HEADER_ROW`` bytes and its name for each tensor) and ``FRAME_COST`` bytes a
frame of 2 MB, which is less than the 128 bytes a tensor that Flower's own dense record adds; weights and updates are no
noise, and theirs come out smaller than the bare float32 bytes, header included, also under a full mask.

>>> import torch
>>> like = {"w": torch.tensor([[1.0, 0.0], [0.0, 4.0]])}
>>> mask = {"w": like["w"] != 0}
>>> tree, kept = decode(encode(like, mask), like)
>>> tree["w"].tolist(), int(kept["w"].sum())
([[1.0, 0.0], [0.0, 4.0]], 2)
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prunella.core.errors import WireError
from prunella.core.parallel import each
from prunella.core.trees import Mask, Tree, require_same_names
from prunella.wire.coding import Parts, Places, pack_bits, pack_numbers, places_of, prefixed
from prunella.wire.decode import decode, decode_mask, decode_sparse
from prunella.wire.layout import (
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
    Scalar,
    as_reference,
    fingerprint,
    flat_bits,
    flat_numbers,
    frames_of,
)
from prunella.wire.rounding import Values, round_tree

__all__ = [
    "REASONS",
    "Reference",
    "Values",
    "decode",
    "decode_sparse",
    "decode_mask",
    "dense_bytes",
    "encode",
    "encode_mask",
    "fingerprint",
]

# Most that a row of the header costs beside its name (rank up to 6), and a frame beside what it carries.
HEADER_ROW, FRAME_COST = 64, 64
_NOWHERE: Places = np.zeros(0, np.intp)
REASONS = ("malformed", "version", "name", "shape", "dtype", "mask", "reference", "length", "value")


@dataclass(frozen=True)
class _Source:
    """What frames read from: flat arrays by name. ``numbers`` is empty for a message without values."""

    numbers: dict[str, Numbers]
    bits: dict[str, Bits]
    modes: dict[str, Mode]
    reference: dict[str, Bits]


def _is_same(a: Bits, b: Bits) -> bool:
    """One memory: nothing to compare."""
    return (a.ctypes.data, a.shape, a.strides) == (b.ctypes.data, b.shape, b.strides)


def _mode(bits: Bits, reference: Bits | None) -> Mode:
    if reference is not None and (_is_same(bits, reference) or np.array_equal(bits, reference)):
        return "r"
    kept = int(np.count_nonzero(bits))
    if kept == bits.size:
        return "f"
    if kept == 0:
        return "e"
    if reference is not None and not np.any(bits & ~reference):
        return "w"
    return "b"


def _mask_bits(piece: Piece, source: _Source) -> list[Bits]:
    mode = source.modes[piece.name]
    if mode == "w":
        return [piece.of(source.bits).take(places_of(piece.of(source.reference)), mode="wrap")]
    return [piece.of(source.bits)] if mode == "b" else []


def _kept(piece: Piece, source: _Source, places: Places) -> Numbers:
    numbers = piece.of(source.numbers)
    # Several times faster than by the flags. "wrap" wraps nothing here and is the mode that checks least.
    return numbers if source.modes[piece.name] == "f" else numbers.take(places, mode="wrap")


def _joined(parts: Sequence[NDArray[Scalar]]) -> NDArray[Scalar]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _frame(frame: Frame, source: _Source) -> Parts:
    bits = [part for piece in frame for part in _mask_bits(piece, source)]
    if not source.numbers:
        return prefixed(pack_bits(_joined(bits)) if bits else [])
    modes = [source.modes[piece.name] for piece in frame]
    places = [
        places_of(piece.of(source.bits)) if mode in "bwr" else _NOWHERE
        for piece, mode in zip(frame, modes, strict=True)
    ]
    # Where a frame carries all its flags as they are, its places are those of its pieces, one behind the other.
    masks = pack_bits(_joined(bits), _shifted(frame, places) if set(modes) == {"b"} else None) if bits else []
    values = [_kept(piece, source, at) for piece, at in zip(frame, places, strict=True)]
    return prefixed([*masks, *pack_numbers(_joined(values))])


def _shifted(frame: Frame, places: list[Places]) -> Places:
    """The places inside the pieces as places inside the frame."""
    ends = itertools.accumulate((piece.stop - piece.start for piece in frame), initial=0)
    return _joined([at + end if end else at for at, end in zip(places, ends, strict=False)])


def _source(tree: Tree, mask: Mask, reference: Reference | None, values: bool) -> _Source:
    require_same_names(tree, mask, *([reference.mask] if reference is not None else []))
    names = sorted(tree)
    bits = {name: flat_bits(mask[name]) for name in names}
    base = {name: flat_bits(reference.mask[name]) for name in names} if reference is not None else {}
    modes = each(lambda name: _mode(bits[name], base.get(name)), names)
    numbers = {name: flat_numbers(tree[name]) for name in names} if values else {}
    return _Source(numbers, bits, dict(zip(names, modes, strict=True)), base)


def _join(source: _Source, rows: dict[str, list[object]], reference: Reference | None) -> bytes:
    """``rows`` are the lines of the header."""
    uses_reference = reference is not None and any(mode in ("r", "w") for mode in source.modes.values())
    flags = (HAS_VALUES if source.numbers else 0) | (HAS_REFERENCE if uses_reference else 0)
    text = json.dumps([rows[name] for name in sorted(rows)], separators=(",", ":")).encode()
    mark = reference.mark if uses_reference and reference is not None else b""
    sizes = {name: bits.size for name, bits in source.bits.items()}
    frames = each(
        lambda frame: _frame(frame, source), frames_of(sizes, {name: str(row[1]) for name, row in rows.items()})
    )
    head = [PREFIX.pack(MAGIC, VERSION, flags, len(text)), mark, text]
    return b"".join([*head, *(part for parts in frames for part in parts)])


def encode(tree: Tree, mask: Mask, reference: Mask | Reference | None = None, values: Values = "float32") -> bytes:
    """The coordinates of ``tree`` inside ``mask``; with ``reference``, a mask the receiver already holds.

    ``values`` other than float32 rounds (``wire.rounding``); float32 keeps every dtype exact.
    """
    for name, tensor in tree.items():
        if tensor.dtype not in NAMES:
            raise WireError("dtype", f"{name}: {tensor.dtype} has no code on the wire")
    codes, scales = round_tree(tree, mask, values)
    base = as_reference(reference)
    source = _source(codes, mask, base, values=True)
    rows: dict[str, list[object]] = {}
    for name, tensor in tree.items():
        kind = NAMES[tensor.dtype] + (f"/{NAMES[codes[name].dtype]}" if name in scales else "")
        rows[name] = [name, kind, list(tensor.shape), source.modes[name], *([scales[name]] if name in scales else [])]
    return _join(source, rows, base)


def encode_mask(mask: Mask, reference: Mask | Reference | None = None) -> bytes:
    """A mask without values."""
    base = as_reference(reference)
    source = _source(mask, mask, base, values=False)
    rows: dict[str, list[object]] = {
        name: [name, MASK_ONLY, list(bits.shape), source.modes[name]] for name, bits in mask.items()
    }
    return _join(source, rows, base)


def dense_bytes(tree: Tree) -> int:
    """Bytes the tensors alone take uncoded: what every saving is measured against."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tree.values())
