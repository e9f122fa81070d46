"""A run that ends with more weights than its rate leaves says so, and why; one that reached it says nothing."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prunella.deploy.console.summary import rows
from prunella.tasks.task import initial
from tests.client.test_widths import went
from tests.server.test_rounds import final, go, series


@pytest.mark.parametrize(
    ("settings", "left", "why"),
    [
        ({"strategy": "magnitude", "magnitude__ramp_rounds": 4}, 0.75, "take magnitude.ramp-rounds=2 or more rounds"),
        ({"strategy": "random", "random-mask__ramp_rounds": 8}, 0.875, "take random-mask.ramp-rounds=2 or more"),
        ({"strategy": "lotteryfl", "lotteryfl__accuracy": 0.99}, 1.0, "for when lotteryfl prunes"),
        (
            {"strategy": "random", "random-mask__granularity": "filter", "model": f"{__name__}:narrow"},
            0.913,
            "hold no more, so take granularity=weight",
        ),
    ],
)
def test_a_rate_that_was_not_reached_is_told_with_the_reason(
    tmp_path: Path, settings: dict[str, object], left: float, why: str
) -> None:
    federation = go(tmp_path, rounds=2, rate=0.5, defenses="none", **settings)
    run = federation.store.run()
    assert series(federation, "mask_density_ratio")[-1] == pytest.approx(left, abs=2e-3)
    assert "rate=0.5 leaves 0.500 of the prunable weights, and" in run["note"] and why in run["note"]
    assert ("note", run["note"]) in rows(run, federation.store.metrics(), [])


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "magnitude", "magnitude__ramp_rounds": 2},
        {"strategy": "random", "random-mask__granularity": "filter"},
        {"strategy": "fedavg"},
        {"strategy": "prunefl"},
        {"strategy": "sparsyfed"},  # its mask is what any client kept
    ],
)
def test_a_rate_that_was_reached_needs_no_word(tmp_path: Path, settings: dict[str, object]) -> None:
    assert go(tmp_path, rounds=2, rate=0.5, defenses="none", **settings).store.run()["note"] is None


def test_weights_that_a_robust_rule_never_moves_are_told(tmp_path: Path) -> None:
    """Of three clients one has all channels: what it alone holds cannot be outvoted, and stays as it was drawn."""
    run = {"robust": "median", "min_clients": 3, "strategy": "fedavg", "rounds": 2}
    federation, _ = went(tmp_path / "narrow", {0: 0.25, 1: 0.5, 2: 1.0}, **run)
    first, after = initial(federation.task, 0)[0], final(tmp_path / "narrow").tree
    stayed = sum(int((after[name] == first[name]).sum()) for name in first)
    total = sum(tensor.numel() for tensor in first.values())
    assert stayed > 0.8 * total
    note, share = federation.store.run()["note"], federation.strategy.stats.still
    assert share == pytest.approx(stayed / total, abs=0.02)  # a dead pixel's weight has no gradient
    assert f"robust=median left {share:.0%} of the weights" in note and "that 3 clients hold" in note
    wide, _ = went(tmp_path / "wide", {}, **run)
    assert wide.strategy.stats.still == 0 and wide.store.run()["note"] is None


def narrow(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Most weights are in a layer whose channels are joined, and stay."""
    return Narrow(classes)


class Narrow(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.free, self.b, self.c = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(1, 4, 5)
        self.last = nn.Linear(8 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.b(self.free(x).relu()), self.c(x)], 1)
        logits: Tensor = self.last(joined.flatten(1))
        return logits
