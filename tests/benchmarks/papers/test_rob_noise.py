"""Noise under two scales of one module: what is measured, and that the larger one outlasts noise."""

from prunella.benchmarks.papers.defended import rebuilt
from prunella.benchmarks.papers.rob_noise import CELLS


def test_both_modules_meet_the_papers_deviation() -> None:
    assert {cell["model"] for cell in CELLS if cell["raw"]["gaussian.deviation"] == 0.01} == {
        "prunella.attacks.rob:cnn",
        "prunella.attacks.rob:amplified_cnn",
    }


def test_noise_that_hides_from_one_module_does_not_hide_from_the_other() -> None:
    cells = [{**cell, "dataset": "digits"} for cell in CELLS if cell["value"] == 0.01]
    quiet, loud = (rebuilt(cell, 0, None) for cell in cells)
    assert loud["ssim"] > 3 * quiet["ssim"] and loud["rebuilt"] > quiet["rebuilt"] == 0 and "ssim.7" in loud
