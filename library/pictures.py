"""Sheets of images as PNG, with nothing but the standard library: a plain installation shows and saves pictures.

Images are [N, C, H, W] in [0, 1], C = 1 or 3; of any other number of channels the first is shown.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from prunella.core.files import write_atomically

SIDE = 128  # pixels a picture is enlarged to, so that an 8x8 digit can be looked at
WIDTH = 8  # pictures in a row
GAP, GREY = 4, 0.5
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def shown(image: Tensor) -> Tensor:
    """What of an image [C, H, W] can be shown.

    >>> [len(shown(torch.zeros(channels, 2, 2))) for channels in (1, 2, 3, 4)]
    [1, 1, 3, 1]
    """
    return image if image.shape[0] in (1, 3) else image[:1]


def encode(image: Tensor) -> bytes:
    """One image [C, H, W] in [0, 1] as an 8-bit PNG (W3C PNG specification, section 5; no filter).

    >>> encode(torch.zeros(1, 2, 2))[:8] == _SIGNATURE
    True
    """
    pixels = (shown(image).detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    height, width, channels = pixels.shape
    rows = pad(pixels.reshape(height, -1), (1, 0))  # each row begins with the number of its filter, 0
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows.numpy().tobytes())), (b"IEND", b"")
    return _SIGNATURE + b"".join(_chunk(*part) for part in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def sheet(images: Tensor, width: int = WIDTH) -> Tensor:
    """All images [N, C, H, W] in one [C, H', W'], ``width`` in a row, enlarged without smoothing to about ``SIDE``."""
    factor = max(1, SIDE // max(images.shape[-2:]))
    large = interpolate(images.detach().cpu().float().clamp(0, 1), scale_factor=factor, mode="nearest")
    framed = pad(large, (0, GAP, 0, GAP), value=GREY)
    blank = torch.full_like(framed[:1], GREY)
    rows = [
        torch.cat([*row, *[blank[0]] * (min(width, len(framed)) - len(row))], dim=-1)
        for row in torch.split(framed, width)
    ]
    return pad(torch.cat(rows, dim=-2), (GAP, 0, GAP, 0), value=GREY)


def pairs(originals: Tensor, rebuilt: Tensor) -> Tensor:
    """A sheet whose first row shows up to ``WIDTH`` originals and whose second what was made of them."""
    return sheet(torch.cat([originals[:WIDTH], rebuilt[:WIDTH]]), min(WIDTH, len(originals)))


def stacked(sheets: Sequence[Tensor]) -> Tensor:
    """Sheets [C, H, W] below each other, the narrower ones filled up."""
    widest = max(each.shape[-1] for each in sheets)
    return torch.cat([pad(each, (0, widest - each.shape[-1]), value=GREY) for each in sheets], dim=-2)


def write(image: Tensor, path: Path) -> Path:
    """Write one image [C, H, W] as PNG, owner-readable only: it may show what nobody else should see."""
    write_atomically(path, lambda temporary: temporary.write_bytes(encode(image)))
    return path
