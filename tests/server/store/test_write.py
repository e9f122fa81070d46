import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.errors import ConfigError
from prunella.server.store.read import read_metrics, read_run
from prunella.server.store.schema import Row, StoreError, row
from prunella.server.store.write import RunStore, claimed
from tests.server.store.test_schema import audit


def filled(path: Path, rounds: int = 3) -> RunStore:
    store = RunStore.open(path)
    for r in range(1, rounds + 1):
        store.append_metrics(r, [row("accuracy_ratio", r / 10), row("wire_bytes_total", 100 * r, direction="up")])
        store.append_audit(audit(round=r))
    return store


HOLDER = """
import sys, time
from pathlib import Path
from prunella.server.store.write import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_only_one_process_writes_a_run_and_a_killed_one_leaves_it_free(tmp_path: Path) -> None:
    run = tmp_path / "run"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout and other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=f"another ServerApp is writing {run}: .* --resume"), claimed(run, 0.0):
            raise AssertionError("held twice")
        threading.Timer(0.3, other.kill).start()
        with claimed(run):
            assert other.wait(10) == -signal.SIGKILL
    finally:
        other.kill()
        other.wait()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    store = filled(tmp_path, rounds=1)
    first, second = store.metrics()
    assert (first["round"], first["metric"], first["value"], first["labels"]) == (1, "accuracy_ratio", 0.1, {})
    assert second["labels"] == {"direction": "up"} and isinstance(second["time"], float)
    assert store.audits() == [audit()]


def test_every_append_is_on_disk_at_once(tmp_path: Path) -> None:
    store = RunStore.open(tmp_path)
    for r in range(1, 4):
        store.append_metrics(r, [row("round", r)])
        assert len(read_metrics(tmp_path)) == r


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_and_nothing_is_written(tmp_path: Path, value: float) -> None:
    store = RunStore.open(tmp_path)
    with pytest.raises(StoreError, match="not a finite number"):
        store.append_metrics(1, [Row("accuracy_ratio", 0.5), Row("loss", value)])
    with pytest.raises(StoreError, match="scores"):
        store.append_audit(audit(scores={"psnr": {"worst": value}}))
    with pytest.raises(StoreError, match="objective"):
        store.append_audit(audit(objective=value))
    assert store.metrics() == [] and store.audits() == []


def test_rewind_drops_later_rounds_of_both_files(tmp_path: Path) -> None:
    store = filled(tmp_path, rounds=5)
    store.rewind(2)
    assert {line["round"] for line in store.metrics()} == {line["round"] for line in store.audits()} == {1, 2}
    store.append_metrics(3, [row("round", 3)])
    assert [line["round"] for line in store.metrics()][-1] == 3
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")], "no temporary file is left behind"


def test_a_torn_last_line_is_cut_off_when_the_run_goes_on(tmp_path: Path) -> None:
    store = filled(tmp_path, rounds=2)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert len(read_metrics(tmp_path)) == 3, "a reader beside the writer skips it and leaves the file alone"
    assert path.read_bytes() == whole[:-9]
    store = RunStore.open(tmp_path)
    store.append_metrics(3, [row("round", 3)])
    assert [line["round"] for line in store.metrics()] == [1, 1, 2, 3]


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(min_value=0, max_value=400))
def test_a_crash_at_any_byte_loses_at_most_the_line_being_written(tmp_path_factory: Any, cut: int) -> None:
    path = tmp_path_factory.mktemp("run")
    filled(path, rounds=2)
    file = path / "metrics.jsonl"
    data = file.read_bytes()[:cut]
    whole_lines = data.count(b"\n")
    file.write_bytes(data)
    survivors = RunStore.open(path).metrics()
    assert whole_lines <= len(survivors) <= whole_lines + 1
    assert file.read_bytes().endswith(b"\n") or not survivors


def test_run_json_merges_fields_and_takes_no_others(tmp_path: Path) -> None:
    store = RunStore.open(tmp_path)
    store.write_run(id="r1", status="running", settings={"rounds": 3})
    store.write_run(model_parameters=12)
    assert store.run() == {"id": "r1", "status": "running", "settings": {"rounds": 3}, "model_parameters": 12}
    with pytest.raises(ConfigError, match="field of run.json"):
        store.write_run(password="x")
    with pytest.raises(ConfigError, match="status"):
        store.write_run(status="great")


def test_finish_writes_status_and_a_table_for_pandas(tmp_path: Path) -> None:
    store = filled(tmp_path, rounds=3)
    for spent in (1.5, 2.0):  # charged when clients are asked, and again when the answers are in
        store.append_metrics(3, [row("privacy_epsilon", spent, stat="worst")])
    store.finish("failed", error="the run stopped")
    run = read_run(tmp_path)
    assert (run["status"], run["error"]) == ("failed", "the run stopped") and run["finished"].endswith("+00:00")
    table = pd.read_parquet(tmp_path / "metrics.parquet")
    up = table[(table.metric == "wire_bytes_total") & (table.direction == "up")]
    assert up.value.tolist() == [100.0, 200.0, 300.0] and set(up.unit) == {"bytes"}
    assert table[table.metric == "privacy_epsilon"].value.tolist() == [2.0]
    assert table[table.metric == "accuracy_ratio"].direction.isna().all()


def test_an_empty_run_can_finish_and_be_read(tmp_path: Path) -> None:
    store = RunStore.open(tmp_path / "new" / "run")
    assert store.metrics() == store.audits() == [] and store.run() == {}
    store.finish("completed")
    assert len(pd.read_parquet(tmp_path / "new" / "run" / "metrics.parquet")) == 0


def test_lines_are_plain_json(tmp_path: Path) -> None:
    filled(tmp_path, rounds=1)
    for name in ("metrics.jsonl", "audits.jsonl"):
        for line in (tmp_path / name).read_text().splitlines():
            assert json.loads(line)["round"] == 1
