from pathlib import Path

from prunella.server.report.state import RunState
from prunella.server.report.tiles import tiles
from prunella.server.report.verdict import verdict
from tests.server.report.audits import CONTROL_FAILED, NOTHING, audit
from tests.server.report.test_build import new_run, page


def test_the_worst_score_stands_beside_what_the_verdict_makes_of_it() -> None:
    answer = verdict([CONTROL_FAILED, audit(scores=NOTHING)], RunState())
    (tile,) = [each for each in tiles({}, [], RunState(), answer) if each["name"] == "Worst leakage"]
    assert tile["value"].startswith("PSNR 9.0") and tile["notes"][0] == "proves nothing"


def test_rounded_updates_are_named(tmp_path: Path) -> None:
    new_run(tmp_path / "exact")
    new_run(tmp_path / "rounded", settings={"values": "int8", "rounds": 4})
    assert "rounded" not in page(tmp_path / "exact").text
    assert "updates rounded to int8" in page(tmp_path / "rounded").text
