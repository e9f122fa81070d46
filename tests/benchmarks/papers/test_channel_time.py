"""A cell of C5 has every channel and both DP-SGDs, as ratios over plain SGD of the same turn."""

import pytest

from prunella.benchmarks.papers.channel_time import CHANNELS, OPACUS, OURS, training_time
from prunella.benchmarks.speed import defenses as bench


def test_every_arm_is_timed_and_only_channels_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "IMAGES", 64)
    found = training_time({"model": "lenet", "steps": 1, "repeat": 1}, 0, None)
    assert set(found) == {"none", OPACUS, OURS, *CHANNELS} and found["none"]["ratio"] == 1.0
    assert all(row["ratio"] > 0 and row["milliseconds"] > 0 for row in found.values())
    assert all((row["fit_seconds"] > 0) == (name in CHANNELS) for name, row in found.items())
