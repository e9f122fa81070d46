"""The wire codec: a masked tree as bytes, exact, smaller than dense, and safe to decode from a stranger.

Version 1. ``MAGIC``, version, flags (1 = values follow the masks), header length (u32), header, masks, values. The
header is a JSON list with one ``[name, dtype, shape, mode]`` per tensor in sorted order; ``mode`` says how its mask
travels: ``f`` all kept, ``e`` none kept, ``b`` one bit per coordinate, ``r`` as in the reference mask both sides hold,
``w`` one bit per coordinate that the reference keeps. A blob that uses a reference carries its 8-byte fingerprint.
Values are the kept coordinates, little-endian, in row-major order.

Decoding checks everything against the declared model (``like``) before it allocates: a byte string yields a tree with
exactly those names, shapes and dtypes, or ``WireError`` with one of ``REASONS``.

>>> like = {"w": torch.tensor([[1.0, 0.0], [0.0, 4.0]])}
>>> mask = {"w": like["w"] != 0}
>>> tree, kept = decode(encode(like, mask), like)
>>> tree["w"].tolist(), int(kept["w"].sum())
([[1.0, 0.0], [0.0, 4.0]], 2)
"""

import hashlib
import json
import struct
from typing import Literal

import numpy as np
import torch

from core.errors import WireError
from core.trees import Mask, Tree, require_same_names

MAGIC = b"PRNL"
VERSION = 1
REASONS = ("malformed", "version", "name", "shape", "dtype", "mask", "reference", "length")
_PREFIX = struct.Struct("<4sBBI")
_HAS_VALUES, _HAS_REFERENCE = 1, 2
_DTYPES = {"f2": torch.float16, "b2": torch.bfloat16, "f4": torch.float32, "f8": torch.float64, "i8": torch.int64}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
Mode = Literal["f", "e", "b", "r", "w"]


def _bits(mask: torch.Tensor) -> np.ndarray:
    return mask.detach().cpu().reshape(-1).numpy()


def fingerprint(mask: Mask) -> bytes:
    """Eight bytes that identify a mask: names, shapes and every bit."""
    digest = hashlib.sha256()
    for name in sorted(mask):
        digest.update(f"{name}{tuple(mask[name].shape)}".encode())
        digest.update(np.packbits(_bits(mask[name])).tobytes())
    return digest.digest()[:8]


def _mode(bits: np.ndarray, reference: np.ndarray | None) -> Mode:
    if reference is not None and np.array_equal(bits, reference):
        return "r"
    kept = int(np.count_nonzero(bits))
    if kept == bits.size:
        return "f"
    if kept == 0:
        return "e"
    if reference is not None and not np.any(bits & ~reference):
        return "w"
    return "b"


def _mask_bytes(mode: Mode, bits: np.ndarray, reference: np.ndarray | None) -> bytes:
    if mode == "b":
        return np.packbits(bits).tobytes()
    if mode == "w" and reference is not None:
        return np.packbits(bits[reference]).tobytes()
    return b""


def _value_bytes(tensor: torch.Tensor, bits: np.ndarray, mode: Mode) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    kept = flat if mode == "f" else flat[torch.from_numpy(bits)]
    return kept.view(torch.uint8).numpy().tobytes()


def _assemble(tree: Tree, mask: Mask, reference: Mask | None, values: bool) -> bytes:
    require_same_names(tree, mask, *([reference] if reference is not None else []))
    header: list[list[object]] = []
    masks: list[bytes] = []
    body: list[bytes] = []
    for name in sorted(tree):
        bits = _bits(mask[name])
        base = _bits(reference[name]) if reference is not None else None
        mode = _mode(bits, base)
        header.append([name, _NAMES[tree[name].dtype] if values else "m", list(tree[name].shape), mode])
        masks.append(_mask_bytes(mode, bits, base))
        if values:
            body.append(_value_bytes(tree[name], bits, mode))
    uses_reference = reference is not None and any(row[3] in ("r", "w") for row in header)
    flags = (_HAS_VALUES if values else 0) | (_HAS_REFERENCE if uses_reference else 0)
    text = json.dumps(header, separators=(",", ":")).encode()
    mark = fingerprint(reference) if uses_reference and reference is not None else b""
    return b"".join([_PREFIX.pack(MAGIC, VERSION, flags, len(text)), mark, text, *masks, *body])


def encode(tree: Tree, mask: Mask, reference: Mask | None = None) -> bytes:
    """The coordinates of ``tree`` inside ``mask``; with ``reference``, a mask the receiver already holds."""
    for name, tensor in tree.items():
        if tensor.dtype not in _NAMES:
            raise WireError("dtype", f"{name}: {tensor.dtype} has no code on the wire")
    return _assemble(tree, mask, reference, values=True)


def encode_mask(mask: Mask, reference: Mask | None = None) -> bytes:
    """A mask without values."""
    return _assemble(mask, mask, reference, values=False)


