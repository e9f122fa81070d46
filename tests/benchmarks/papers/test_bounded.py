"""The spectrum against NumPy's covariance, and a cell whose bound falls with the batch and whose control succeeds."""

from typing import Any

import numpy as np
import pytest
import torch

from prunella.benchmarks.engine.images import chosen_images
from prunella.benchmarks.papers import bounded
from prunella.core.trees import full_mask
from prunella.strategies.round.local import Received
from prunella.tasks.data import make_task
from prunella.tasks.task import initial

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 2, "rounds": 2, "local_steps": 1}
TINY |= {"batch_size": 8, "learning_rate": 0.1, "images": 2, "iterations": 120, "scheme": "random", "rate": 0.3}


def test_the_spectrum_is_that_of_the_covariance() -> None:
    gradients = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    values = bounded.spectrum(gradients.split(7, dim=1))  # as weights come, tensor by tensor
    oracle = np.linalg.eigvalsh(np.cov(gradients.double().numpy().T))[-5:]
    assert len(values) == 5 and np.allclose(values.numpy(), oracle)


def test_a_batch_lowers_both_bounds_by_what_the_formulas_say() -> None:
    task = make_task("cnn", "digits", None)
    params, buffers = initial(task, 0)
    received, images = Received(params, full_mask(params), buffers), chosen_images("digits", None, 0, bounded.SAMPLE)
    one, two = (bounded.bounds({**TINY, "attacked": batch}, task, received, images) for batch in (1, 2))
    assert one["rank"] == two["rank"] == bounded.SAMPLE - 1
    assert one["printed"] - two["printed"] == pytest.approx(2.0 * TINY["rounds"])  # 2 log2 B a round
    assert one["corrected"] - two["corrected"] == pytest.approx(one["rank"] * TINY["rounds"])  # d* log2 B a round


def test_a_dense_client_is_rebuilt() -> None:
    settings = bounded.BOUNDED.control_of({**TINY, "attacked": 2, "sample": 5})
    assert (settings["scheme"], settings["attacked"]) == ("fedavg", 1)
    found = bounded.leakage({**settings, "images": 1}, 0, None)
    assert bounded.BOUNDED.works(found) and found["sgi"]["rank"] <= 4
