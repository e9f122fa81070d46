"""The inverter's table: whom it learns from and whom it attacks; the figures themselves are in docs."""

import torch

from prunella.benchmarks.papers import learnt_inversion as bench
from prunella.tasks.data import load_test
from prunella.tasks.task import Task

QUICK = {"shadows": 60, "epochs": 1, "width": 8, "polish": 0}
CELLS = {(cell["dataset"], cell["defenses"]): cell for cell in bench.cells(2, **QUICK)}


def test_every_chain_is_there_on_both_datasets() -> None:
    assert len(CELLS) == 2 * len(bench.CHAINS) and {dataset for dataset, _ in CELLS} == {"mnist", "cifar10"}


def test_a_cell_has_the_inverter_beside_the_class_mean() -> None:
    found = bench.make({**CELLS["mnist", "dgp"], "dataset": "digits"}, 0, None)
    assert found.keys() == {"inverter", "class mean"}
    assert found["inverter"]["psnr"] > 10 and found["inverter"]["seconds"] > 0
    assert found["inverter"]["psnr_largest"] >= found["inverter"]["psnr"]


def test_another_draw_is_another_client() -> None:
    """Other noise on the same image; and behind a defense that learns, another state as well."""
    images, task = load_test("digits", None), Task("cnn", (1, 8, 8), 10)
    assert images is not None
    one = images.take(torch.tensor([0]))
    for chain in ("channel-natural", "priprune"):
        settings = {**CELLS["mnist", chain], "dataset": "digits"}
        shadow = bench.ShadowSender(settings, task, 0, images)
        sent = [torch.cat([u.flatten() for u in shadow.send(one, draw).update.values()]) for draw in (1, 1, 2)]
        assert torch.equal(sent[0], sent[1]) and not torch.equal(sent[0], sent[2])
