"""Tables of results."""

from prunella.benchmarks.engine.claim import Column, Point
from prunella.benchmarks.engine.results import Measured, cell, table
from prunella.benchmarks.engine.rules import Judgement
from prunella.benchmarks.registry import CLAIMS

MACHINE = {"processors": 2, "load": 1.0, "threads": 1, "python": "3", "data": "here"}


def points() -> list[Point]:
    values = {"paper_mib": (2.0, 2.0, 2.0), "wire_mib": (1.0, 1.1, 1.2), "saved": (0.5, 0.45, 0.4)}
    return [Point(("resnet18", scheme), values) for scheme in ("baseline", "dgp")]


def test_cells_without_a_published_number_have_no_brackets() -> None:
    assert cell(points()[0], Column("wire_mib", "", 1)) == "1.1 ± 0.1"
    assert cell(points()[0], Column("other", "", 1)) == ""


def test_a_table_has_a_row_a_point() -> None:
    result = Measured(CLAIMS["D3"], "small", points(), Judgement("holds", "x"), 1.0, MACHINE)
    rows = table(result).splitlines()
    assert len(rows) == 4 and "2.000 ± 0.000 (52.216)" in rows[3] and len({row.count("|") for row in rows}) == 1