class _Reader:
    """A cursor over untrusted bytes: every read is checked against what is left."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.at = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise WireError("length", f"{count} bytes were announced, {len(self.data) - self.at} are left")
        self.at += count
        return self.data[self.at - count : self.at]


def _header(reader: _Reader, values: bool) -> tuple[list[list[object]], bytes | None]:
    magic, version, flags, length = _PREFIX.unpack(reader.take(_PREFIX.size))
    if magic != MAGIC:
        raise WireError("malformed", "these bytes are not a coded tree")
    if version != VERSION:
        raise WireError("version", f"wire version {version} is not {VERSION}: update both sides to one release")
    if flags & ~3 or bool(flags & _HAS_VALUES) != values:
        raise WireError("malformed", f"flags {flags} do not fit this message")
    mark = bytes(reader.take(8)) if flags & _HAS_REFERENCE else None
    try:
        header = json.loads(bytes(reader.take(length)))
    except (ValueError, RecursionError) as error:
        raise WireError("malformed", "the header is not JSON") from error
    if not isinstance(header, list) or not all(isinstance(row, list) and len(row) == 4 for row in header):
        raise WireError("malformed", "the header is not a list of [name, dtype, shape, mode]")
    return header, mark


def _check_row(row: list[object], name: str, like: torch.Tensor, values: bool) -> Mode:
    label, dtype, shape, mode = row
    if label != name:
        raise WireError("name", f"expected the tensor {name!r} here")
    if shape != list(like.shape):
        raise WireError("shape", f"{name}: the shape is not the model's {tuple(like.shape)}")
    if dtype != (_NAMES.get(like.dtype) if values else "m"):
        raise WireError("dtype", f"{name}: the dtype is not the model's {like.dtype}")
    if mode not in ("f", "e", "b", "r", "w"):
        raise WireError("malformed", f"{name}: unknown mask mode")
    return mode


def _unpack(reader: _Reader, count: int, name: str) -> np.ndarray:
    packed = np.frombuffer(reader.take((count + 7) // 8), dtype=np.uint8)
    bits = np.unpackbits(packed)
    if bits[count:].any():
        raise WireError("mask", f"{name}: padding bits are set")
    return bits[:count].astype(bool)


def _read_mask(
    reader: _Reader, mode: Mode, like: torch.Tensor, reference: torch.Tensor | None, name: str
) -> np.ndarray:
    if mode in ("f", "e"):
        return np.full(like.numel(), mode == "f")
    if mode == "b":
        return _unpack(reader, like.numel(), name)
    if reference is None:
        raise WireError("reference", f"{name}: coded against a mask this side does not hold")
    base = _bits(reference)
    if mode == "r":
        return base.copy()
    bits = np.zeros(like.numel(), dtype=bool)
    bits[base] = _unpack(reader, int(np.count_nonzero(base)), name)
    return bits


def _masks(
    reader: _Reader, like: Tree, reference: Mask | None, values: bool
) -> tuple[dict[str, np.ndarray], dict[str, Mode]]:
    header, mark = _header(reader, values)
    if len(header) != len(like):
        raise WireError("name", f"{len(header)} tensors came, the model has {len(like)}")
    if mark is not None and (reference is None or mark != fingerprint(reference)):
        raise WireError("reference", "coded against a mask this side does not hold")
    known = reference if mark is not None else None
    modes = {name: _check_row(row, name, like[name], values) for row, name in zip(header, sorted(like), strict=True)}
    bits = {
        name: _read_mask(reader, mode, like[name], known[name] if known is not None else None, name)
        for name, mode in modes.items()
    }
    return bits, modes


def _as_mask(bits: dict[str, np.ndarray], like: Tree) -> Mask:
    return {name: torch.from_numpy(bits[name]).reshape(like[name].shape) for name in like}


def _end(reader: _Reader) -> None:
    if reader.at != len(reader.data):
        raise WireError("length", f"{len(reader.data) - reader.at} bytes too many")


def decode(data: bytes, like: Tree, reference: Mask | None = None) -> tuple[Tree, Mask]:
    """Tree and mask from bytes; zero outside the mask. ``like`` declares names, shapes and dtypes."""
    reader = _Reader(data)
    bits, _ = _masks(reader, like, reference, values=True)
    tree: Tree = {}
    for name in sorted(like):
        kept = torch.from_numpy(bits[name])
        raw = reader.take(int(np.count_nonzero(bits[name])) * like[name].element_size())
        values = (
            torch.frombuffer(bytearray(raw), dtype=like[name].dtype) if raw else like[name].new_empty(0, device="cpu")
        )
        flat = torch.zeros(like[name].numel(), dtype=like[name].dtype)
        flat[kept] = values
        tree[name] = flat.reshape(like[name].shape)
    _end(reader)
    return {name: tree[name] for name in like}, _as_mask(bits, like)


def decode_mask(data: bytes, like: Tree, reference: Mask | None = None) -> Mask:
    """A mask coded by ``encode_mask``, with the names and shapes of ``like``."""
    reader = _Reader(data)
    bits, _ = _masks(reader, like, reference, values=False)
    _end(reader)
    return _as_mask(bits, like)


def dense_bytes(tree: Tree) -> int:
    """Bytes the tensors alone take uncoded: what every saving is measured against."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tree.values())
