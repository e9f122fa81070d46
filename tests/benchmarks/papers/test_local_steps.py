"""A cell of several steps from beginning to end on digits, and what counts as a label in its step."""

import math

import torch

from prunella.benchmarks.engine.images import chosen_images, task_of
from prunella.benchmarks.papers import local_steps as bench


def test_labels_count_in_their_own_step_whatever_their_order() -> None:
    truth = torch.tensor([1, 2, 3, 3])
    assert bench.named(torch.tensor([2, 1, 3, 3]), truth, 2, 5) == 1.0
    assert bench.named(torch.tensor([3, 3, 1, 2]), truth, 2, 5) == 0.0
    assert bench.named(torch.tensor([1, 1, 3, 4]), truth, 2, 5) == 0.5
    assert math.isnan(bench.named(truth[:2], truth, 2, 5)) and math.isnan(bench.named(None, truth, 2, 5))


def test_an_update_is_that_of_steps_one_after_the_other() -> None:
    task = task_of({"model": "cnn", "dataset": "digits"}, None)
    shown = chosen_images("digits", None, 0, 4)
    two, one = (bench.sent(task, shown, steps, 0, 0.1) for steps in (2, 1))
    assert two.steps == 2 and two.batch_size == 2 and one.batch_size == 4
    assert any(not torch.allclose(two.update[name], 2 * one.update[name], atol=1e-4) for name in one.update)


def test_a_cell_rebuilds_two_steps_of_two_and_says_whose_labels_it_named() -> None:
    cell = {**bench.CELLS[0], "steps": 2, "batch": 2, "passes": 1000, "label_passes": 6000, "iterations": 200}
    found = bench.make(cell, 0, None)
    assert found.keys() == {"portfolio", "portfolio, public", "told", bench.NO_UPDATE}
    assert all({f"psnr.{i}" for i in range(4)} <= row.keys() for row in found.values())
    for name in ("portfolio", "portfolio, public", "told"):
        assert found[name]["psnr"] > found[bench.NO_UPDATE]["psnr"] + 5 and found[name]["labels"] == 1.0
    assert "labels" not in found[bench.NO_UPDATE]
