"""The engine: cells kept over a kill, controls that refuse, files with the numbers, and the list."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prunella.benchmarks import reproduce as engine
from prunella.benchmarks.engine import measuring
from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Measure, Plot, Sweep
from prunella.benchmarks.engine.results import as_json, listing, write
from prunella.benchmarks.engine.results_index import OLDER
from prunella.benchmarks.engine.rules import HOLDS, REFUSED, Judgement, falls
from prunella.benchmarks.registry import CLAIMS, TABLES


class Laboratory:
    """A measure that counts its work, and ends once, as ``end`` says, after ``alive`` cells."""

    def __init__(self, alive: int = 10**9, rebuilt: float = 30.0) -> None:
        self.made: list[tuple[float, int]] = []
        self.alive, self.rebuilt = alive, rebuilt
        self.end: type[BaseException] = KeyboardInterrupt

    def make(self, settings: dict[str, Any], seed: int, data: Path | None) -> dict[str, dict[str, float]]:
        if len(self.made) == self.alive:
            self.alive = 10**9
            raise self.end
        self.made.append((settings["rate"], seed))
        return {"sgi": {"psnr": self.rebuilt - 20 * settings["rate"] + 0.1 * seed}}

    def claim(self, metrics: dict[tuple[str, ...], float] | None = None) -> Claim:
        measure = Measure("toy", self.make, 1, {"rate": 0.0})
        sweep = Sweep(tuple({"rate": rate} for rate in (0.1, 0.5, 0.9)), note="a toy")
        experiment = Experiment(
            measure,
            {"small": sweep},
            ("rate",),
            "attack",
            (Column("psnr", "PSNR", 1, metrics or {}),),
            Plot(("psnr",), x=0, x_name="rate"),
            lambda points: falls({"toy": [(float(p.label[0]), p.values["psnr"]) for p in points]}, "x"),
        )
        return Claim("T1", "Toy", "Table 1", "falls", "nothing", experiment=experiment)


def run(claim: Claim, cache: Path) -> engine.Measured:
    return engine.reproduce(claim, "small", cache, None, lambda line: None)


def test_a_killed_run_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    laboratory = Laboratory(alive=7)
    with pytest.raises(KeyboardInterrupt):
        run(laboratory.claim(), tmp_path)
    first = run(laboratory.claim(), tmp_path)
    assert len(laboratory.made) == len(set(laboratory.made)) == 12  # 3 rates and the control, 3 seeds
    again = run(laboratory.claim(), tmp_path)
    assert len(laboratory.made) == 12 and as_json(again)["points"] == as_json(first)["points"]
    assert first.verdict.word == HOLDS and first.seconds == again.seconds


def test_another_machine_goes_on_where_a_stored_result_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is needed of the machine that measured it is its JSON. Controls outside the sweep are not in it."""
    first, second = Laboratory(alive=7), Laboratory()
    monkeypatch.setitem(CLAIMS, "T1", first.claim())
    stored, out = tmp_path / "stored", tmp_path / "out"
    assert engine.main(["T1", "--cache", str(tmp_path / "one"), "--out", str(stored)]) == 130
    monkeypatch.setitem(CLAIMS, "T1", second.claim())
    asked = ["T1", "--cache", str(tmp_path / "two"), "--out", str(out)]
    assert engine.main([*asked, "--stored", str(stored)]) == 0
    assert "5 cells are stored in" in capsys.readouterr().err
    assert set(first.made) & set(second.made) == {(0.0, 0), (0.0, 1)} and len(second.made) == 7
    whole = json.loads(json.dumps(as_json(run(Laboratory().claim(), tmp_path / "all"))))
    assert whole["points"] == json.loads((out / "T1.json").read_text())["points"]


