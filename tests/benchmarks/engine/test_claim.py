"""Declarations: published tables parse, all claims of the issue are there."""

import math

import pytest

from prunella.benchmarks.engine.claim import Measure, Plot, Point, declared, judged, numbers
from prunella.benchmarks.engine.measuring import cells_of
from prunella.benchmarks.engine.rules import HOLDS, REFUSED, Judgement
from prunella.benchmarks.registry import CLAIMS

NAMES = [
    f"{paper}{n}" for paper, most in (("P", 10), ("D", 7), ("C", 7), ("L", 4), ("X", 4)) for n in range(1, most + 1)
]
NAMES += ["matched"]


def test_all_claims_are_listed_with_what_was_published() -> None:
    assert sorted(CLAIMS) == sorted(NAMES)
    assert all(claim.says and claim.where and claim.paper for claim in CLAIMS.values())
    assert all(bool(claim.published) == (claim.paper != "Prunella") for claim in CLAIMS.values())
    assert CLAIMS["X1"].compared.startswith("Our own") and CLAIMS["D3"].compared.startswith("Published: MB")


@pytest.mark.parametrize("name", CLAIMS)
def test_what_runs_has_seeds_cells_metrics_and_published_numbers_of_its_own_labels(name: str) -> None:
    experiment = CLAIMS[name].experiment
    assert CLAIMS[name].sizes()
    for size, sweep in experiment.sweeps.items():
        assert len(sweep.seeds) >= 3
        cells = cells_of(experiment, size)
        measure = experiment.measure
        wanted = {str(settings) for settings in sweep.cells}
        wanted |= {str(measure.control_of(settings)) for settings in sweep.cells} if measure.control else set()
        assert len(cells) == len(sweep.seeds) * len(wanted)
        assert all(set(experiment.keys) <= set(settings) for settings in sweep.cells)
    every = [settings for sweep in experiment.sweeps.values() for settings in sweep.cells]
    fixed = {tuple(str(settings[key]) for key in experiment.keys) for settings in every}
    for metric in experiment.metrics:
        assert all(label[:-1] in fixed and math.isfinite(v) for label, v in metric.published.items())
    assert set(experiment.plot.metrics) <= {metric.key for metric in experiment.metrics}


def test_tables_parse_and_a_short_row_does_not() -> None:
    assert numbers("  a b\nx 1 -\ny .5 2e1") == {("x", "a"): 1.0, ("y", "a"): 0.5, ("y", "b"): 20.0}
    for wrong in ("  a b\nx 1", "  a\nx one"):
        with pytest.raises(ValueError):
            numbers(wrong)


def test_a_point_has_no_spread_at_one_seed() -> None:
    assert math.isnan(Point(("a",), {"x": (1.0,)}).spread("x")) and Point(("a",), {"x": (1.0, 3.0)}).mean("x") == 2.0


def test_what_was_dropped_for_its_control_is_said_with_the_verdict() -> None:
    words = "T1 | Toy | Table 1 | it falls\n small: one model\n dropped: B, whose control failed\n paper: two"
    shape = "model: attack", "psnr 1 PSNR", Plot(("psnr",)), lambda _: Judgement(HOLDS, "A falls")
    toy = declared(words, Measure("m", lambda *_: {}), *shape, small=[{}], paper=[{}]).experiment
    found = [Point(("a", "ig"), {"psnr": (1.0,)})]
    assert judged(toy, "small", found) == Judgement(HOLDS, "not judged: B, whose control failed; A falls")
    assert judged(toy, "paper", found) == Judgement(HOLDS, "A falls")
    assert judged(toy, "small", found, 1).word == REFUSED


def test_a_control_of_which_nothing_was_checked_did_not_succeed() -> None:
    any_series, told = Measure("m", lambda *_: {}), Measure("m", lambda *_: {}, told="ig")
    assert not any_series.works({}) and not any_series.works({"ig": {"seconds": 1.0}})
    assert any_series.works({"ig": {"psnr": 30.0}, "training": {"accuracy": 0.1}})
    assert told.works({"ig": {"psnr": 30.0}, "other": {"psnr": 5.0}})
    assert not told.works({"other": {"psnr": 30.0}}) and not told.works({"ig": {"accuracy": 1.0}})
    assert not any_series.works({"ig": {"psnr": math.nan}})
