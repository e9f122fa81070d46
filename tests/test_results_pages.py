"""The committed results: every page has its files, says what its JSON says, and D3 and L3 are the papers' numbers."""

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
    path = RESULTS / f"{name}.json"  # one that has a seed lies beside the folder
    return json.loads((path if path.exists() else RESULTS.parent / path.name).read_text())


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


class Typed(NamedTuple):
    """A table that somebody typed into a page, of a claim's stored numbers."""

    page: str
    claim: str
    headings: list[str]
    rows: list[list[str]]


NEAR = 14  # lines over a table in which its claim is named
# Columns of no mean of the row's own points.
OTHERS = ("docs before: psnr", "class mean psnr", "rebuilt, traces", "others", "σ, q, t", "over dense fedavg")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def word(text: str) -> str:
    return text.strip("`*").lower()


def typed(page: Path) -> Iterator[Typed]:
    lines, claim, named = page.read_text().splitlines(), "", -NEAR
    for at, line in enumerate(lines):
        for name in re.findall(r"prunella reproduce ([a-z-]+)|results/([a-z-]+)\.md", line):
            claim, named = "".join(name), at
        if re.match(r"\| ?---", line) and at - named < NEAR and claim in EVERY:
            end = next((here for here in range(at, len(lines)) if not lines[here].startswith("|")), len(lines))
            yield Typed(page.name, claim, cells(lines[at - 1]), [cells(row) for row in lines[at + 1 : end]])


TYPED = [table for page in sorted(RESULTS.parent.glob("*.md")) for table in typed(page)]


def missed(table: Typed) -> list[tuple[str, str, str]]:
    """Numbers that are neither mean nor deviation of the points whose label has most in common with row and heading,
    as they are or in percent; intervals are left out."""
    found, points = [], kept(table.claim)["points"]
    for row in table.rows:
        for heading, cell in zip(table.headings[1:], row[1:], strict=True):
            if word(heading) in OTHERS:
                continue
            about = {word(each) for each in (*row, heading)}
            alike = [sum(part.lower() in about for part in point["label"]) for point in points]
            nearest = [point for point, much in zip(points, alike, strict=True) if much == max(alike)]
            values = [v for point in nearest for key, v in point["values"].items() if v and "." not in key]
            said = [x for v in values for x in (statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else 0.0)]
            for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", re.sub(r"\[.*?\]", "", cell)):
                digits = len(number.partition(".")[2])
                if not any(round(value * scale, digits) == float(number) for value in said for scale in (1, 100)):
                    found.append((row[0], heading, number))
    return found


@pytest.mark.parametrize("table", TYPED, ids=lambda table: f"{table.page} {table.claim}")
def test_a_typed_table_says_what_its_stored_numbers_say(table: Typed) -> None:
    assert missed(table) == []


def test_a_typed_number_of_another_row_is_found() -> None:
    table = next(each for each in TYPED if each.claim == "membership")
    first, *others = table.rows
    moved = [[one[0], *other[1:]] for one, other in zip(table.rows, [*others, first], strict=True)]
    assert len(TYPED) > 10 and len(missed(table._replace(rows=moved))) > 20
