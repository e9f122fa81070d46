"""The files of an advice."""

import json
from pathlib import Path
from xml.etree import ElementTree

from prunella.benchmarks.advise.page import HTML, JSON, PICTURE, write
from prunella.benchmarks.advise.proposals import Proposal
from prunella.benchmarks.advise.search import Standing, advise
from tests.benchmarks.advise.test_proposals import question
from tests.benchmarks.advise.test_search import NONE, PRIVATE, row, standing


def written(found: list[Standing], out: Path) -> tuple[str, dict[str, object]]:
    said = advise(found, 2.0)
    assert write(said, found, question(), 2.0, "prunella advise", out) == out / HTML
    return (out / HTML).read_text(), json.loads((out / JSON).read_text())


def test_page_and_numbers_say_the_same(tmp_path: Path) -> None:
    strange = Proposal("own:<b>NAME</b>", 0.3)
    found = [
        standing(NONE, row(0.95), row(0.94)),
        standing(PRIVATE, row(0.80, "baseline"), row(0.81, "baseline")),
        standing(strange, {"failed": "<script>alert(1)</script>", "seconds": 1.0}),
    ]
    page, numbers = written(found, tmp_path)
    assert "<script>" not in page and "<b>NAME" not in page and "default-src 'none'" in page
    assert numbers["recommended"] == PRIVATE.name and str(numbers["command"]) in page.replace("&#34;", '"')
    tried = numbers["tried"]
    assert isinstance(tried, list) and [one["tier"] for one in tried] == ["promised", "rebuilt", "failed"]
    assert page.count("<tr") == 4 and 'class="best"' in page and "14.0 [" in page
    drawn = ElementTree.fromstring((tmp_path / PICTURE).read_text())
    assert drawn.tag.endswith("svg") and page.count("<svg") == 1


def test_no_model_that_learns_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page, numbers = written([standing(NONE, row(0.1, doubt="the model did not learn"))], tmp_path)
    assert "did not learn" in page and "prunella run" not in page and numbers["recommended"] is None


def test_where_everything_leaks_there_is_no_command(tmp_path: Path) -> None:
    page, numbers = written([standing(NONE, row(0.95))], tmp_path)
    assert "prunella run" not in page and 'class="best"' not in page and "What it does not protect" not in page
    assert numbers["recommended"] is None and numbers["command"] is None


def test_an_epsilon_does_not_make_nothing_of_traces_or_of_what_was_not_judged(tmp_path: Path) -> None:
    for came, words in (("traces", "traces, and an ε, 1 of 2"), ("unknown", "not judged, but an ε")):
        found = [standing(NONE, row()), standing(PRIVATE, row(level="baseline"), row(worst={"level": came}))]
        page, _ = written(found, tmp_path)
        assert words in page and "nothing rebuilt, and an ε" not in page


def test_a_picture_without_a_judged_case_is_drawn(tmp_path: Path) -> None:
    page, numbers = written([standing(NONE, row(worst={"level": "unknown", "psnr": None, "floor": None}))], tmp_path)
    assert "not judged" in page and numbers["tried"][0]["psnr"] is None  # type: ignore[index]
