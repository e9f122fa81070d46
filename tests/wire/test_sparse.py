import numpy as np
import pytest
import torch

from prunella.core.errors import KeyMismatch
from prunella.wire import layout as wire_layout
from prunella.wire.sparse import SparseTree, zeros


def example(seed: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    shapes = {"w": (40, 7), "scalar": (), "none": (0, 3), "steps": (31,), "half": (50,)}
    tree = {name: torch.randn(shape, generator=g) for name, shape in shapes.items()}
    tree |= {"steps": tree["steps"].mul(100).long(), "half": tree["half"].half()}
    keep = dict(zip(shapes, (0.05, 2.0, 0.5, 0.0, 0.4), strict=True))
    return tree, {name: torch.rand(t.shape, generator=g) < keep[name] for name, t in tree.items()}


@pytest.mark.parametrize("frame", [7, 2**19])
@pytest.mark.parametrize("workers", [1, 3])
def test_dense_puts_every_value_where_the_mask_keeps_it(
    monkeypatch: pytest.MonkeyPatch, frame: int, workers: int
) -> None:
    monkeypatch.setattr(wire_layout, "FRAME", frame)
    monkeypatch.setattr("prunella.core.parallel.threads", lambda: workers)
    tree, mask = example()
    dense = SparseTree(mask, {name: t[mask[name]] for name, t in tree.items()}).dense()
    assert list(dense) == list(tree)
    for name, t in tree.items():
        assert dense[name].dtype == t.dtype
        assert torch.equal(dense[name], torch.where(mask[name], t, torch.zeros((), dtype=t.dtype)))


@pytest.mark.parametrize("odd", [0, 2, 4])
def test_values_that_do_not_fit_the_mask_are_refused(odd: int) -> None:
    mask = {"w": torch.tensor([True, True, True, False])}
    with pytest.raises(KeyMismatch):
        SparseTree(mask, {"w": torch.zeros(odd)}).dense()
    with pytest.raises(KeyMismatch):
        SparseTree(mask, {"v": torch.zeros(3)}).dense()


def test_zeros_do_not_overlap_and_begin_at_cache_lines() -> None:
    flat = zeros({"a": 3, "b": 0, "c": 17, "d": 5}, {"a": 4, "b": 8, "c": 1, "d": 8})
    assert [array.dtype.str[1:] for array in flat.values()] == ["i4", "i8", "i1", "i8"]
    for number, array in enumerate(flat.values(), start=1):
        assert not array.any()
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(flat.values(), start=1))
    at = [array.__array_interface__["data"][0] for array in flat.values() if array.size]
    assert all((address - at[0]) % 64 == 0 for address in at)
    assert zeros({}, {}) == {} and isinstance(flat["a"], np.ndarray)
