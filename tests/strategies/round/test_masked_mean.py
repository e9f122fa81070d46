import pytest
import torch

from prunella.core.errors import KeyMismatch
from prunella.core.trees import Tree, apply_mask
from prunella.strategies.round.masked_mean import Aggregation, MaskedSum
from prunella.wire.sparse import SparseTree

PREVIOUS = {"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}


def clients(count: int, keep: float, seed: int = 0) -> tuple[list[Tree], list[Tree], list[int]]:
    g = torch.Generator().manual_seed(seed)
    updates = [{"w": torch.randn(4, generator=g)} for _ in range(count)]
    masks = [{"w": torch.rand(4, generator=g) < keep} for _ in range(count)]
    return [apply_mask(u, m) for u, m in zip(updates, masks, strict=True)], masks, list(range(1, count + 1))


def mean_of(
    updates: list[Tree], masks: list[Tree], weights: list[int], aggregation: Aggregation, previous: Tree = PREVIOUS
) -> Tree:
    total = MaskedSum(previous)
    for update, mask, weight in zip(updates, masks, weights, strict=True):
        total.add(update, mask, weight)
    return total.result(previous, aggregation)


def by_loops(updates: list[Tree], masks: list[Tree], weights: list[int], printed: bool) -> list[float]:
    """PRI Alg. 1 line 11, coordinate by coordinate."""
    result = []
    for j, w in enumerate(PREVIOUS["w"].tolist()):
        shared = [(n, w + u["w"][j].item()) for u, m, n in zip(updates, masks, weights, strict=True) if m["w"][j]]
        divisor = sum(weights) if printed else sum(n for n, _ in shared)
        result.append(sum(n * v for n, v in shared) / divisor if shared or printed else w)
    return result


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("aggregation", ["holders", "as_printed"])
def test_equals_the_slow_loop(aggregation: str, seed: int) -> None:
    updates, masks, weights = clients(5, 0.4, seed)
    mean = mean_of(updates, masks, weights, aggregation)
    assert mean["w"].tolist() == pytest.approx(by_loops(updates, masks, weights, aggregation == "as_printed"), rel=1e-6)


@pytest.mark.parametrize("aggregation", ["holders", "as_printed"])
def test_a_full_mask_is_fedavg(aggregation: str) -> None:
    updates, masks, weights = clients(4, 1.1)
    local = [PREVIOUS["w"] + u["w"] for u in updates]
    fedavg = sum(n * w for n, w in zip(weights, local, strict=True)) / sum(weights)
    assert torch.allclose(mean_of(updates, masks, weights, aggregation)["w"], fedavg)


def test_nobody_shared_keeps_the_weight_for_holders_and_zeroes_it_as_printed() -> None:
    updates, masks = [{"w": torch.zeros(4)}], [{"w": torch.zeros(4, dtype=torch.bool)}]
    assert torch.equal(mean_of(updates, masks, [3], "holders")["w"], PREVIOUS["w"])
    assert torch.equal(mean_of(updates, masks, [3], "as_printed")["w"], torch.zeros(4))


def test_no_replies_leave_the_model_and_wrong_names_raise() -> None:
    total = MaskedSum(PREVIOUS)
    assert total.result(PREVIOUS, "holders") is PREVIOUS
    with pytest.raises(KeyMismatch):
        total.add({"v": torch.zeros(4)}, {"v": torch.ones(4).bool()}, 1)


def test_a_value_outside_the_spoken_mask_does_not_count() -> None:
    mean = mean_of([{"w": torch.ones(4)}], [{"w": torch.tensor([True, False, False, False])}], [1], "holders")
    assert mean["w"].tolist() == [2.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("aggregation", ["holders", "as_printed"])
def test_large_tensors_repeated_masks_and_threads_change_nothing(
    monkeypatch: pytest.MonkeyPatch, aggregation: str
) -> None:
    """Chunks of 7 coordinates in bundles, masks that repeat and change: the dense formula in float64, to the bit."""
    monkeypatch.setattr("prunella.strategies.round.masked_mean.CHUNK", 7)
    g = torch.Generator().manual_seed(3)
    previous = {"a": torch.randn(50, 9, generator=g), "b": torch.randn((), generator=g), "c": torch.zeros(0)}
    masks = [{n: torch.rand(t.shape, generator=g) < keep for n, t in previous.items()} for keep in (0.5, 0.5, 0.9)]
    spoken = [masks[i] for i in (0, 0, 1, 0, 2, 2)]
    updates = [{n: torch.randn(t.shape, generator=g) for n, t in previous.items()} for _ in spoken]
    weights = [3, 1, 4, 1, 5, 9]
    results = []
    for workers in (1, 3):
        monkeypatch.setattr("prunella.core.parallel.threads", lambda workers=workers: workers)
        results.append(mean_of(updates, spoken, weights, aggregation, previous))
    for name, w in previous.items():
        total = sum(n * (u[name] * m[name]).double() for n, u, m in zip(weights, updates, spoken, strict=True))
        share = sum(n * m[name].double() for n, m in zip(weights, spoken, strict=True))
        holders = torch.where(share > 0, w + total / share.clamp(min=1), w.double())
        slow = holders if aggregation == "holders" else (total + share * w) / sum(weights)
        assert torch.equal(results[0][name], results[1][name])
        assert torch.allclose(results[0][name].double(), slow, rtol=1e-6, atol=1e-12)


def test_nan_outside_the_spoken_mask_does_not_spread() -> None:
    mean = mean_of([{"w": torch.full((4,), torch.nan)}], [{"w": torch.zeros(4).bool()}], [1], "holders")
    assert torch.equal(mean["w"], PREVIOUS["w"])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("aggregation", ["holders", "as_printed"])
def test_kept_values_add_up_as_dense_updates_do(
    monkeypatch: pytest.MonkeyPatch, aggregation: str, workers: int
) -> None:
    """Masks that repeat, change, come back, are empty and full; some speak for more than they share."""
    monkeypatch.setattr("prunella.strategies.round.masked_mean.CHUNK", 7)
    monkeypatch.setattr("prunella.wire.layout.FRAME", 50)
    monkeypatch.setattr("prunella.core.parallel.threads", lambda: workers)
    g = torch.Generator().manual_seed(4)
    previous = {"a": torch.randn(50, 9, generator=g), "b": torch.randn((), generator=g), "c": torch.zeros(0)}
    masks = [{n: torch.rand(t.shape, generator=g) < keep for n, t in previous.items()} for keep in (0.3, 0.1, 0, 2)]
    small, large = MaskedSum(previous), MaskedSum(previous)
    for weight, (shared, spoken) in enumerate(
        [(0, 0), (0, 0), (1, 3), (1, 1), (0, 0), (2, 3), (3, 3), (0, 3)], start=1
    ):
        update = apply_mask({n: torch.randn(t.shape, generator=g) for n, t in previous.items()}, masks[shared])
        large.add(update, masks[spoken], weight)
        mask = {n: m.clone() for n, m in masks[shared].items()} if weight % 2 else masks[shared]
        small.add_sparse(SparseTree(mask, {n: t[mask[n]] for n, t in update.items()}), masks[spoken], weight)
    got, wanted = small.result(previous, aggregation), large.result(previous, aggregation)
    assert small.weight == large.weight == sum(range(1, 9))
    for name in previous:
        assert torch.allclose(got[name], wanted[name], rtol=1e-6, atol=1e-7) and got[name].dtype == torch.float32
    assert not torch.allclose(got["a"], previous["a"])


def test_a_dense_and_a_kept_update_add_up() -> None:
    mask = {"w": torch.tensor([True, False, True, False])}
    total = MaskedSum(PREVIOUS)
    total.add_sparse(SparseTree(mask, {"w": torch.tensor([1.0, 2.0])}), mask, 1)
    total.add({"w": torch.tensor([3.0, 0.0, 4.0, 5.0])}, {"w": torch.tensor([True, False, True, True])}, 1)
    assert total.result(PREVIOUS, "holders")["w"].tolist() == [3.0, 2.0, 6.0, 9.0]
    with pytest.raises(KeyMismatch):
        total.add_sparse(SparseTree({"v": mask["w"]}, {"v": torch.zeros(2)}), mask, 1)


def in_groups(items: list, size: int) -> list[list]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def mean_of_means(updates: list[Tree], masks: list[Tree], weights: list[int]) -> Tree:
    """Aggregators of three sites each, whose means go on as one update with the sum of their sites' weights."""
    groups = [list(zip(*group, strict=True)) for group in in_groups(list(zip(updates, masks, weights, strict=True)), 3)]
    means = [mean_of(list(u), list(m), list(n), "holders") for u, m, n in groups]
    shared = [{"w": torch.stack([each["w"] for each in m]).any(0)} for _, m, _ in groups]
    moved = [{"w": mean["w"] - PREVIOUS["w"]} for mean in means]
    return mean_of(moved, shared, [sum(n) for _, _, n in groups], "holders")


@pytest.mark.parametrize("seed", range(5))
def test_a_mean_of_means_is_the_mean_of_all_under_one_global_mask(seed: int) -> None:
    """docs/scale.md: several federations under one aggregation tree."""
    updates, masks, weights = clients(8, 0.6, seed)
    masks = [masks[0]] * len(masks)
    updates = [apply_mask(update, masks[0]) for update in updates]
    whole = mean_of(updates, masks, weights, "holders")
    assert torch.allclose(mean_of_means(updates, masks, weights)["w"], whole["w"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_under_masks_of_their_own_it_is_not_unless_every_coordinate_has_its_weight(seed: int) -> None:
    """docs/scale.md's proof, over two levels: means and weights by coordinate go up, as (mean, weight) pairs."""
    updates, masks, weights = clients(12, 0.2, seed)
    whole = mean_of(updates, masks, weights, "holders")
    assert (mean_of_means(updates, masks, weights)["w"] - whole["w"]).abs().max() > 0.01
    leaves = [
        (u["w"].double(), n * m["w"].double()) for u, m, n in zip(updates, masks, weights, strict=True)
    ]  # of one site each

    def joined(below: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        weight_at = sum(weight for _, weight in below)
        total = sum(mean * weight for mean, weight in below)
        return torch.where(weight_at > 0, total / weight_at, 0.0), weight_at

    federations = [joined(group) for group in in_groups(leaves, 3)]
    mean, weight_at = joined([joined(group) for group in in_groups(federations, 2)])
    assert torch.allclose(whole["w"].double(), PREVIOUS["w"] + mean, rtol=1e-6)
    assert torch.equal(whole["w"][weight_at == 0], PREVIOUS["w"][weight_at == 0])
