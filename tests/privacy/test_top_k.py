"""Top-k against a full sort, and the error-feedback identity."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import apply_mask, full_mask
from prunella.privacy.defense import Outgoing
from prunella.privacy.top_k import TopK, top_k, top_mask


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0]), st.booleans()), max_size=20),
    st.sampled_from([0.01, 0.2, 0.5, 1.0]),
)
def test_equals_a_full_sort_inside_the_mask(rows: list[tuple[float, bool]], keep: float) -> None:
    inside = [i for i, (_, kept) in enumerate(rows) if kept]
    best = sorted(inside, key=lambda i: (-abs(rows[i][0]), i))[: -int(-keep * len(inside) // 1)]
    values, mask = torch.tensor([v for v, _ in rows]), torch.tensor([m for _, m in rows], dtype=torch.bool)
    assert top_mask(values, mask, keep).nonzero().flatten().tolist() == sorted(best)


@pytest.mark.parametrize("keep", [0.2, 0.05, 1.0])
def test_sent_plus_waiting_is_the_sum_of_updates(keep: float) -> None:
    g = torch.Generator().manual_seed(0)
    like = {"w": torch.zeros(8, 5, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
    mask = {"w": torch.rand(8, 5, generator=g) > 0.2, "b": torch.tensor(True)}
    defense = top_k(TopK(keep))
    state, total, sent = defense.init(like), like, like
    for _ in range(30):
        update = apply_mask({k: torch.randn(t.shape, generator=g, dtype=t.dtype) for k, t in like.items()}, mask)
        out, state = defense.apply(Outgoing(update, mask, mask, update), state, rehearsal(0, purpose="test"))
        assert int(out.shared["w"].sum()) == -int(-keep * int(mask["w"].sum()) // 1) and bool(out.shared["b"])
        assert out.participates is mask
        total = {k: total[k] + update[k] for k in like}
        sent = {k: sent[k] + out.update[k] for k in like}
    for k in like:
        torch.testing.assert_close(sent[k] + state["error"][k], total[k])


def test_without_feedback_nothing_waits_and_pruned_coordinates_owe_nothing() -> None:
    update = {"w": torch.tensor([9.0, 4.0, 0.0])}
    full = full_mask(update)
    _, state = top_k(TopK(0.3, feedback=False)).apply(Outgoing(update, full, full, update), {"error": update}, None)  # type: ignore[arg-type]
    assert not bool(state["error"]["w"].any())
    mask = {"w": torch.tensor([True, True, False])}
    owed = {"error": {"w": torch.tensor([0.0, 0.0, 5.0])}}
    out, state = top_k(TopK(0.5)).apply(Outgoing(update, mask, mask, update), owed, None)  # type: ignore[arg-type]
    assert out.update["w"].tolist() == [9.0, 0.0, 0.0] and state["error"]["w"].tolist() == [0.0, 4.0, 0.0]


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1])
def test_a_share_that_sends_nothing_is_refused(keep: float) -> None:
    with pytest.raises(ConfigError):
        TopK(keep)
