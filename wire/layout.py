"""How a coded tree is laid out, for both halves of the codec: names of types, mask modes, frames, fingerprints.

>>> frames_of({"b": 3, "a": FRAME}, {"a": "f4", "b": "f4"})
[(Piece(name='a', start=0, stop=524288),), (Piece(name='b', start=0, stop=3),)]
"""

import hashlib
import struct
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from prunella.core.trees import Mask

MAGIC = b"PRNL"
VERSION = 3
# Coordinates of a frame: its arrays fit a core's second-level cache, and its entropy tables cost well under 0.1 %.
FRAME = 2**19
PREFIX = struct.Struct("<4sBBI")
HAS_VALUES, HAS_REFERENCE = 1, 2
DTYPES = {
    "f2": torch.float16,
    "b2": torch.bfloat16,
    "f4": torch.float32,
    "f8": torch.float64,
    "i8": torch.int64,
    "i1": torch.int8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MASK_ONLY = "m"
Mode = Literal["f", "e", "b", "r", "w"]
Bits = NDArray[np.bool_]
# Numbers travel as integers of their size: NumPy has no bfloat16, and an integer has no NaN to be changed on the way.
Numbers = NDArray[np.signedinteger]
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Scalar = TypeVar("Scalar", bound=np.generic)


class Piece(NamedTuple):
    """Coordinates ``start`` to ``stop`` of one flattened tensor."""

    name: str
    start: int
    stop: int

    def of(self, flat: Mapping[str, NDArray[Scalar]]) -> NDArray[Scalar]:
        return flat[self.name][self.start : self.stop]


Frame = tuple[Piece, ...]


def flat_bits(mask: torch.Tensor) -> Bits:
    bits: Bits = mask.detach().cpu().reshape(-1).numpy()
    return bits


def flat_numbers(tensor: torch.Tensor) -> Numbers:
    """The same bytes as integers."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    numbers: Numbers = flat.view(_INTEGERS[tensor.element_size()]).numpy()
    return numbers


def fingerprint(mask: Mask) -> bytes:
    """Eight bytes that identify a mask: names, shapes and every bit."""
    digest = hashlib.sha256()
    for name in sorted(mask):
        digest.update(f"{name}{tuple(mask[name].shape)}".encode())
        digest.update(np.packbits(flat_bits(mask[name])).tobytes())
    return digest.digest()[:8]


class Reference:
    """A mask both sides hold. To code or decode many trees against one, make this once."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask
        self._kept: dict[Piece, int] = {}

    def kept(self, piece: Piece) -> int:
        """Coordinates of the piece that the mask keeps."""
        if piece not in self._kept:
            self._kept[piece] = int(np.count_nonzero(flat_bits(self.mask[piece.name])[piece.start : piece.stop]))
        return self._kept[piece]

    @cached_property
    def mark(self) -> bytes:
        """The mask's fingerprint."""
        return fingerprint(self.mask)


def as_reference(reference: "Mask | Reference | None") -> Reference | None:
    return Reference(reference) if isinstance(reference, dict) else reference


def frames_of(sizes: Mapping[str, int], kinds: Mapping[str, str]) -> list[Frame]:
    """The frames of a tree with these coordinates and wire types: both sides derive them alike."""
    frames: list[Frame] = []
    pieces: list[Piece] = []
    left = FRAME
    for name in sorted(sizes):
        if pieces and kinds[pieces[-1].name] != kinds[name]:
            frames, pieces, left = [*frames, tuple(pieces)], [], FRAME
        start = 0
        while start < sizes[name]:
            stop = min(sizes[name], start + left)
            pieces.append(Piece(name, start, stop))
            start, left = stop, left - (stop - start)
            if not left:
                frames, pieces, left = [*frames, tuple(pieces)], [], FRAME
    return [*frames, tuple(pieces)] if pieces else frames
