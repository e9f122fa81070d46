from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from prunella.core.errors import DataError
from prunella.tasks.datasets.images import open_image, shape_of, to_tensor

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def _png(array):
    buffer = BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def test_colour_pixels_come_back_exactly():
    x = to_tensor([_png(RGB)], (3, 5, 7))
    assert torch.equal(x, torch.from_numpy(RGB.transpose(2, 0, 1)).float()[None] / 255)


def test_a_model_may_view_them_as_rows():
    """As Flower's own quick-start network does, which a transposed picture would stop."""
    x = to_tensor([_png(RGB)] * 3, (3, 5, 7))
    assert x.is_contiguous() and x.view(-1, 3 * 5 * 7).shape == (3, 105)


def test_grey_pixels_come_back_exactly():
    assert torch.equal(to_tensor([_png(RGB[..., 0])], (1, 5, 7))[0, 0] * 255, torch.from_numpy(RGB[..., 0]).float())


def test_encoded_and_open_pictures_mix():
    x = to_tensor([_png(RGB), Image.fromarray(RGB)], (3, 5, 7))
    assert torch.equal(x[0], x[1])


def test_grey_becomes_colour_and_back():
    assert to_tensor([_png(RGB[..., 0])], (3, 5, 7)).shape == (1, 3, 5, 7)
    assert to_tensor([_png(RGB)], (1, 5, 7)).shape == (1, 1, 5, 7)


def test_another_size_is_refused_unless_resized():
    with pytest.raises(DataError, match="another size"):
        to_tensor([_png(RGB), _png(RGB[:4])], (3, 5, 7))
    flat = to_tensor([_png(np.full((9, 4, 3), 51, np.uint8))], (3, 32, 32), resize=True)
    assert flat.shape == (1, 3, 32, 32) and torch.allclose(flat, torch.tensor(0.2))


@pytest.mark.parametrize(
    "data", [b"", b"no picture", _png(RGB)[:60], _png(RGB)[:100], b"\x89PNG\r\n\x1a\n" + b"\0" * 40]
)
def test_what_cannot_be_read_is_counted_in_the_log(data, caplog):
    with pytest.raises(DataError, match=r"^images cannot be read, or have another size; the log"):
        to_tensor([data, _png(RGB)], (3, 5, 7))
    assert "1 of 2" in caplog.text


def test_sixteen_bits_are_refused_and_not_clipped():
    with pytest.raises(DataError, match="cannot be read"):
        to_tensor([_png(np.full((5, 7), 40000, np.uint16))], (1, 5, 7))


def test_an_oversized_picture_is_unreadable(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ValueError, match="oversized"):
        open_image(_png(RGB))


def test_none_is_an_empty_tensor_and_shape_is_read():
    assert to_tensor([], (3, 5, 7)).shape == (0, 3, 5, 7)
    assert shape_of(open_image(_png(RGB))) == (3, 5, 7)
    assert shape_of(open_image(_png(RGB[..., 0]))) == (1, 5, 7)
