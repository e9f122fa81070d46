from pathlib import Path

from tests.server.report.test_build import new_run, page


def test_rounded_updates_are_named(tmp_path: Path) -> None:
    new_run(tmp_path / "exact")
    new_run(tmp_path / "rounded", settings={"values": "int8", "rounds": 4})
    assert "rounded" not in page(tmp_path / "exact").text
    assert "updates rounded to int8" in page(tmp_path / "rounded").text
