"""Cells without a direction, of a batch and of training time: noise or company keeps an image from the attack."""

from typing import Any

import numpy as np
import pytest
import torch

from prunella.benchmarks.papers import channel_inversion
from prunella.benchmarks.papers.channel_inversion import CHANNELS, MEASURE, OPACUS, OURS, training_time
from prunella.benchmarks.speed import defenses as bench

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 10, "images": 1, "iterations": 120}


def test_a_direction_that_was_removed_has_no_variance_and_the_others_keep_theirs() -> None:
    images = torch.randn(30, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    less, eigenvalue = channel_inversion.without_direction(images, 1)
    whole, left = (np.linalg.eigvalsh(np.cov(x.flatten(1).double().numpy().T))[::-1] for x in (images, less))
    assert np.isclose(eigenvalue, whole[1]) and np.allclose(left, [*np.delete(whole, 1), 0], atol=1e-6)
    assert torch.allclose(less.mean(0), images.mean(0), atol=1e-6)


def test_scores_are_against_the_image_as_it_was() -> None:
    cell = {**TINY, "removed": 0}
    control = MEASURE.make(MEASURE.control_of(cell), 0, None)
    assert MEASURE.works(control)
    whole = control["ig"]
    less = channel_inversion.rebuilt(cell, 0, None)["ig"]
    assert whole["noise"] == whole["eigenvalue"] == 0 and less["eigenvalue"] > 0
    assert less["mse"] > 0.5 * less["noise"] > whole["mse"]


def cell(defense: str, batch: int, **options: float) -> dict[str, float]:
    asked = {**TINY, "defense": defense, "batch": batch, "options": {f"{defense}.{k}": v for k, v in options.items()}}
    return channel_inversion.rebuilt_mean(asked, 0, None)["ig"]


def test_the_control_is_one_undefended_image_and_it_is_rebuilt() -> None:
    asked = {**TINY, "defense": "gaussian", "batch": 8, "options": {"gaussian.deviation": 0.1}}
    control = channel_inversion.BATCHED.control_of(asked)
    assert (control["defense"], control["options"], control["batch"]) == ("none", {}, 1)
    found = channel_inversion.rebuilt_mean(control, 0, None)
    assert channel_inversion.BATCHED.works(found)
    noisy = cell("gaussian", 1, deviation=0.1)
    assert noisy["mse"] > 10 * found["ig"]["mse"] and noisy["mse_flat"] == found["ig"]["mse_flat"]


def test_the_mean_of_many_images_is_flatter() -> None:
    assert cell("none", 32)["mse_flat"] != cell("none", 1)["mse_flat"]


def test_every_arm_is_timed_and_only_channels_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "IMAGES", 64)
    found = training_time({"model": "lenet", "steps": 1, "repeat": 1}, 0, None)
    assert set(found) == {"none", OPACUS, OURS, *CHANNELS} and found["none"]["ratio"] == 1.0
    assert all(row["ratio"] > 0 and row["milliseconds"] > 0 for row in found.values())
    assert all((row["fit_seconds"] > 0) == (name in CHANNELS) for name, row in found.items())
