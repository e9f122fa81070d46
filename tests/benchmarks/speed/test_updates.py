"""The updates are those of a client: inside their masks, at the rate asked for, the same for the same seed."""

import pytest
import torch

from prunella.benchmarks.speed.updates import KINDS, LocalTraining, examples, real_update
from prunella.core.trees import apply_mask, density

QUICK = LocalTraining(seed=1, steps=1, batch=4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_shares_a_fifth_and_nothing_else(kind: str) -> None:
    images, source = examples(None, 1)
    assert source == "synthetic" and images.x.shape[1:] == (3, 32, 32)
    one, again = (real_update("cnn", kind, images, QUICK) for _ in range(2))
    assert density(one.shared) == pytest.approx(0.2, abs=0.02)
    assert all(torch.equal(one.update[n], again.update[n]) for n in one.update)
    outside = apply_mask(one.update, {n: ~m for n, m in one.shared.items()})
    assert not any(torch.count_nonzero(t) for t in outside.values())
    assert any(torch.count_nonzero(t) for t in one.update.values())
    assert all(not (one.shared[n] & ~one.base[n]).any() for n in one.shared)
