import sys

import pytest
import torch

from benchmarks.aggregate import aggregate, measure, memory, reply, traffic
from benchmarks.updates import examples, real_update
from core.trees import apply_mask
from strategies.replies import Expected
from tests.benchmarks.test_updates import QUICK


@pytest.fixture(scope="module")
def update():
    return real_update("vgg-4", "magnitude", examples(None, 1)[0], QUICK)


def test_the_path_that_is_timed_is_the_mean(update) -> None:
    params = apply_mask({name: torch.ones_like(t) for name, t in update.update.items()}, update.base)
    mean, seconds = aggregate([reply(update, 3)], 5, Expected(1, params, update.base, {}, defenses=("none",)))
    assert len(seconds) == 6
    for name, weight in params.items():
        assert torch.allclose(mean[name], weight + update.update[name], atol=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_replies(update) -> None:
    few, many = (measure([update], replies)["growth"] for replies in (3, 30))
    assert many < few + 30 * 4 * sum(t.numel() for t in update.update.values()) / 10


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_figures_fit_each_other(update) -> None:
    before = memory("VmHWM")
    result = measure([update], 2)
    assert result["ratio"] == pytest.approx(result["seconds"] / result["needed"]) and before > 2**20
    assert result["kept"] == pytest.approx(0.2, abs=0.02)
    assert traffic(100, 7, 3) - traffic(100, 7, 2) == 2607
