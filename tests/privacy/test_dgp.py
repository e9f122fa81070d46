"""DGP against a full sort, and the error-feedback identity."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.randomness import rehearsal
from prunella.core.trees import Mask, Tree, apply_mask, full_mask
from prunella.privacy.defense import Outgoing
from prunella.privacy.dgp import DualPruning, dgp, dual_mask, removed_counts


def by_sorting(values: list[float], first: int, last: int) -> list[bool]:
    largest = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:first]
    rest = [i for i in range(len(values)) if i not in largest]
    smallest = sorted(rest, key=lambda i: (abs(values[i]), i))[:last]
    return [i not in largest and i not in smallest for i in range(len(values))]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0]), min_size=0, max_size=25),
    st.sampled_from([(0.05, 0.75), (0.1, 0.4), (0.0, 0.5), (0.3, 0.0), (0.0, 0.0)]),
)
def test_equals_a_full_sort(values: list[float], shares: tuple[float, float]) -> None:
    tensor = torch.tensor(values)
    mask = dual_mask(tensor, torch.ones_like(tensor, dtype=torch.bool), *shares)
    assert mask.tolist() == by_sorting(values, *removed_counts(len(values), *shares))


def test_counts_are_those_of_the_paper_on_a_large_layer() -> None:
    assert removed_counts(10_000, 0.05, 0.75) == (500, 7500)
    assert removed_counts(2400, 0.05, 0.43) == (120, 1032)


@pytest.mark.parametrize("total", range(40))
def test_small_layers_lose_their_largest_and_still_train(total: int) -> None:
    first, last = removed_counts(total, 0.05, 0.75)
    assert first >= min(total, 1) and first + last <= total
    assert total < 2 or first + last < total


def send(update: Tree, mask: Mask, state: dict[str, Tree], setting: DualPruning) -> tuple[Outgoing, dict[str, Tree]]:
    update = apply_mask(update, mask)
    return dgp(setting).apply(Outgoing(update, mask, mask, update), state, rehearsal(0, purpose="test"))


@pytest.mark.parametrize("setting", [DualPruning(), DualPruning(0.2, 0.4), DualPruning(0.0, 0.0)])
def test_sent_plus_waiting_is_the_sum_of_updates(setting: DualPruning) -> None:
    g = torch.Generator().manual_seed(0)
    like = {"w": torch.zeros(8, 5, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
    mask = {"w": torch.rand(8, 5, generator=g) > 0.2, "b": torch.tensor(True)}
    state, total, sent = dgp(setting).init(like), like, like
    for _ in range(30):
        update = {k: torch.randn(t.shape, generator=g, dtype=torch.float64) for k, t in like.items()}
        out, state = send(update, mask, state, setting)
        total = {k: total[k] + apply_mask(update, mask)[k] for k in like}
        sent = {k: sent[k] + out.update[k] for k in like}
    for k in like:
        torch.testing.assert_close(sent[k] + state["error"][k], total[k])
    assert bool(torch.count_nonzero(sent["w"]))


def test_removed_coordinates_still_participate_and_come_later() -> None:
    update = {"w": torch.tensor([9.0, 4.0, 3.0, 0.1, 0.2])}
    setting = DualPruning(top=0.2, bottom=0.4)
    out, state = send(update, full_mask(update), dgp(setting).init(update), setting)
    assert out.update["w"].tolist() == [0.0, 4.0, 3.0, 0.0, 0.0]
    assert bool(out.participates["w"].all()) and out.shared["w"].tolist() == [False, True, True, False, False]
    torch.testing.assert_close(state["error"]["w"], torch.tensor([9.0, 0.0, 0.0, 0.1, 0.2]))
    later, _ = send({"w": torch.tensor([-8.5, 1.0, 0.0, 0.0, 0.0])}, full_mask(update), state, setting)
    torch.testing.assert_close(later.update["w"], torch.tensor([0.5, 0.0, 0.0, 0.0, 0.2]))


def test_without_feedback_nothing_waits() -> None:
    update = {"w": torch.tensor([9.0, 4.0, 3.0, 0.1, 0.2])}
    _, state = send(update, full_mask(update), {"error": {"w": torch.ones(5)}}, DualPruning(feedback=False))
    assert not bool(state["error"]["w"].any())


def test_zero_shares_are_the_identity_and_pruned_coordinates_owe_nothing() -> None:
    update = {"w": torch.tensor([1.0, -2.0, 3.0])}
    mask = {"w": torch.tensor([True, False, True])}
    out, state = send(update, mask, {"error": {"w": torch.tensor([0.0, 5.0, 0.0])}}, DualPruning(0.0, 0.0))
    assert out.update["w"].tolist() == [1.0, 0.0, 3.0] and not bool(state["error"]["w"].any())
