"""The table of planted models: what is rebuilt where one is planted, what the client notices, and the rule."""

from pathlib import Path
from typing import Any

import pytest
import torch

from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.papers import planted_models as bench
from prunella.tasks.examples import Examples


def cell(planted: str, chain: str = "none", **changed: Any) -> dict[str, Any]:
    (asked,) = (one for one in bench.cells((planted,)) if one["dataset"] == "mnist" and one["defenses"] == chain)
    return {**asked, "dataset": "digits", "iterations": 150, **changed}


def test_the_batch_has_one_image_of_its_last_class() -> None:
    y = bench.images_of("digits", None, 3).y
    assert len(y) == bench.BATCH and int((y == y[-1]).sum()) == 1


@pytest.mark.parametrize("planted", [bench.HONEST, "rob", "rob, amplified", "loki, amplified", bench.FISHING])
def test_what_is_planted_is_rebuilt_and_noticed_and_an_honest_model_is_not(planted: str) -> None:
    """Digits are as bright as one another, so that several share a bin; models of few bins: ``tests.attacks``."""
    if planted != bench.HONEST:
        (row,) = bench.make(cell(planted), 0, None).values()
        assert row["noticed"] == 1 and row["best"] >= PSNR_FLOOR
        assert row["rebuilt"] >= 1 / bench.BATCH
    else:
        (row,) = bench.make(cell(planted, iterations=2), 0, None).values()
        assert row["noticed"] == 0 and row["best"] < PSNR_FLOOR


def test_fishing_finds_the_one_image_and_no_other() -> None:
    (row,) = bench.make(cell(bench.FISHING), 0, None).values()
    assert row["rebuilt"] == 1 / bench.BATCH
    assert max(range(bench.BATCH), key=lambda i: row[f"psnr.{i}"]) == bench.BATCH - 1


def test_an_attack_that_gives_no_answer_behind_a_defense_counts_as_grey_and_without_one_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        raise bench.AttackError("nothing")

    monkeypatch.setattr(bench, "answer", nothing)
    grey = Examples(torch.full((bench.BATCH, 1, 8, 8), 0.5), torch.arange(bench.BATCH))
    monkeypatch.setattr(bench, "images_of", lambda *_: grey)
    (row,) = bench.make(cell("rob", "dgp"), 0, None).values()
    assert row["psnr"] == row["psnr.0"] >= 60
    with pytest.raises(bench.AttackError):
        bench.make(cell("rob"), 0, None)


def points(noticed: float = 1.0, best: float = 60.0) -> list[Point]:
    honest, planted = {"noticed": (0.0,) * 3, "best": (30.0, 31.0, 32.0)}, {"noticed": (noticed,) * 3}
    return [
        Point(
            (dataset, what, "none", "attack"),
            honest if what == bench.HONEST else {**planted, "best": (best, best + 1, best + 2)},
        )
        for dataset in bench.DATASETS
        for what in bench.MODELS
        if (what, dataset) != bench.FAILED
    ]


def test_it_holds_where_all_are_noticed_and_copy_more() -> None:
    assert bench.judge(points()).word == "holds"
    assert bench.judge(points(noticed=0.0)).word == "does not hold"
    assert bench.judge(points(best=20.0)).word == "does not hold"


def test_the_table_has_a_row_for_each_planted_model_and_the_picture_is_drawn(tmp_path: Path) -> None:
    rows = {"psnr": (20.0, 30.0), "rebuilt": (0.5, 1.0), "noticed": (1.0, 0.0)}
    both = [Point(("mnist", what, chain, "x"), rows) for what in ("honest", "rob") for chain in ("none", "dgp")]
    text = bench.table(both)
    assert "| rob | 25.0 [25, 25] 75% | 25.0 [25, 25] 75% | 2 of 4 |" in text and text.count("| mnist |") == 1
    bench.draw(both, tmp_path / "planted.png")
    assert (tmp_path / "planted.png").stat().st_size > 5000
