"""Tables and plots of results."""

from pathlib import Path

from prunella.benchmarks.engine.claim import Column, Point
from prunella.benchmarks.engine.results import COLOURS, DASHES, HATCHES, MARKERS, Measured, cell, draw, table
from prunella.benchmarks.engine.rules import Judgement
from prunella.benchmarks.registry import CLAIMS

MACHINE = {"processors": 2, "load": 1.0, "threads": 1, "python": "3", "data": "here"}


def points() -> list[Point]:
    values = {"paper_mib": (2.0, 2.0, 2.0), "wire_mib": (1.0, 1.1, 1.2), "saved": (0.5, 0.45, 0.4)}
    return [Point(("resnet18", scheme), values) for scheme in ("baseline", "dgp")]


def test_a_series_is_told_apart_without_colour() -> None:
    styles = list(zip(MARKERS, DASHES, strict=True))
    assert len(set(COLOURS)) == len(set(styles)) == len(set(HATCHES)) == len(COLOURS)


def test_cells_without_a_published_number_have_no_brackets() -> None:
    assert cell(points()[0], Column("wire_mib", "", 1)) == "1.1 ± 0.1"
    assert cell(points()[0], Column("other", "", 1)) == ""


def test_a_table_has_a_row_a_point_and_the_same_numbers_draw_the_same_file(tmp_path: Path) -> None:
    result = Measured(CLAIMS["D3"], "small", points(), Judgement("holds", "x"), 1.0, MACHINE)
    rows = table(result).splitlines()
    assert len(rows) == 4 and "2.000 ± 0.000 (52.216)" in rows[3] and len({row.count("|") for row in rows}) == 1
    for name in ("a.svg", "b.svg"):
        draw(result, tmp_path / name)
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()


def test_a_colour_means_one_series_in_all_panels(tmp_path: Path) -> None:
    label, three = ("digits", "cnn", "dgp"), (0.5, 0.6, 0.7)
    found = [Point((*label, "training"), {"accuracy": three}), Point((*label, "ig"), {"ssim": three})]
    draw(Measured(CLAIMS["D7"], "small", found, Judgement("holds", "x"), 1.0, MACHINE), tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text().upper()
    assert all(colour in text for colour in COLOURS[:2]) and COLOURS[2] not in text
