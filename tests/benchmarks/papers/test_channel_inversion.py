"""A cell of C3: noise of a channel keeps the image from the attack, which rebuilds it without one. C7: a direction."""

from typing import Any

import numpy as np
import torch

from prunella.benchmarks.papers import channel_inversion
from prunella.benchmarks.papers.channel_inversion import MEASURE

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 10, "images": 1, "iterations": 120}


def test_a_narrow_channel_hides_what_the_control_rebuilds() -> None:
    clear = MEASURE.make(MEASURE.control_of({**TINY, "channel": "natural", "kappa": 5}), 0, None)
    assert MEASURE.works(clear) and clear["ig"]["noise"] == 0
    noisy = channel_inversion.rebuilt({**TINY, "channel": "natural", "kappa": 5}, 0, None)
    assert noisy["ig"]["mse"] > 10 * clear["ig"]["mse"] and noisy["ig"]["noise"] > 0
    assert not MEASURE.works(noisy)


def test_a_direction_that_was_removed_has_no_variance_and_the_others_keep_theirs() -> None:
    images = torch.randn(30, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    less, eigenvalue = channel_inversion.without_direction(images, 1)
    whole, left = (np.linalg.eigvalsh(np.cov(x.flatten(1).double().numpy().T))[::-1] for x in (images, less))
    assert np.isclose(eigenvalue, whole[1]) and np.allclose(left, [*np.delete(whole, 1), 0], atol=1e-6)
    assert torch.allclose(less.mean(0), images.mean(0), atol=1e-6)


def test_scores_are_against_the_image_as_it_was() -> None:
    cell = {**TINY, "channel": "none", "kappa": "none", "removed": 0}
    whole = MEASURE.make(MEASURE.control_of(cell), 0, None)["ig"]
    less = channel_inversion.rebuilt(cell, 0, None)["ig"]
    assert whole["noise"] == whole["eigenvalue"] == 0 and less["eigenvalue"] > 0
    assert less["mse"] > 0.5 * less["noise"] > whole["mse"]
