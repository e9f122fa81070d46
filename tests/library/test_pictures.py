"""Pictures are PNGs that another program reads back, pixel by pixel."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prunella.core.randomness import stream
from prunella.library.pictures import GAP, encode, pairs, sheet, stacked, write


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_reads_back(channels: int) -> None:
    image = torch.rand(channels, 5, 7, generator=stream(0, purpose="image"))
    found = np.asarray(Image.open(io.BytesIO(encode(image)))).reshape(5, 7, channels)
    assert (found == (image * 255).round().permute(1, 2, 0).numpy().astype(np.uint8)).all()


def test_what_has_other_channels_shows_its_first() -> None:
    image = torch.rand(2, 4, 4, generator=stream(0, purpose="image"))
    assert encode(image) == encode(image[:1])


def test_a_sheet_holds_every_image_enlarged_and_fills_its_last_row() -> None:
    images = torch.rand(5, 1, 64, 64, generator=stream(0, purpose="image"))
    made = sheet(images, width=3)
    step = 2 * 64 + GAP
    assert made.shape == (1, 2 * step + GAP, 3 * step + GAP)
    for number, image in enumerate(images):
        row, column = divmod(number, 3)
        place = made[:, GAP + row * step :, GAP + column * step :][:, :128:2, :128:2]
        assert torch.equal(place, image)
    assert torch.equal(made[:, GAP + step :, GAP + 2 * step :].unique(), torch.tensor([0.5]))


def test_originals_stand_above_what_was_made_of_them(tmp_path: Path) -> None:
    black, white = torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8)
    made = pairs(black, white)
    half = made.shape[1] // 2
    assert made[:, GAP + 1, GAP + 1] == 0 and made[:, half + GAP, GAP + 1] == 1
    assert stacked([made, made[..., :20]]).shape == (1, 2 * made.shape[1], made.shape[2])
    path = write(made, tmp_path / "x.png")
    assert path.stat().st_mode & 0o777 == 0o600 and Image.open(path).size == (made.shape[2], made.shape[1])
