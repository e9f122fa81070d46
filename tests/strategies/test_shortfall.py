"""A run that ends with more weights than its rate leaves says so, and why; one that reached it says nothing."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prunella.deploy.console.summary import rows
from tests.server.test_rounds import go, series


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
    ],
)
def test_a_rate_that_was_reached_needs_no_word(tmp_path: Path, settings: dict[str, object]) -> None:
    assert go(tmp_path, rounds=2, rate=0.5, defenses="none", **settings).store.run()["note"] is None


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
