"""Networks of one width that differ as they say, batch norm in both modes, and a cell from beginning to end."""

from pathlib import Path

import pytest
import torch
from torch import nn

from prunella.benchmarks.papers import norm_modes
from prunella.core.randomness import stream
from prunella.tasks.task import Task, initial

X = torch.rand(4, 3, 32, 32, generator=stream(0, purpose="images"))
BEFORE, AFTER = [nn.BatchNorm2d, nn.ReLU], [nn.Conv2d, nn.BatchNorm2d]


@pytest.mark.parametrize("name", norm_modes.NETWORKS)
def test_a_network_is_as_wide_and_as_deep_as_its_name_says(name: str) -> None:
    module: nn.Sequential = norm_modes.NETWORKS[name]((3, 32, 32), 10)  # type: ignore[assignment]
    blocks = [layer for layer in module if isinstance(layer, norm_modes.Block)]
    assert module(X).shape == (4, 10) and len(blocks) == (4 if name == "deeper" else 1)
    begins = [type(layer) for layer in blocks[0].body][:2]
    assert begins == (AFTER if name == "after convolution" else BEFORE)


def test_the_statistics_are_those_of_public_images() -> None:
    task = Task(f"{norm_modes.__name__}:after_convolution", (3, 32, 32), 10)
    params, buffers = initial(task, 0)
    warm = norm_modes.warmed(task, params, buffers, X.repeat(8, 1, 1, 1))
    assert warm.keys() == buffers.keys() and all(not torch.equal(warm[n], buffers[n]) for n in buffers)


@pytest.mark.parametrize("mode", [norm_modes.EVALUATION, norm_modes.TRAINING])
def test_a_cell_scores_every_image_beside_the_mean_of_its_class(mode: str) -> None:
    cell = {"dataset": "cifar10", "network": "before activation", "norm": mode, "batch": 4, "passes": 60}
    found = norm_modes.make(cell, 0, Path(__file__).parents[2] / "data")
    for row in found.values():
        assert {f"psnr.{i}" for i in range(4)} <= row.keys() and 3 < row["psnr"] < 40
