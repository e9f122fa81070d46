"""Encoded or open images to one tensor [N, C, H, W] in [0, 1].

Grey or RGB as the shape says. Pictures of another size are refused, or resized (bilinear) where the dataset says so.
Errors say nothing of the images (``core.errors``).
"""

import struct
import zlib
from collections.abc import Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prunella.core.errors import of_data
from prunella.core.extras import require
from prunella.tasks.models.layers import Shape

if TYPE_CHECKING:
    from PIL.Image import Image

LEVELS = 255.0
GREY = ("1", "L", "LA")
DEEP = "IF"  # first letters of PIL's modes over 8 bits, which it would clip in silence


def open_image(data: bytes) -> "Image":
    """A picture from its encoded bytes. Raises ``OSError`` or ``ValueError`` when it is none."""
    require("vision", "PIL")
    from PIL import Image

    try:
        image = Image.open(BytesIO(data))
        image.load()
    except (SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError):
        raise ValueError("broken or oversized picture") from None
    return image


def shape_of(image: "Image") -> Shape:
    """(C, H, W), one channel for grey pictures and three for all others."""
    return (1 if image.mode in GREY else 3, image.height, image.width)


def pixels(image: "Image", shape: Shape, resize: bool) -> NDArray[np.uint8]:
    """One picture as [C, H, W] bytes. Raises ``ValueError`` for deeper pixels and, unless ``resize``, another size."""
    channels, height, width = shape
    if image.mode[0] in DEEP:
        raise ValueError("more than 8 bits per channel")
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        if not resize:
            raise ValueError(f"the picture is not {height}x{width}")
        image = image.resize((width, height), resample=2)  # PIL.Image.Resampling.BILINEAR
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def to_tensor(images: "Iterable[bytes | Image]", shape: Shape, resize: bool = False) -> Tensor:
    """All pictures, in order. Raises ``DataError`` where some cannot be read or have another size."""
    rows: list[NDArray[Any]] = []
    bad = 0
    for image in images:
        try:
            rows.append(pixels(open_image(image) if isinstance(image, bytes) else image, shape, resize))
        except (OSError, ValueError):
            bad += 1
    if bad:
        raise of_data("images cannot be read, or have another size", f"{bad} of {bad + len(rows)}, as {shape}")
    stacked = np.ascontiguousarray(np.stack(rows)) if rows else np.empty((0, *shape), np.uint8)  # for a model's `view`
    return torch.from_numpy(stacked).float() / LEVELS
