import numpy as np
import pytest
import torch

from prunella.core.errors import WireError
from prunella.strategies.secure_sum.fixed_point import GRID, decode, reduced
from prunella.strategies.secure_sum.vector import SecureSum, form_of, from_sum, length, opened, to_words

MASK = {"b": torch.tensor([True, False, True]), "a": torch.tensor([[True, False]])}
BUFFERS = {"n": torch.tensor(3), "m": torch.zeros(2)}


def client(seed: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    update = {name: torch.where(kept, torch.randn(kept.shape, generator=draw), 0.0) for name, kept in MASK.items()}
    return update, {"n": torch.tensor(8), "m": torch.randn(2, generator=draw)}


def test_a_sum_of_vectors_is_the_weighted_mean_of_updates_and_buffers() -> None:
    form, counts = form_of(SecureSum(), 3), [5, 10, 100_000]
    made = [client(seed) for seed in range(3)]
    words = [to_words(update, MASK, change, n, form) for (update, change), n in zip(made, counts, strict=True)]
    assert {len(w) for w in words} == {length(MASK, BUFFERS)}
    total = decode(reduced(np.sum(words, axis=0, dtype=np.uint64), form), form)
    update, change, weight = from_sum(total, MASK, BUFFERS, 3, form)
    weights = [5, 10, 65536]  # the most that a client counts for
    assert weight == sum(weights) and list(update) == ["b", "a"] and list(change) == ["n", "m"]
    for found, part in ((update, 0), (change, 1)):
        for name, mean in found.items():
            naive = sum(n * one[part][name].double() for n, one in zip(weights, made, strict=True)) / weight
            assert torch.allclose(mean, torch.as_tensor(naive), atol=GRID / 2, rtol=0), name


def test_what_a_server_reads_of_clients_of_one_weight_is_their_mean() -> None:
    updates, changes = zip(*(client(seed) for seed in range(5)), strict=True)
    found = opened(updates, MASK, changes, SecureSum())
    for mean, trees in zip(found, (updates, changes), strict=True):
        for name, tensor in mean.items():
            naive = torch.stack([tree[name].double() for tree in trees]).mean(0)
            assert torch.allclose(tensor, naive, atol=GRID / 2, rtol=0), name


def test_a_value_of_the_update_or_of_a_buffer_outside_the_range_is_seen_in_the_sum_alone() -> None:
    update, change = client(0)
    for wrong in ((update | {"b": torch.tensor([17.0, 0.0, 0.0])}, change), (update, change | {"n": torch.tensor(17)})):
        with pytest.raises(WireError, match="secure-sum.range"):
            opened([wrong[0]] * 2, MASK, [wrong[1]] * 2, SecureSum())
    large = update | {"b": torch.tensor([17.0, 0.0, 0.0])}
    small = update | {"b": torch.tensor([-15.0, 0.0, 0.0])}
    mean = opened([large, small], MASK, [change] * 2, SecureSum())[0]
    assert float(mean["b"][0]) == 1.0, "a sum within the range is exact, whatever it is made of"


@pytest.mark.parametrize(
    "wrong", [[0, 0], [1, 0], [2 * 65536 + 1, 0], [-5, 0], [7, 7 * 2**24 + 1], [7, -(7 * 2**24) - 1]]
)
def test_a_sum_that_no_clients_can_have_is_refused(wrong: list[int]) -> None:
    with pytest.raises(WireError):
        from_sum(np.array(wrong), {"a": torch.tensor([True])}, {}, 2, form_of(SecureSum(), 2))
