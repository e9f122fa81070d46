"""The page says what was run and what was not."""

import json
from pathlib import Path

import pytest
from PIL import Image

from prunella.benchmarks.papers.schemes_page import BEGIN, END, picture, read, renew, table
from prunella.strategies import STRATEGIES


def row(scheme: str, rate: float, accuracy: float, fraction: float = 0.5) -> dict:
    sizes = {"megabytes_up": 100.0, "megabytes_down": 23.4, "density": 1 - rate}
    return {"scheme": scheme, "rate": rate, "accuracy": accuracy, "settings": {"fraction": fraction}, **sizes}


ROWS = [row("fedavg", 0.0, 0.9), row("snip", 0.5, 0.8), row("snip", 0.7, 0.7)]


def test_every_scheme_has_a_line_and_what_was_not_run_is_a_dash() -> None:
    lines = table(ROWS).splitlines()
    assert "| snip | – | 0.800 · 123 MB · 0.500 | 0.700 · 123 MB · 0.300 |" in lines
    assert "| lotteryfl | – | – | – |" in lines and len(lines) == 2 + len(STRATEGIES)
    assert lines[2].startswith("| fedavg, dense | 0.900")


def test_rows_of_other_settings_are_left_out(tmp_path: Path) -> None:
    for number, one in enumerate([*ROWS, row("snip", 0.5, 0.1, fraction=1.0)]):
        (tmp_path / f"{number}.json").write_text(json.dumps(one))
    assert read(tmp_path, {"fraction": 0.5}) == ROWS


def test_only_what_is_between_the_marks_changes() -> None:
    page = renew(f"before {BEGIN} old {END} after", ROWS)
    assert page.startswith("before ") and page.endswith(" after") and "old" not in page and "0.800" in page
    assert renew(page, ROWS) == page
    with pytest.raises(ValueError, match="no place"):
        renew("text", ROWS)


def test_the_picture_is_one(tmp_path: Path) -> None:
    picture(ROWS, tmp_path / "a.png")
    picture([], tmp_path / "b.png")
    drawn, empty = (Image.open(tmp_path / name).convert("L").tobytes() for name in ("a.png", "b.png"))
    assert drawn != empty
