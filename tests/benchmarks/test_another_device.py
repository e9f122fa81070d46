"""Every claim, table and scenario on a device that is not there (``tests.pretended``): what a measure computes there
meets nothing that is on the CPU.

One cell of each measure and attack, made small. The board's scenarios are asked in
``tests/benchmarks/scenarios/test_meeting.py``, ``engine.views.answer`` is on the CPU.
"""

import math

import pytest
import torch

from prunella.benchmarks.engine import machine
from prunella.benchmarks.engine.claim import Claim, Settings
from prunella.benchmarks.registry import CLAIMS, TABLES

MOST: Settings = {
    **{"images": 1, "rounds": 2, "local_steps": 1, "steps": 1, "batch": 2, "batch_size": 2, "iterations": 2},
    **{"examples": 100, "passes": 40, "label_passes": 40, "repeat": 1, "components": 2, "trials": 200, "canaries": 20},
    **{"evaluate_every": 1, "attacked": 1, "known": 20, "victims": 4, "clients": 3},
}
INSTEAD: Settings = {"dataset": "digits", "inverter": {"shadows": 8, "epochs": 1, "polish": 2}, "fraction": 1.0}
LEFT_OUT = ("board", "traffic")  # traffic counts bytes, of models of CIFAR-10's shape
TOO_LARGE = ("cnn6", "ltp-1")  # for the images of "digits"


def of_every_measure() -> dict[str, tuple[Claim, Settings]]:
    """A cell of each measure and attack, and its claim, by name."""
    found: dict[str, tuple[Claim, Settings]] = {}
    for claim in (CLAIMS | TABLES).values():
        measure = claim.experiment.measure
        for cell in claim.experiment.sweeps["small"].cells if measure.name not in LEFT_OUT else ():
            found.setdefault(f"{measure.name} {cell.get('attack', '')}".strip(), (claim, cell))
    return found


def small(cell: Settings) -> Settings:
    """The cell, of seconds."""
    most = {key: min(value, MOST[key]) for key, value in cell.items() if key in MOST and isinstance(value, int)}
    instead = {key: value for key, value in INSTEAD.items() if key in cell}
    return {**cell, **most, **instead, **({"model": "cnn"} if cell.get("model") in TOO_LARGE else {})}


MEASURES = of_every_measure()


@pytest.mark.parametrize("name", MEASURES)
def test_a_cell_is_measured_on_another_device(name: str, pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_DEVICE", [torch.device("cuda", 0)])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    claim, cell = MEASURES[name]
    found = claim.experiment.measure.make(small(cell), 0, None)
    assert found and not any(math.isnan(value) for row in found.values() for value in row.values())
