import sys

import pytest
import torch

from prunella.benchmarks.speed.aggregate import aggregate, dense_traffic, measure, memory, prepare, traffic
from prunella.benchmarks.speed.updates import Update, examples, real_update
from tests.benchmarks.speed.test_updates import QUICK


@pytest.fixture(scope="module")
def update():
    return real_update("vgg-4", "magnitude", examples(None, 1)[0], QUICK)


def test_the_path_that_is_timed_is_the_mean(update) -> None:
    half = Update(update.base, {name: t / 2 for name, t in update.update.items()}, update.shared)
    strategy, params, messages = prepare([update, half], 5)
    mean, seconds = aggregate(strategy, messages)
    assert len(seconds) == 6 and strategy.stats.replies == 5 and strategy.stats.withheld == 0
    for name, weight in params.items():
        assert torch.allclose(mean[name], weight + update.update[name] * 5 / 7, atol=1e-6)  # weights 1, 2, 1, 2, 1


def test_a_reply_that_is_left_out_is_no_result(update) -> None:
    strategy, _, messages = prepare([update], 2)
    messages[1].content["provenance"]["round"] = 7
    with pytest.raises(ValueError, match="stale"):
        aggregate(strategy, messages)


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
    assert result["dense_ratio"] < result["ratio"]
    assert dense_traffic(100, 7, 3) - dense_traffic(100, 7, 2) == 2607
    assert traffic(100, 20, 7, 3) - traffic(100, 20, 7, 2) == 487 and traffic(100, 20, 7, 0) == 4000
