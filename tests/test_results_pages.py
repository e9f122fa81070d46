"""The committed results: every page has its files, says what its JSON says, and D3 and L3 are the papers' numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.results import from_json, page
from prunella.benchmarks.engine.results_index import index
from prunella.benchmarks.registry import CLAIMS, TABLES

RESULTS = Path(__file__).parents[1] / "docs" / "results"
EVERY = {**CLAIMS, **TABLES}
MEASURED = sorted(path.stem for path in RESULTS.glob("*.json"))
BOUNDS = {"epsilon"}  # each number is a bound at 95 % over 20 000 trials, not a sample of one seed


def kept(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def points(name: str) -> list[Point]:
    return [
        Point(tuple(p["label"]), {k: tuple(v) for k, v in p["values"].items()}, p["control"])
        for p in kept(name)["points"]
    ]


@pytest.mark.parametrize("name", MEASURED)
def test_a_page_says_what_its_numbers_say_and_three_seeds_stand_behind(name: str) -> None:
    found, text = kept(name), (RESULTS / f"{name}.md").read_text()
    assert (len(found["seeds"]) >= 3 or name in BOUNDS) and f"**Verdict: {found['verdict']}.**" in text
    assert text == page(from_json(found, EVERY[found["claim"]]), f"{name}.svg")  # reproduce --pages was run
    assert (RESULTS / f"{name}.svg").exists() and (RESULTS / f"{name}.png").exists()
    experiment = EVERY[found["claim"]].experiment
    if found["verdict"] != "not judged":
        assert experiment.judge(points(name)).word == found["verdict"]  # the rule of today gives the verdict of then


@pytest.mark.parametrize(("name", "model"), [("D6", "CNN6"), ("P4", "Conv-1")])
def test_a_model_whose_control_failed_stands_in_the_verdict(name: str, model: str) -> None:
    assert f"Not judged: {model}" in (RESULTS / f"{name}.md").read_text().split("**Verdict: ")[1].split("\n")[0]


def test_the_index_is_that_of_the_files() -> None:
    assert (RESULTS / "README.md").read_text() == index(CLAIMS.values(), RESULTS)


def test_d3_is_within_two_percent_and_saves_forty() -> None:
    numbers = {point.label: point.mean("paper_mib") for point in points("D3")}
    published = {tuple(p["label"]): p["published"]["paper_mib"] for p in kept("D3")["points"]}
    assert len(published) == 16
    assert all(numbers[label] == pytest.approx(printed, rel=0.02) for label, printed in published.items())
    for model in {label[0] for label in numbers}:
        assert 1 - numbers[model, "dgp"] / numbers[model, "baseline"] == pytest.approx(0.4, abs=0.02)


def test_l3_is_the_formula_to_the_weight_and_39_of_40_printed_numbers() -> None:
    found = points("L3")
    assert len(found) == 40 and all(max(point.values["off"]) < 1 for point in found)
    printed = {tuple(p["label"]): p["published"]["retention"] for p in kept("L3")["points"]}
    off = {p.label: p.mean("retention") for p in found if abs(p.mean("retention") - printed[p.label]) > 0.005}
    assert off == {("cifar10", "0.4", "3"): pytest.approx(0.2145, abs=1e-4)}  # no P1 gives all 20 of its half
