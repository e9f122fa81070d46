"""Cells of the leakage claims: attacks whose control succeeds, and a bound that falls with the batch."""

from typing import Any

import numpy as np
import pytest
import torch

from prunella.benchmarks.engine.images import chosen_images
from prunella.benchmarks.papers import scheme_inversion
from prunella.benchmarks.papers.scheme_inversion import LEAKAGE
from prunella.core.trees import full_mask
from prunella.strategies.round.local import Received
from prunella.tasks.data import make_task
from prunella.tasks.task import initial

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 2, "rounds": 1, "local_steps": 1}
TINY |= {"batch_size": 8, "learning_rate": 0.1, "images": 1, "iterations": 100, "scheme": "random", "rate": 0.5}


def test_a_cell_scores_both_attacks_inside_the_schemes_mask_and_its_control_succeeds() -> None:
    found = scheme_inversion.leakage(TINY, 0, None)
    assert set(found) == {"gi", "sgi"} and 0.45 < found["sgi"]["kept"] < 0.6 and 0 <= found["gi"]["accuracy"] <= 1
    dense = scheme_inversion.leakage(LEAKAGE.control_of(TINY), 0, None)
    assert LEAKAGE.works(dense) and dense["sgi"]["kept"] == 1.0
    dense["gi"]["psnr"] = 19.9
    assert not LEAKAGE.works(dense)


BOUNDED = {**TINY, "rounds": 2, "images": 2, "iterations": 120, "rate": 0.3}


def test_the_spectrum_is_that_of_the_covariance() -> None:
    gradients = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    values = scheme_inversion.spectrum(gradients.split(7, dim=1))  # as weights come, tensor by tensor
    oracle = np.linalg.eigvalsh(np.cov(gradients.double().numpy().T))[-5:]
    assert len(values) == 5 and np.allclose(values.numpy(), oracle)


def test_a_batch_lowers_both_bounds_by_what_the_formulas_say() -> None:
    task = make_task("cnn", "digits", None)
    params, buffers = initial(task, 0)
    received, images = (
        Received(params, full_mask(params), buffers),
        chosen_images("digits", None, 0, scheme_inversion.SAMPLE),
    )
    one, two = (scheme_inversion.bounds({**BOUNDED, "attacked": batch}, task, received, images) for batch in (1, 2))
    assert one["rank"] == two["rank"] == scheme_inversion.SAMPLE - 1
    assert one["printed"] - two["printed"] == pytest.approx(2.0 * BOUNDED["rounds"])  # 2 log2 B a round
    assert one["corrected"] - two["corrected"] == pytest.approx(one["rank"] * BOUNDED["rounds"])  # d* log2 B a round


def test_a_dense_client_is_rebuilt() -> None:
    settings = scheme_inversion.BOUNDED.control_of({**BOUNDED, "attacked": 2, "sample": 5})
    assert (settings["scheme"], settings["attacked"]) == ("fedavg", 1)
    found = scheme_inversion.bounded_leakage({**settings, "images": 1}, 0, None)
    assert scheme_inversion.BOUNDED.works(found) and found["sgi"]["rank"] <= 4
