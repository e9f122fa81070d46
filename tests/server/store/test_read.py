from pathlib import Path

import pytest

from prunella.server.store.read import read_audits, read_lines, read_metrics, read_run
from prunella.server.store.schema import StoreError


def test_a_run_that_wrote_nothing_yet_reads_as_empty(tmp_path: Path) -> None:
    assert read_run(tmp_path) == {} and read_metrics(tmp_path) == read_audits(tmp_path) == []


def test_a_run_json_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[1")
    with pytest.raises(StoreError, match="run.json is not a JSON object"):
        read_run(tmp_path)


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"round":1}\n{"rou\n{"round":3}\n')
    with pytest.raises(StoreError, match=r"metrics.jsonl: line 2"):
        read_lines(file)
