"""PriPrune's claims on leakage: the sweeps, and verdicts on made-up curves."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers import priprune_claims
from prunella.benchmarks.papers.priprune_claims import (
    BATCHES,
    BOUND_RATES,
    FAMILIES,
    GRASP,
    RATES,
    ROUNDS,
    SCHEMES,
    axes,
    by_all,
    by_rate,
    draw_bounds,
    judge_batch,
    judge_bound,
    judge_rate,
    judge_rounds,
    judge_sgi,
    judge_size,
)


def curves(slope: float, lead: float, trained: float = 0.8) -> list[Point]:
    made = []
    for scheme in SCHEMES:
        for rate in RATES["small"]:
            for attack, more in (("sgi", lead), ("gi", 0.0)):
                level = 1 + more - slope * rate
                values = {"nmi": (level, level + 0.01, level - 0.01), "psnr": (30 * level,) * 3}
                values |= {"accuracy": (trained if scheme == GRASP else 0.1,) * 3}
                made.append(Point((scheme, str(rate), attack), values))
    return made


def test_the_sweep_has_six_schemes_and_the_papers_rates() -> None:
    cells = by_rate("paper")
    assert len(cells) == 30 and {c["rate"] for c in cells} == {0.1, 0.3, 0.5, 0.7, 0.9}
    assert {c["scheme"] for c in by_rate("small")} == set(SCHEMES)


def test_p1_asks_both_metrics_to_fall() -> None:
    assert judge_rate(curves(0.5, 0.1)).word == HOLDS and judge_rate(curves(-0.5, 0.1)).word == NOT


def test_p3_asks_sgi_not_to_be_under_gi() -> None:
    assert judge_sgi(curves(0.5, 0.1)).word == HOLDS and judge_sgi(curves(0.5, -0.1)).word == NOT


def test_grasp_has_a_setting_of_its_own_and_is_not_judged_where_it_learns_nothing() -> None:
    models = {cell["scheme"]: cell["model"] for cell in by_rate("small")}
    assert models.pop(GRASP) == "cnn" and set(models.values()) == {"lenet-zhu"}
    wrong = [point for point in curves(-0.5, 0.1, trained=0.1) if point.label[0] == GRASP]
    points = [point for point in curves(0.5, 0.1) if point.label[0] != GRASP]
    found = judge_rate([*points, *wrong])  # rises where nothing was learnt
    assert found.word == HOLDS and "not judged: grasp at 0.1 (accuracy 0.10)" in found.reason
    assert "5 of 5" in found.reason and "not judged: grasp" in judge_sgi([*points, *wrong]).reason


def curve(xs: tuple[int, ...], slope: float) -> list[Point]:
    made = []
    for scheme in ("random", "prunefl"):
        for i, x in enumerate(xs):
            made.append(Point((scheme, str(x), "sgi"), {"nmi": (0.5 + slope * i, 0.51 + slope * i, 0.49 + slope * i)}))
    return made


def test_p2_asks_leakage_to_fall_with_the_batch_and_p5_to_grow_with_rounds() -> None:
    assert judge_batch(curve(BATCHES, -0.1)).word == HOLDS and judge_batch(curve(BATCHES, 0.1)).word == NOT
    rounds = ROUNDS["small"]
    assert judge_rounds(curve(rounds, 0.1)).word == HOLDS and judge_rounds(curve(rounds, -0.1)).word == NOT


def point(rate: float, batch: int, rounds: int, along: float) -> Point:
    nmi = 0.9 - 0.5 * rate - 0.1 * batch + 0.01 * rounds
    values = {"nmi": (nmi,) * 3, "printed": (along * nmi,) * 3, "corrected": (nmi,) * 3}
    return Point((str(rate), str(batch), str(rounds), "sgi"), values)


def test_p10_has_a_base_on_every_axis_and_asks_for_the_same_order() -> None:
    cells = [(c["rate"], c["attacked"], c["rounds"]) for c in by_all("small")]
    good, bad = ([point(*cell, along) for cell in cells] for along in (1.0, -1.0))
    assert {name: len(line) for name, line in axes(good).items()} == {"rate": len(BOUND_RATES), "batch": 3, "rounds": 3}
    assert judge_bound(good).word == HOLDS and judge_bound(bad).word == NOT


def test_p10_draws_what_was_moved_over_both_bounds_and_names_every_place_once(tmp_path: Path) -> None:
    points = [point(c["rate"], c["attacked"], c["rounds"], 1000.0) for c in by_all("small")]
    points = [replace(p, values={**p.values, "nmi_random": (0.1,) * 3}) for p in points]
    with patch.object(priprune_claims, "annotate", side_effect=priprune_claims.annotate) as named:
        draw_bounds(points, tmp_path / "p10.svg")
    assert (tmp_path / "p10.svg").stat().st_size > 10_000
    for (panel, places), kind in zip(
        (call.args for call in named.call_args_list), ("printed", "corrected"), strict=True
    ):
        assert kind in panel.get_xlabel() and len(places) == len(points)
        assert places["rounds 32"] == [points[-1].mean(kind), points[-1].mean("nmi")]


@pytest.mark.parametrize("swapped", [(0.1, 0.3)])
def test_p10_in_trend_where_one_order_is_off(swapped: tuple[float, float]) -> None:
    points = []
    for cell in by_all("small"):
        rate = {swapped[0]: swapped[1], swapped[1]: swapped[0]}.get(cell["rate"], cell["rate"])
        true, wrong = (point(r, cell["attacked"], cell["rounds"], 1.0) for r in (cell["rate"], rate))
        base = cell["attacked"] == 1 and cell["rounds"] == 2
        values = {
            **true.values,
            "printed": wrong.values["printed"] if base and cell["rate"] == 0.1 else true.values["nmi"],
        }
        points.append(Point(true.label, values))
    assert judge_bound(points).word in (TREND, HOLDS)


@pytest.mark.parametrize(("growth", "word"), [(1.1, HOLDS), (0.9, NOT), (5.0, NOT)])
def test_p4_asks_leakage_to_grow_slower_than_the_model(growth: float, word: str) -> None:
    points = []
    for i, model in enumerate(FAMILIES["paper"]["conv"]):
        values = {"nmi": (0.1 * growth**i,) * 3, "parameters": (1e6 * 2.0**i,) * 3, "psnr": (20.0,) * 3}
        points.append(Point(("mnist", "random", model, "sgi"), values))
    assert judge_size(points).word == word


@pytest.mark.parametrize(("gain", "word"), [(5.0, HOLDS), (-5.0, NOT)])
def test_p4_judges_psnr_where_nmi_is_at_its_ceiling(gain: float, word: str) -> None:
    points = []
    for i, model in enumerate(FAMILIES["small"]["conv"]):
        values = {"nmi": (0.92,) * 3, "parameters": (1e6 * 8.0**i,) * 3, "psnr": (50.0 + gain * i,) * 3}
        points.append(Point(("digits", "random", model, "sgi"), values))
    found = judge_size(points)
    assert found.word == word and "ceiling" in found.reason and "million" not in found.reason
