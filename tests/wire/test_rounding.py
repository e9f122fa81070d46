import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.errors import WireError
from prunella.core.trees import full_mask
from prunella.wire.rounding import CODES, restore, round_tree

FLOATS = st.lists(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=20)


def through(tensor: torch.Tensor, values) -> torch.Tensor:
    codes, scales = round_tree({"w": tensor}, full_mask({"w": tensor}), values)
    assert codes["w"].dtype == CODES[values]
    return restore(codes["w"], scales["w"], tensor.dtype)


@given(FLOATS)
def test_int8_is_the_nearest_of_255_steps(values: list[float]) -> None:
    tensor = torch.tensor(values)
    largest = tensor.abs().max().item()
    step = max(largest / 127, 2.0**-149)
    assert (through(tensor, "int8") - tensor).abs().max() <= step * 0.5000001 + 2.0**-149
    steps = torch.arange(-127, 128, dtype=torch.float64) * step
    nearest = steps[(tensor.double()[:, None] - steps).abs().argmin(dim=1)]
    assert ((nearest - tensor).abs() - (through(tensor, "int8") - tensor).abs().double()).abs().max() <= step * 1e-5


@given(FLOATS, st.sampled_from([1.0, 1e-20]))
def test_float16_keeps_eleven_bits_of_all_but_the_smallest(values: list[float], small: float) -> None:
    tensor = torch.tensor(values) * small
    got, largest = through(tensor, "float16"), tensor.abs().max()
    near = tensor.abs() >= largest * 2.0**-27
    assert ((got - tensor).abs()[near] <= tensor.abs()[near] * 2.0**-11 + 2.0**-149).all()
    assert torch.isfinite(got).all() and ((got - tensor).abs() <= largest * 2.0**-11 + 2.0**-149).all()


def test_rounding_is_repeatable_and_of_the_kept_values_only() -> None:
    tree = {"w": torch.tensor([1.0, 1000.0]), "n": torch.tensor([3, 4])}
    mask = {"w": torch.tensor([True, False]), "n": torch.tensor([True, False])}
    codes, scales = round_tree(tree, mask, "int8")
    assert codes["w"].tolist() == [127, 0] and scales == {"w": 1 / 127}
    assert codes["n"].dtype == torch.int64 and codes["n"].tolist() == [3, 0]
    assert tree["w"].tolist() == [1.0, 1000.0]
    assert round_tree(tree, mask, "float32") == (tree, {})


def test_empty_and_zero_tensors_stay_so() -> None:
    for values in CODES:
        assert through(torch.zeros(3), values).tolist() == [0, 0, 0]
        assert through(torch.zeros(0, 2), values).shape == (0, 2)
        assert through(torch.tensor(-2.0), values).item() == -2.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_raises_and_names_no_value(bad: float) -> None:
    for values in CODES:
        with pytest.raises(WireError, match="conv: a value is not finite") as caught:
            round_tree({"conv": torch.tensor([1.5, bad])}, {"conv": torch.tensor([True, True])}, values)
        assert caught.value.reason == "value" and "1.5" not in str(caught.value)
    codes, _ = round_tree({"conv": torch.tensor([1.5, bad])}, {"conv": torch.tensor([True, False])}, "int8")
    assert codes["conv"].tolist() == [127, 0]
