import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.pruning.ltp import further_masks, retained, softmax_choice, ticket_mask

G = torch.Generator().manual_seed(0)
PARAMS = {"a": torch.randn(20, 30, generator=G), "b": torch.randn(50, 10, generator=G), "bias": torch.zeros(10)}
NAMES = frozenset({"a", "b"})


@pytest.mark.parametrize(("first", "further"), [(0.3, 0.1), (0.265, 0.4), (0.0, 0.5)])
def test_retention_is_the_formula_in_every_layer_and_models_are_nested(first: float, further: float) -> None:
    mask = ticket_mask(PARAMS, NAMES, first, "rate")
    masks = [mask, *further_masks(PARAMS, mask, NAMES, (first, further, 5), "rate")]
    for i, model in enumerate(masks):
        for name in NAMES:
            exact = PARAMS[name].numel() * (1 - first) * (1 - further) ** i
            assert exact - 1 < int(model[name].sum()) <= exact + 1e-9
        assert bool(model["bias"].all())
    for larger, smaller in zip(masks, masks[1:], strict=False):
        assert not any(bool((smaller[n] & ~larger[n]).any()) for n in NAMES)
        for n in NAMES:
            gone = larger[n] & ~smaller[n]
            assert not gone.any() or PARAMS[n][smaller[n]].abs().min() >= PARAMS[n][gone].abs().max()


def test_as_printed_is_a_threshold_at_a_share_of_the_largest() -> None:
    mask = ticket_mask(PARAMS, NAMES, 0.3, "as_printed")
    for name in NAMES:
        assert torch.equal(mask[name], PARAMS[name].abs() > 0.3 * PARAMS[name].abs().max())


def test_on_uniform_magnitudes_the_threshold_keeps_the_share_the_paper_counts_with() -> None:
    uniform = {"a": torch.rand(100_000, generator=torch.Generator().manual_seed(1)) * 2 - 1}
    kept = ticket_mask(uniform, {"a"}, 0.3, "as_printed")["a"].float().mean()
    assert float(kept) == pytest.approx(0.7, abs=0.01)


def test_as_printed_a_smaller_second_degree_removes_nothing_and_a_larger_one_does() -> None:
    mask = ticket_mask(PARAMS, NAMES, 0.3, "as_printed")
    same = further_masks(PARAMS, mask, NAMES, (0.3, 0.1, 2), "as_printed")
    assert all(torch.equal(m[n], mask[n]) for m in same for n in NAMES)
    fewer = further_masks(PARAMS, mask, NAMES, (0.3, 0.5, 1), "as_printed")[0]
    assert all(0 < int(fewer[n].sum()) < int(mask[n].sum()) for n in NAMES)


@given(st.integers(1, 10_000), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 9))
def test_a_layer_never_vanishes_and_never_grows(size: int, first: float, further: float, times: int) -> None:
    counts = [retained(size, first, further, i) for i in range(times + 1)]
    assert counts == sorted(counts, reverse=True) and 1 <= counts[-1] and counts[0] <= size


def test_the_choice_follows_the_softmax_and_survives_large_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    picks = [softmax_choice([0.0, 1.0], generator) for _ in range(4000)]
    expected = float(torch.softmax(torch.tensor([0.0, 1.0]), 0)[1])
    assert sum(picks) / 4000 == pytest.approx(expected, abs=0.03)
    assert softmax_choice([1e6, 1e6 + 1000], generator) == 1
