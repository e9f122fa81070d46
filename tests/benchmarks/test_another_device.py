"""Claims whose answers meet what is on the CPU, on a device that is not there (``tests.pretended``).

Cells of the board are asked in ``tests/benchmarks/scenarios/test_meeting.py``; ``engine.views.answer`` is on the CPU.
"""

import math
from typing import Any

import pytest
import torch

from prunella.benchmarks.engine import machine
from prunella.benchmarks.engine.claim import Found
from prunella.benchmarks.papers import channel_denoised, channel_inversion, masked_sums

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "images": 1, "iterations": 2}


def summed() -> Found:
    return masked_sums.make({**TINY, "sites": 2, "components": 2}, 0, None)


def batched() -> Found:
    return channel_inversion.rebuilt_mean(
        {**TINY, "clients": 10, "defense": "none", "batch": 2, "options": {}}, 0, None
    )


def denoised() -> Found:
    return channel_denoised.denoised({**TINY, "channel": "white", "kappa": 50, "examples": 100}, 0, None)


@pytest.mark.parametrize("cell", [summed, batched, denoised])
def test_a_cell_is_measured_on_another_device(cell: Any, pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_DEVICE", [torch.device("cuda", 0)])
    assert all(math.isfinite(row["psnr"]) for row in cell().values())
