import pytest
import torch

from prunella.core import trees
from prunella.core.errors import KeyMismatch

A = {"w": torch.tensor([1.0, -2.0]), "b": torch.tensor(3.0)}
M = {"w": torch.tensor([True, False]), "b": torch.tensor(True)}


@pytest.mark.parametrize(
    "call",
    [
        lambda o: trees.add(A, o),
        lambda o: trees.subtract(A, o),
        lambda o: trees.apply_mask(A, o),
        lambda o: trees.where(M, A, o),
        lambda o: trees.map_trees(torch.mul, A, o),
    ],
)
def test_unequal_names_raise_and_name_the_difference(call) -> None:
    with pytest.raises(KeyMismatch, match="extra"):
        call({**M, "extra": torch.tensor(True)})


def test_masking_clears_even_nan_and_leaves_the_input_alone() -> None:
    tree = {"w": torch.tensor([1.0, float("nan")]), "b": torch.tensor(3.0)}
    masked = trees.apply_mask(tree, M)
    assert masked["w"].tolist() == [1.0, 0.0]
    assert torch.isnan(tree["w"][1])


def test_density_counts_zero_dimensional_tensors() -> None:
    assert trees.density(M) == pytest.approx(2 / 3)
    assert trees.count(trees.invert(M)) == 1
    assert trees.density({}) == 1.0


def test_norm_is_over_all_coordinates() -> None:
    assert trees.l2(A).item() == pytest.approx(14**0.5)
    assert trees.l2({}).item() == 0.0


def test_where_takes_the_first_inside_the_mask() -> None:
    mixed = trees.where(M, A, trees.zeros_like(A))
    assert mixed["w"].tolist() == [1.0, 0.0]
    assert mixed["b"].item() == 3.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_one_value_that_is_not_finite_is_found_anywhere(bad: float, dtype: torch.dtype) -> None:
    for at in (0, 17, 99):
        tree = {"a": torch.zeros(100, dtype=dtype), "s": torch.tensor(1.0), "none": torch.zeros(0)}
        assert trees.all_finite(tree)
        tree["a"][at] = bad
        assert not trees.all_finite(tree)
    assert not trees.all_finite({"s": torch.tensor(bad)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_masking_has_the_bits_of_where(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, float("inf"), -1.5, float("nan"), 3.0, -0.0, 2.0])
    tensor = values.nan_to_num(0, 5, 5).to(dtype) if dtype is torch.int64 else values.to(dtype)
    for kept in (torch.arange(8) % 2 == 0, torch.arange(8) % 2 == 1):
        masked = trees.apply_mask({"w": tensor}, {"w": kept})["w"]
        plain = torch.where(kept, tensor, torch.zeros((), dtype=dtype))
        assert masked.dtype == dtype and masked.numpy().tobytes() == plain.numpy().tobytes()


def test_a_gradient_flows_through_a_mask() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    trees.apply_mask({"w": w}, {"w": torch.tensor([True, False])})["w"].sum().backward()
    assert w.grad is not None and w.grad.tolist() == [1.0, 0.0]


def test_what_is_taken_comes_back_to_its_places() -> None:
    whole = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3.0)}
    at = {"w": torch.tensor([[5, 0], [1, 4]])}
    part = trees.take(whole, at)
    assert part["w"].tolist() == [[5, 0], [1, 4]] and part["b"] is whole["b"]
    assert all(torch.equal(trees.put(whole, part, at)[name], tensor) for name, tensor in whole.items())
    moved = trees.put(whole, trees.scale(part, -1), at)
    assert moved["w"].tolist() == [[0, -1, 2], [3, -4, -5]] and moved["b"] == -3
    assert whole["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