@pytest.mark.parametrize("change", [{"version": 7}, {"version": None}, {"size": "paper"}, {"machine": {"device": "H"}}])
def test_cells_of_another_version_size_or_device_are_not_taken(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory = Laboratory()
    monkeypatch.setitem(CLAIMS, "T1", laboratory.claim())
    run(laboratory.claim(), tmp_path / "one")
    path = write(run(laboratory.claim(), tmp_path / "one"), tmp_path)[-1]
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert engine.main(["T1", "--cache", str(tmp_path / "two"), "--stored", str(tmp_path)]) == 2
    assert "no finished cell of T1" in capsys.readouterr().err and len(laboratory.made) == 12


def test_a_series_that_a_seed_lacks_comes_back_from_its_json_with_its_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict, the page and the cells that ``--stored`` takes know which seeds stand behind its values."""
    laboratory = Laboratory()

    def make(settings: dict[str, Any], seed: int, data: Path | None) -> dict[str, dict[str, float]]:
        found = laboratory.make(settings, seed, data)
        return found if seed == 0 else {**found, "late": {"psnr": 40.0 - 20 * settings["rate"]}}

    claim = laboratory.claim()
    measure = dataclasses.replace(claim.experiment.measure, make=make, control=None)
    claim = dataclasses.replace(claim, experiment=dataclasses.replace(claim.experiment, measure=measure))
    monkeypatch.setitem(CLAIMS, "T1", claim)
    out = tmp_path / "out"
    assert engine.main(["T1", "--cache", str(tmp_path / "one"), "--out", str(out)]) == 0
    files = {path: path.read_bytes() for path in out.glob("T1.*")}
    told = json.loads((out / "T1.json").read_text())["points"]
    assert [point.get("seeds") for point in told] == [None, [1, 2]] * 3
    assert "On seeds 1, 2, which every series has" in (out / "T1.md").read_text()
    assert "over 3 seeds (0, 1, 2)" in (out / "T1.md").read_text() and "(2 of 3 seeds)" in (out / "T1.md").read_text()
    assert engine.main(["--pages", "--out", str(out)]) == 0
    assert {path: path.read_bytes() for path in files} == files
    laboratory.made.clear()
    again = ["T1", "--cache", str(tmp_path / "two"), "--out", str(tmp_path / "more"), "--stored", str(out)]
    assert engine.main(again) == 0 and not laboratory.made
    assert json.loads((tmp_path / "more" / "T1.json").read_text())["points"] == told


def test_the_control_runs_before_what_it_vouches_for(tmp_path: Path) -> None:
    laboratory = Laboratory()
    run(laboratory.claim(), tmp_path)
    assert [rate for rate, seed in laboratory.made if seed == 0][0] == 0.0


def test_a_failed_control_refuses_whatever_the_numbers_say(tmp_path: Path) -> None:
    asked: list[object] = []
    claim = Laboratory(rebuilt=19.9).claim()
    result = run(claim, tmp_path)
    assert claim.experiment.judge(result.points).word == HOLDS
    assert result.verdict.word == REFUSED and "control" in result.verdict.reason and not asked
    page = write(result, tmp_path / "out")[0].read_text()
    assert "not judged" in page and page.count("control failed") == sum(not p.control for p in result.points) > 0


def test_ctrl_c_is_one_line_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory = Laboratory(alive=5)
    monkeypatch.setitem(CLAIMS, "T1", laboratory.claim())
    asked = ["t1", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    assert engine.main(asked) == 130 and "goes on" in capsys.readouterr().err.splitlines()[-1]
    assert engine.main(asked) == 0 and len(laboratory.made) == 12
    assert "T1 holds" in capsys.readouterr().out


@pytest.mark.parametrize("asked", [["--pages"], ["--index"], ["T1"]])
def test_a_readme_of_somebody_elses_is_kept(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--out .`` is the user's own folder; the list of claims, once it is there, is written anew."""
    laboratory = Laboratory()
    monkeypatch.setitem(CLAIMS, "T1", laboratory.claim())
    to, readme = ["--out", str(tmp_path), "--cache", str(tmp_path / "cache")], tmp_path / "README.md"
    readme.write_text("# My project")
    assert engine.main([*asked, *to]) == 2 and readme.read_text() == "# My project" and not laboratory.made
    assert "README.md is not the list" in capsys.readouterr().err
    readme.unlink()
    for _ in range(2):
        assert engine.main([*asked, *to]) == 0 and readme.read_text().startswith("# The papers' claims")


@pytest.mark.parametrize("asked", ["--pages", "--index"])
def test_results_that_are_not_there_are_no_results(
    asked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert engine.main([asked, "--out", str(tmp_path / "typo")]) == 2 and not (tmp_path / "typo").exists()
    assert "there is no folder" in capsys.readouterr().err


def test_progress_says_how_much_is_left(tmp_path: Path) -> None:
    lines: list[str] = []
    engine.reproduce(Laboratory().claim(), "small", tmp_path, None, lines.append)
    assert len(lines) == 12 and "left" in lines[0] and "left" not in lines[-1] and lines[0].startswith("1/12")
    lines.clear()
    engine.reproduce(Laboratory().claim(), "small", tmp_path, None, lines.append)
    assert all("kept from before" in line for line in lines)


def test_the_files_hold_measured_beside_published(tmp_path: Path) -> None:
    result = run(Laboratory().claim({("0.5", "sgi"): 20.5}), tmp_path)
    page, svg, png, data = write(result, tmp_path / "out")
    assert "20.1 ± 0.1 (20.5)" in page.read_text() and "prunella reproduce T1 --size small" in page.read_text()
    assert svg.read_text().startswith("<?xml") and png.read_bytes()[:4] == b"\x89PNG"
    kept = json.loads(data.read_text())
    assert kept["points"][1]["values"]["psnr"] == pytest.approx([20.0, 20.1, 20.2]) and kept["verdict"] == HOLDS


def test_pages_are_written_anew_from_their_numbers_unless_the_settings_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim, asked = Laboratory().claim(), ["--pages", "--out", str(tmp_path / "out")]
    files = write(run(claim, tmp_path), tmp_path / "out")
    before = [path.read_bytes() for path in files]
    files[0].write_text("spoilt")
    files[1].unlink()
    monkeypatch.setitem(CLAIMS, "T1", claim)
    assert engine.main(asked) == 0 and [path.read_bytes() for path in files] == before
    fewer = dataclasses.replace(claim.experiment, sweeps={"small": Sweep(({"rate": 0.1},))})
    monkeypatch.setitem(CLAIMS, "T1", dataclasses.replace(claim, experiment=fewer))
    assert engine.main(asked) == 2 and "measure it again" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "said"), [(7, "version 7"), (None, "an unknown version")])
