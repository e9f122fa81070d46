"""Records have the numbers of the store and the verdict of the report, and go into JSON and CSV and back."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prunella.deploy.cli.main import app
from prunella.deploy.runs import RunDir
from prunella.deploy.tools.results import as_csv, as_json, record, records
from prunella.server.report.verdict import judge
from prunella.server.store.read import read_audits, read_metrics, read_run
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore


def a_run(folder: Path, rate: float) -> RunDir:
    store = RunStore.open(folder)
    settings = {"rate": rate, "run-dir": str(folder), "defenses": "dgp"}
    store.write_run(id=folder.name, status="completed", error=None, settings=settings, classes=10)
    lines = [row("round", 1), row("rounds", 1), row("accuracy_ratio", 0.75), row("mask_density_ratio", 0.5)]
    lines += [row("wire_bytes_total", 300, direction="up"), row("wire_bytes_total", 100, direction="down")]
    store.append_metrics(1, [*lines, row("wire_dense_bytes_total", 1000, direction="up")])
    spread = {"worst": 30.0, "mean": 30.0, "random": 6.0, "other": 9.0}
    line = {"round": 1, "attack": "sgi", "adaptive": True, "threat": "t", "seconds": 1.0, "outcome": "scored"}
    scores = {"psnr": spread, "ssim": {**spread, "worst": 0.9, "other": 0.1}, "images": 1}
    store.append_audit({**line, "kind": "client", "client": 0, "defense": "dgp", "scores": scores})
    return RunDir(folder)


def test_a_record_has_the_store_s_numbers_and_the_report_s_verdict(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", 0.3)
    found = record(run)
    answer = judge(read_run(run.path), read_metrics(run.path), read_audits(run.path))
    assert (found["verdict"], found["headline"]) == (answer.badge, answer.headline) == ("Leak found", answer.headline)
    assert answer.notes and found["notes"] == " ".join(answer.notes), "what stands wherever the headline is"
    assert (found["accuracy"], found["density"], found["sent_bytes"], found["dense_bytes"]) == (0.75, 0.5, 400, 1000)
    assert (found["worst.psnr"], found["worst.ssim"], found["worst.level"]) == (30.0, 0.9, "rebuilt")
    assert found["settings.rate"] == 0.3 and "settings.run-dir" not in found and found["epsilon"] is None


CUT = {"ok": False, "reason": "stopped after 600 s"}


@pytest.mark.parametrize(("control", "why", "level"), [(True, {}, "baseline"), (True, CUT, "unknown"),
                                                       (False, {}, "unknown"), (True, {"objective": 0.6}, "unknown"),
                                                       (True, {"objective": None}, "unknown")])  # fmt: skip
def test_the_worst_audit_has_no_harmless_level_where_finding_nothing_shows_nothing(
    tmp_path: Path, control: bool, why: dict[str, object], level: str
) -> None:
    store = RunStore.open(tmp_path / "a")
    store.write_run(id="a", status="completed", error=None, settings={"defenses": "dgp"}, classes=10)
    line = {"round": 1, "attack": "sgi", "adaptive": True, "threat": "t", "seconds": 1.0, "outcome": "scored"}
    line |= {"objective": 0.001, "client": None, "defense": "none"}

    def psnr(worst: float) -> dict[str, object]:
        return {"psnr": {"worst": worst, "mean": worst, "random": 6.0, "other": 9.0}, "images": 2}

    if control:
        store.append_audit({**line, "kind": "control", "scores": psnr(40.0), "ok": True})
    store.append_audit({**line, "kind": "client", "client": 0, "defense": "dgp", "scores": psnr(9.0), **why})
    assert record(RunDir(tmp_path / "a"))["worst.level"] == level


def test_a_run_s_own_note_is_among_the_notes(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", 0.3)
    RunStore.open(run.path).write_run(note="1 said no to this run: its owner's policy")
    assert record(run)["notes"].endswith("1 said no to this run: its owner's policy")


def test_bytes_that_nobody_counted_are_not_zero(tmp_path: Path) -> None:
    RunStore.open(tmp_path / "a").write_run(id="a", status="failed", error=None, settings={})
    found = record(RunDir(tmp_path / "a"))
    assert (found["sent_bytes"], found["dense_bytes"]) == (None, None)


def test_json_and_csv_read_back(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "a", 0.3), a_run(tmp_path / "b", 0.5)]
    found = records(runs)
    assert json.loads(as_json(found)) == found
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert [each["run"] for each in rows] == ["a", "b"] and float(rows[1]["settings.rate"]) == 0.5


def test_the_commands_print_them(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "a", 0.3), a_run(tmp_path / "b", 0.5)]
    where = ["--runs", str(tmp_path)]
    assert json.loads(CliRunner().invoke(app, ["runs", "--json", *where]).output) == records(runs)
    assert json.loads(CliRunner().invoke(app, ["compare", "b", "a", "--json", *where]).output) == records(runs[::-1])
    assert CliRunner().invoke(app, ["compare", "a", "b", "--csv", *where]).output == as_csv(records(runs))


@pytest.mark.parametrize(("name", "text"), [("metrics.jsonl", "{torn\n{}\n"), ("run.json", "null")])
def test_a_run_that_cannot_be_read_is_listed_as_such_beside_the_others(tmp_path: Path, name: str, text: str) -> None:
    good, bad = a_run(tmp_path / "a", 0.3), a_run(tmp_path / "b", 0.3)
    (bad.path / name).write_text(text)
    found = records([good, bad])
    assert found[0] == record(good) and (found[1]["run"], found[1]["status"]) == ("b", "unreadable")
    assert f"b/{name}" in found[1]["error"] and "restore it, or remove the run" in found[1]["error"]


def test_options_that_would_not_be_followed_together_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        a_run(tmp_path / name, 0.3)
    for given in (["--json", "--csv"], ["--seeds", "--json"], ["--seeds", "--csv"]):
        refused = CliRunner().invoke(app, ["compare", "a", "b", *given, "--runs", str(tmp_path)])
        assert refused.exit_code == 2, given
        told = " ".join(refused.output.split())
        assert f"{given[0]} and {given[1]}" in told and "choose one of them" in told
