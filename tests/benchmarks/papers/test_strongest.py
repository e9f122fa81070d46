"""The table of strong attacks: whom they learn from and whom they attack; the figures themselves are in docs."""

import pytest

from prunella.benchmarks.papers import strongest as bench
from prunella.tasks.data import load_test

QUICK = {"shadows": 60, "epochs": 1, "width": 8, "polish": 0}
CELLS = {(cell["dataset"], cell["defenses"]): {**cell, "iterations": 20} for cell in bench.cells(2, **QUICK)}


def test_every_chain_is_there_on_both_datasets() -> None:
    assert len(CELLS) == 2 * len(bench.CHAINS) and {dataset for dataset, _ in CELLS} == {"mnist", "cifar10"}


@pytest.mark.slow
def test_a_cell_has_every_attack_beside_the_class_mean() -> None:
    found = bench.make({**CELLS["mnist", "dp-sgd"], "dataset": "digits"}, 0, None)
    assert found.keys() == {"inverter", "class mean"}
    assert found["inverter"]["psnr"] > 10 and found["inverter"]["seconds"] > 0
    assert found["inverter"]["psnr"] == pytest.approx((found["inverter"]["psnr.0"] + found["inverter"]["psnr.1"]) / 2)


def test_a_rebuilt_image_is_called_so_and_another_persons_is_not() -> None:
    images = load_test("digits", None)
    assert images is not None
    truth = bench.PrivateBatch(images.x[:1], images.y[:1])
    other = images.x[1:][images.y[1:] == images.y[0]][:1]
    own, foreign = (bench.scored(bench.Reconstruction(x, None, 0.0, 1), truth, images) for x in (truth.x, other))
    assert own["rebuilt"] == 1 and own["psnr"] == 100 and foreign["rebuilt"] == 0