def test_numbers_of_another_version_of_their_measure_say_so(
    version: int | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, out = Laboratory().claim(), tmp_path / "out"
    measure = dataclasses.replace(claim.experiment.measure, version=2)
    claim = dataclasses.replace(claim, experiment=dataclasses.replace(claim.experiment, measure=measure))
    monkeypatch.setattr(engine, "CLAIMS", {"T1": claim})
    monkeypatch.setattr(engine, "TABLES", {})
    page, *_, data = write(run(claim, tmp_path), out)
    rewrite = ["--pages", "--out", str(out)]
    assert engine.main(rewrite) == 0
    assert "of its measure" not in page.read_text() and "**holds**:" in (out / "README.md").read_text()
    data.write_text(json.dumps({**json.loads(data.read_text()), "version": version}))
    assert engine.main(rewrite) == 0
    assert f"Measured by {said} of its measure; today's is 2." in page.read_text()
    assert f"**holds**{OLDER}:" in (out / "README.md").read_text()


def test_the_list_names_all_and_does_not_pretend(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.strip() == listing([*CLAIMS.values(), *TABLES.values()])
    for claim in (*CLAIMS.values(), *TABLES.values()):
        assert claim.says in listed
    assert "small (mnist), paper (femnist; wants a GPU)" in listed and "small (no images)" in listed


def test_images_that_are_not_local_are_named_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    assert engine.elsewhere(CLAIMS["X1"], "small", tmp_path) == ["cifar10"]
    assert engine.elsewhere(CLAIMS["X1"], "small", None) == ["cifar10", "mnist"]
    assert engine.elsewhere(CLAIMS["D5"], "small", None) == []  # digits are bundled
    lines: list[str] = []
    claim = Laboratory().claim()
    sweep = Sweep(({"rate": 0.1, "dataset": "mnist"},))
    other = dataclasses.replace(claim, experiment=dataclasses.replace(claim.experiment, sweeps={"small": sweep}))
    engine.reproduce(other, "small", tmp_path, tmp_path / "nothing", lines.append)
    assert lines[0].startswith("mnist has no folder") and "1/6" in lines[1]


def test_somebody_s_own_claim_is_measured_called_as_asked_and_kept_out_of_the_list_of_the_papers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "MINE", Laboratory().claim())
    name, out = f"{__name__}:MINE", tmp_path / "out"
    assert engine.main([name, "--cache", str(tmp_path / "cache"), "--out", str(out)]) == 0
    assert f"{name} holds" in capsys.readouterr().out
    stem = name.replace(":", ".")  # so that another module's MINE is beside it
    assert sorted(path.name for path in out.iterdir()) == [f"{stem}.{end}" for end in ("json", "md", "png", "svg")]
    assert f"`prunella reproduce {name} --size small`" in (out / f"{stem}.md").read_text()
    for wrong, words in ((f"{__name__}:engine", "is a module, not"), ("nowhere:MINE", "cannot be imported here")):
        assert engine.main([wrong]) == 2 and words in capsys.readouterr().err


def test_a_run_without_time_keeps_what_it_has_and_judges_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory = Laboratory(alive=6)
    monkeypatch.setitem(CLAIMS, "T1", laboratory.claim())
    asked = ["T1", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    assert engine.main([*asked, "--budget", "0s"]) == 2 and "more time" in capsys.readouterr().err
    assert not laboratory.made and not (tmp_path / "out").exists()
    assert engine.main(asked) == 130  # six cells: the first seed, and the second's control and cheapest rate
    assert engine.main([*asked, "--budget", "0s"]) == 0 and len(laboratory.made) == 6
    assert "T1 not judged: 6 cells have not been measured yet" in capsys.readouterr().out
    page, kept = (tmp_path / "out" / "T1.md").read_text(), json.loads((tmp_path / "out" / "T1.json").read_text())
    assert "(2 of 3 seeds)" in page and "(1 of 3 seeds)" in page and kept["missing"] == 6
    assert "over 2 seeds (0, 1)" in page  # that were measured, and not those that will be
    assert sorted(len(point["values"]["psnr"]) for point in kept["points"]) == [1, 1, 2]
    assert engine.main(["--pages", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "T1.md").read_text() == page
    assert engine.main(asked) == 0 and "T1 holds" in capsys.readouterr().out and len(laboratory.made) == 12


def test_pages_of_one_s_own_claim_are_of_it_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rule has changed since: its page is judged anew, and no list of the papers' claims is put beside it."""
    monkeypatch.setitem(globals(), "MINE", Laboratory().claim())
    out, name = tmp_path / "out", f"{__name__}:MINE"
    assert engine.main([name, "--cache", str(tmp_path / "cache"), "--out", str(out)]) == 0
    judged = dataclasses.replace(Laboratory().claim().experiment, judge=lambda points: Judgement(REFUSED, "a new rule"))
    monkeypatch.setitem(globals(), "MINE", dataclasses.replace(Laboratory().claim(), experiment=judged))
    assert engine.main([name, "--pages", "--out", str(out)]) == 0
    assert "A new rule" in next(out.glob("*.md")).read_text() and len(list(out.glob("*.md"))) == 1
    capsys.readouterr()
    assert engine.main(["X1", "--pages", "--out", str(out)]) == 2 and "no result of X1" in capsys.readouterr().err
    assert engine.main(["X1", "--index", "--out", str(out)]) == 2 and "leave the claim out" in capsys.readouterr().err


class Killed(BaseException):
    """What no code catches."""


class Clock:
    """In which a cell of rate r takes 20 + 100 r seconds."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.laboratory = laboratory

    def time(self) -> float:
        return sum(20 + 100 * rate for rate, _ in self.laboratory.made)

    perf_counter = time


@pytest.fixture
def everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Laboratory, list[str]]:
    """A laboratory of three claims, of which one has no small size, and a command that measures all of them."""
    laboratory = Laboratory()
    dear, cheap = laboratory.claim(), laboratory.claim()
    sweep = Sweep(({"rate": 0.01}, {"rate": 0.02}), (0, 1), note="a toy")
    measure = dataclasses.replace(cheap.experiment.measure, name="cheap", control=None)
    few = dataclasses.replace(cheap.experiment, measure=measure, sweeps={"small": sweep})
    large = dataclasses.replace(dear.experiment, sweeps={"paper": sweep})
    monkeypatch.setattr(engine, "CLAIMS", {"T1": dear, "T2": dataclasses.replace(cheap, name="T2", experiment=few)})
    monkeypatch.setattr(engine, "TABLES", {"t3": dataclasses.replace(cheap, name="t3", experiment=large)})
    for module in (measuring, engine):
        monkeypatch.setattr(module, "time", Clock(laboratory))
    return laboratory, ["--size", "small", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]


def test_without_a_claim_all_of_the_size_are_measured_as_far_as_the_budget_goes(
    everything: tuple[Laboratory, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    laboratory, asked = everything
    out = tmp_path / "out"
    assert engine.main([*asked, "--budget", "320s"]) == 0
    rates, seeds = zip(*laboratory.made, strict=True)  # T2 has two rates, and T1 three and a control; seed by seed
    assert rates == (0.01, 0.02, 0.0, 0.1, 0.5, 0.9, 0.01, 0.02, 0.0) and seeds == (0, 0, 0, 0, 0, 0, 1, 1, 1)
    said = capsys.readouterr()
    assert "T2 holds" in said.out and "T1 not judged: 7 cells have not been measured yet" in said.out
    assert said.err.splitlines()[-1] == "T1: 7 of 12 cells missing, about 7 min"  # 440 s
    assert sorted(path.name for path in out.glob("*.json")) == ["T1.json", "T2.json"] and (out / "README.md").exists()
    assert engine.main(asked) == 0 and len(laboratory.made) == len(set(laboratory.made)) == 16
    said = capsys.readouterr()
    assert "T1 holds" in said.out and "9/16 kept from before" in said.err and "missing" not in said.err


def test_a_run_of_all_that_was_killed_goes_on_and_one_that_was_stopped_writes_what_it_has(
    everything: tuple[Laboratory, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    laboratory, asked = everything
    for end, cells in ((Killed, 3), (KeyboardInterrupt, 8)):
        laboratory.alive = cells
        with pytest.raises(Killed) if end is Killed else contextlib.nullcontext():
            laboratory.end = end
            assert engine.main(asked) == 130
        assert len(laboratory.made) == cells and (tmp_path / "out").exists() is (end is not Killed)
    said = capsys.readouterr()
    assert "T2 holds" in said.out and "T1 not judged" in said.out
    assert said.err.splitlines()[-2].startswith("T1: 8 of 12 cells missing") and "goes on" in said.err.splitlines()[-1]
    assert engine.main(asked) == 0 and len(laboratory.made) == len(set(laboratory.made)) == 16


def test_a_claim_that_fails_is_named_and_the_rest_is_written(
    everything: tuple[Laboratory, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    laboratory, asked = everything
    laboratory.alive, laboratory.end = 2, ValueError
    assert engine.main(asked) == 2
    said = capsys.readouterr()
    assert "T2 holds" in said.out and "T1 " not in said.out and "no more of T1 is measured now" in said.err
    assert (
        "T1: 12 of 12 cells missing" in said.err.splitlines()[-1]
        and "it failed: ValueError" in said.err.splitlines()[-1]
    )
    assert engine.main([*asked, "--budget", "0s"]) == 0 and len(laboratory.made) == 4


def test_without_claim_and_size_the_list_says_how_to_measure_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main([]) == 2
    assert "prunella reproduce --size small --budget 30min" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("text", ["", "30", "min", "1.5.2h", "-3s", "2 days"])
def test_a_budget_that_is_no_time_says_how_to_write_one(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        engine.main(["T1", f"--budget={text}"])
    assert left.value.code == 2 and "write 90s, 30min or 2h" in capsys.readouterr().err


def test_a_cell_of_somebody_s_own_defense_is_measured_again_once_that_was_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    mine, laboratory = tmp_path / "edited_mine.py", Laboratory()
    mine.write_text("KEEP = 1\n")
    claim = laboratory.claim()
    cells = tuple({"rate": rate, "defenses": d} for rate, d in ((0.1, "dgp"), (0.5, "dgp,edited_mine:KEEP")))
    measure = dataclasses.replace(claim.experiment.measure, control=None)
    changed = dataclasses.replace(claim.experiment, measure=measure, sweeps={"small": Sweep(cells, (0,))})
    for text, rates in (("KEEP = 1\n", [0.1, 0.5]), ("KEEP = 1\n", []), ("KEEP = 2\n", [0.5])):
        mine.write_text(text)
        laboratory.made.clear()
        run(dataclasses.replace(claim, experiment=changed), tmp_path / "cache")
        assert [rate for rate, _ in laboratory.made] == rates


def test_stored_numbers_of_code_that_was_edited_are_not_taken_and_poison_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    mine, laboratory = tmp_path / "stored_mine.py", Laboratory()
    mine.write_text("KEEP = 1\n")
    claim = laboratory.claim()
    cells = tuple({"rate": rate, "defenses": d} for rate, d in ((0.1, "dgp"), (0.5, "dgp,stored_mine:KEEP")))
    measure = dataclasses.replace(claim.experiment.measure, control=None)
    changed = dataclasses.replace(claim.experiment, measure=measure, sweeps={"small": Sweep(cells, (0,))})
    monkeypatch.setitem(CLAIMS, "T1", dataclasses.replace(claim, experiment=changed))

    def made(cache: str, *more: str) -> list[float]:
        laboratory.made.clear()
        assert engine.main(["T1", "--cache", str(tmp_path / cache), "--out", str(tmp_path / "more"), *more]) == 0
        return [rate for rate, _ in laboratory.made]

    path, stored = tmp_path / "out" / "T1.json", ("--stored", str(tmp_path / "out"))
    assert engine.main(["T1", "--cache", str(tmp_path / "one"), "--out", str(path.parent)]) == 0
    assert made("same", *stored) == []
    mine.write_text("KEEP = 2\n")
    assert engine.main(["--pages", "--out", str(path.parent)]) == 0  # which is no measurement of today's code
    assert made("other", *stored) == [0.5]
    row = json.loads(path.read_text())
    assert list(row.pop("code")) == ["stored_mine:KEEP"]
    path.write_text(json.dumps(row))
    mine.write_text("KEEP = 1\n")
    assert made("unknown", *stored) == [0.5]


def test_a_cell_is_kept_under_the_code_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    mine = tmp_path / "midway_mine.py"
    mine.write_text("KEEP = 1\n")

    def make(settings: dict[str, Any], seed: int, data: Path | None) -> dict[str, dict[str, float]]:
        mine.write_text("KEEP = 2\n")
        return {"sgi": {"psnr": 30.0}}

    claim = Laboratory().claim()
    sweep = Sweep(({"rate": 0.1, "defenses": "midway_mine:KEEP"},), (0,))
    experiment = dataclasses.replace(claim.experiment, measure=Measure("toy", make), sweeps={"small": sweep})
    plan = measuring.Plan({"T1": experiment}, "small", measuring.Cache(tmp_path / "cache", 1))
    measuring.fill(plan, None, lambda line: None)
    assert not measuring.Plan({"T1": experiment}, "small", measuring.Cache(tmp_path / "cache", 1)).done


def test_other_images_in_the_folder_of_data_are_measured_again(tmp_path: Path) -> None:
    """A cell without a record of its images counts as before; one of a folder is none of the hub's."""
    laboratory, data = Laboratory(), [tmp_path / name for name in ("a", "same", "other")]
    for folder, content in zip(data, (b"one", b"one", b"two"), strict=True):
        (folder / "mnist").mkdir(parents=True)
        (folder / "mnist" / "test.parquet").write_bytes(content)
    claim = laboratory.claim()
    measure = dataclasses.replace(claim.experiment.measure, control=None)
    sweep = Sweep(({"rate": 0.1, "dataset": "mnist"}, {"rate": 0.2, "dataset": "digits"}), (0,))
    other = dataclasses.replace(claim.experiment, measure=measure, sweeps={"small": sweep})

    def made(folder: Path | None) -> list[float]:
        laboratory.made.clear()
        engine.reproduce(dataclasses.replace(claim, experiment=other), "small", tmp_path / "c", folder, lambda _: None)
        return [rate for rate, _ in laboratory.made]

    asked = (data[0], data[1], data[2], data[2], data[0], None)
    assert [made(folder) for folder in asked] == [[0.1, 0.2], [], [0.1], [], [0.1], [0.1]]
    for path in (tmp_path / "c").glob("*.json"):
        path.write_text(
            json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "data"})
        )
    assert made(data[2]) == []


def test_what_a_user_can_mend_is_one_line_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        (["D33"], "did you mean"),
        (["D3", "--data", str(tmp_path / "nowhere")], "there is no folder"),
        (["L3", "--size", "paper"], "no size"),
        (["D3", "--jobs", "0"], "at least 1"),
        (["D3", "--submit", "mine:NAME"], "of the board"),
        (["D3", "--out", f"{__file__}/out"], "test_reproduce.py is a file; choose another directory with --out"),
        (["--pages", "--out", __file__], "is a file; choose another directory with --out"),
        (["D3", "--out", "/proc/nowhere"], "/proc may not be written to; choose another directory with --out"),
        (["D3", "--cache", __file__], "is a file; choose another directory with --cache"),
        (["board", "--submit", "math:pi"], "is a float"),
        (["board", "--submit", "nothing"], "unknown defense or attack"),
    ):
        assert engine.main(["--cache", str(tmp_path), "--out", str(tmp_path / "out"), *arguments]) == 2
        said = capsys.readouterr().err
        assert word in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert Judgement(HOLDS, "x").word == "holds"


def test_without_images_it_says_how_to_give_it_some(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"}
    asked = [sys.executable, "-m", "prunella.benchmarks", "reproduce", "D2", "--data", str(tmp_path)]
    asked += ["--cache", str(tmp_path / "cells"), "--out", str(tmp_path / "out")]
    ended = subprocess.run(asked, capture_output=True, text=True, env=environment)
    assert ended.returncode == 2
    first, *between, last = ended.stderr.splitlines()
    assert first.startswith("cifar10 has no folder under --data") and not between
    assert last.startswith("reproduce: uoft-cs/cifar10 cannot be fetched") and last.endswith("below it, called cifar10")
