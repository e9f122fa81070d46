"""All rounds beside the best alone: what is attacked is what a client sends; the figures themselves are in docs."""

import pytest
import torch

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.views import initial_sender
from prunella.benchmarks.papers import every_round as bench
from prunella.tasks.data import Examples, load_test
from prunella.tasks.task import Task

CELLS = {(cell["defense"], cell["dataset"]): cell for cell in bench.cells()}


def test_every_defense_is_there_on_both_datasets() -> None:
    assert set(CELLS) == {(name, data) for name in (*bench.NOISY, *bench.PRUNED) for data in bench.DATASETS}


@pytest.mark.parametrize("name", [*bench.NOISY, *bench.PRUNED])
def test_a_cell_has_single_rounds_and_all_of_them(name: str) -> None:
    found = bench.make({**CELLS[name, "mnist"], "dataset": "digits", "rounds": (2, 3), "iterations": 2}, 0, None)
    assert found.keys() == {bench.FIRST, bench.BEST, "2 rounds", "3 rounds"}
    assert found[bench.BEST]["psnr"] >= found[bench.FIRST]["psnr"] and 0 <= abs(found["3 rounds"]["ssim"]) <= 1


def test_the_weights_follow_other_clients_and_a_defense_its_own_state() -> None:
    """The client does not fit its image away: what it sends does not shrink; what DGP withheld comes later."""
    images, task = load_test("digits", None), Task("cnn", (1, 8, 8), 10)
    assert images is not None
    own, others = images.take(torch.arange(1)), Examples(images.x[1:], images.y[1:])
    views = bench.sent(initial_sender(task, 0, "none", {}, others.x, 1), own, others, 0, 4)
    norms = [sum(float(u.square().sum()) for u in view.update.values()) for view in views]
    assert min(norms) > 0.3 * norms[0]
    assert all(any(not torch.equal(w, views[0].params[n]) for n, w in view.params.items()) for view in views[1:])
    views = bench.sent(initial_sender(task, 0, "dgp", {}, others.x, 1), own, others, 0, 2)
    sent = [torch.cat([(u != 0).flatten() for u in view.update.values()]) for view in views]
    assert 0.1 < float(sent[1].float().mean()) < 0.3 and float((sent[0] & sent[1]).float().mean()) < 0.1


def test_more_rounds_are_judged_against_the_best_alone_and_against_fewer() -> None:
    def points(few: float, many: float) -> list[Point]:
        psnr = {bench.FIRST: 9.0, bench.BEST: 10.0, bench.arm(bench.FEW): few, bench.arm(bench.MANY): many}
        return [Point(("mnist", "gaussian", name), {"psnr": (of, of + 0.1, of)}) for name, of in psnr.items()]

    assert bench.judge(points(15.0, 20.0)).word == "holds"
    assert bench.judge(points(15.0, 12.0)).word != "holds" != bench.judge(points(8.0, 20.0)).word
