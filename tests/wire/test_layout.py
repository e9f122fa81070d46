import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.wire import layout as wire_layout
from prunella.wire.layout import Piece, Reference, as_reference, fingerprint, flat_numbers, frames_of


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 40), max_size=6), st.integers(1, 17), st.randoms())
def test_frames_cover_every_coordinate_once_in_order(sizes: dict[str, int], room: int, random) -> None:
    kinds = {name: random.choice(["f4", "i8"]) for name in sizes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_layout, "FRAME", room)
        frames = frames_of(sizes, kinds)
    covered = [(piece.name, i) for frame in frames for piece in frame for i in range(piece.start, piece.stop)]
    assert covered == [(name, i) for name in sorted(sizes) for i in range(sizes[name])]
    assert all(0 < sum(piece.stop - piece.start for piece in frame) <= room for frame in frames)
    assert all(len({kinds[piece.name] for piece in frame}) == 1 for frame in frames)


def test_fingerprint_depends_on_every_bit_and_on_shape() -> None:
    a = {"w": torch.tensor([[True, False], [True, True]])}
    assert fingerprint(a) == fingerprint({"w": a["w"].clone()})
    assert fingerprint(a) != fingerprint({"w": a["w"].reshape(4)})
    assert fingerprint(a) != fingerprint({"w": ~a["w"]})
    assert fingerprint(a) != fingerprint({"v": a["w"]})


@pytest.mark.parametrize("dtype", wire_layout.DTYPES.values())
def test_numbers_are_the_bytes_in_row_major_order(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).to(dtype).reshape(2, 3).t()
    numbers = flat_numbers(tensor)
    assert numbers.itemsize == dtype.itemsize
    assert torch.equal(torch.from_numpy(numbers.copy()).view(dtype).reshape(3, 2), tensor)


def test_a_reference_is_its_mask_and_counts_it() -> None:
    mask = {"w": torch.tensor([[True, False], [True, True]])}
    base = as_reference(mask)
    assert isinstance(base, Reference) and as_reference(base) is base and as_reference(None) is None
    assert base.mark == fingerprint(mask)
    assert [base.kept(Piece("w", *ends)) for ends in ((0, 4), (1, 3), (1, 3))] == [3, 1, 1]
