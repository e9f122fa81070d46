"""Cells side by side, and of several claims; what is kept and judged is in tests/benchmarks/test_reproduce.py."""

import dataclasses
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from prunella.benchmarks.engine import measuring, results
from prunella.benchmarks.engine.cells import Cache
from prunella.benchmarks.engine.claim import Claim, Experiment, Measure, Plot, Point, declared, each, judged
from prunella.benchmarks.engine.measuring import ALONE, Plan, RunLimits, Say, cells_of, fill, missing, points
from prunella.benchmarks.engine.rules import HOLDS, REFUSED, Judgement
from prunella.core.errors import ConfigError


def toy(settings: dict[str, Any], seed: int, data: Path | None) -> dict[str, dict[str, float]]:
    return {"a": {"x": settings["rate"] + seed, "worker": float(os.getpid())}, "late": {"x": 0.0}}


def failing(settings: dict[str, Any], seed: int, data: Path | None) -> dict[str, dict[str, float]]:
    raise ValueError("a cell that cannot be made")


def claim(make: Any = toy) -> Claim:
    cells = [{"rate": rate} for rate in (0.1, 0.5)]
    return declared("T2 | Toy | here | says", Measure("toy", make), "rate: name", "x 1 X", Plot(("x",)), small=cells)


def measured(experiment: Experiment, cache: Cache, say: Say, limits: RunLimits = ALONE) -> dict[str, Any]:
    """Every cell's row, by what it is about."""
    plan = Plan({"": experiment}, "small", cache, data=None)
    fill(plan, None, say, limits)
    return plan.done


def test_a_cell_keeps_the_memory_that_it_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    monkeypatch.setattr(measuring, "keep_freed_memory", lambda: told.append("kept"))
    measuring.work(lambda *_: told.append("made") or {}, {}, 0, None, ALONE)
    assert told == ["kept", "made"]


def test_cells_in_other_processes_give_the_same_points(tmp_path: Path) -> None:
    experiment, lines = claim().experiment, list[str]()
    alone = measured(experiment, Cache(tmp_path / "a", 1), lines.append)
    beside = measured(experiment, Cache(tmp_path / "b", 1), lines.append, RunLimits(jobs=2))
    found = [[(p.label, p.values["x"]) for p in points(experiment, "small", each)] for each in (alone, beside)]
    assert found[0] == found[1] and len(lines) == 12 and missing(experiment, "small", beside) == 0
    ours = {point.values["worker"] for point in points(experiment, "small", beside) if "worker" in point.values}
    assert all(os.getpid() not in each for each in ours)


def test_a_cell_that_fails_in_another_process_ends_the_run_and_the_processes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be made"):
        measured(claim(failing).experiment, Cache(tmp_path, 1), print, RunLimits(jobs=2))
    for child in multiprocessing.active_children():
        child.join(20)
    assert not multiprocessing.active_children()


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """A parent that dies by a signal it cannot catch, with a cell at work that would take a minute."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_measuring as t; t.slow_run()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(200):
        if not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)
    raise AssertionError("the worker went on")


def sleeping(settings: dict[str, Any], seed: int, data: Path | None) -> dict[str, dict[str, float]]:
    print(os.getpid(), flush=True)
    time.sleep(60)
    return {}


def slow_run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measured(claim(sleeping).experiment, Cache(Path(folder), 1), print, RunLimits(jobs=2))


def test_within_a_seed_what_took_least_elsewhere_is_first(tmp_path: Path) -> None:
    experiment, cache = claim().experiment, Cache(tmp_path, 1)
    for cell, seconds in zip(cells_of(experiment, "small"), (9.0, 1.0), strict=False):  # both rates of the first seed
        cache.get(cell.about(experiment), lambda seconds=seconds: {"found": {}, "seconds": seconds})  # type: ignore[misc]
    plan = Plan({"T2": experiment}, "small", cache)
    order = [plan.cells[key][0] for key in plan.following(RunLimits())]
    assert [(cell.seed, cell.settings["rate"]) for cell in order] == [(s, rate) for s in (1, 2) for rate in (0.5, 0.1)]
    again = Plan({"T2": experiment}, "small", cache)
    assert again.minutes(again.left(["T2"]), RunLimits(2)) == pytest.approx(20.0 / 2 / 60)


def other(make: Any, name: str = "other", cells: int = 1) -> Any:
    one = claim(make).experiment
    sweep = dataclasses.replace(one.sweeps["small"], cells=one.sweeps["small"].cells[:cells])
    return dataclasses.replace(one, measure=Measure(name, make), sweeps={"small": sweep})


def test_claims_share_cells_and_what_is_typical_decides_where_nothing_was_measured(tmp_path: Path) -> None:
    two = {"T2": claim().experiment, "T3": claim().experiment, "T4": other(toy)}
    plan, lines = Plan(two, "small", Cache(tmp_path, 1), {"toy": 1.0, "other": 50.0}), list[str]()
    assert next(plan.following(RunLimits())) in plan.claims["T2"][0] and len(plan.cells) == 6 + 3
    plan = Plan(two, "small", Cache(tmp_path, 1), {"toy": 1.0, "other": 0.1})
    assert next(plan.following(RunLimits())) in plan.claims["T4"][0]
    plan = Plan(two, "small", Cache(tmp_path, 1))
    fill(plan, None, lines.append)
    assert not plan.failed and len(lines) == 9 and not plan.left(two)
    assert any("T2, T3: rate 0.1, seed 0: " in line for line in lines)
    assert all(len(list(points(each, "small", plan.done))) > 0 for each in two.values())


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_claim_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path, jobs: int) -> None:
    plan, lines = Plan({"T2": claim().experiment, "T4": other(failing)}, "small", Cache(tmp_path, 1)), list[str]()
    fill(plan, None, lines.append, RunLimits(jobs))
    assert list(plan.failed) == ["T4"] and len(plan.left(["T2"])) == 0 and len(plan.left(["T4"])) == 3
    assert sum("T4: rate 0.1, seed" in line and "cannot be made" in line for line in lines) in range(1, jobs + 1)
    assert Plan({"T4": other(failing)}, "small", Cache(tmp_path, 1)).done == {}


def test_a_point_has_the_seeds_up_to_the_first_that_was_not_measured(tmp_path: Path) -> None:
    experiment = claim().experiment
    done = measured(experiment, Cache(tmp_path, 1), lambda line: None)
    gone = cells_of(experiment, "small")[2]  # the second seed of the first rate
    del done[gone.key(experiment)]
    lengths = {point.label: len(point.values["x"]) for point in points(experiment, "small", done)}
    assert lengths == {("0.1", "a"): 1, ("0.1", "late"): 1, ("0.5", "a"): 3, ("0.5", "late"): 3}
    assert missing(experiment, "small", done) == 1


def test_a_cell_whose_control_was_not_measured_does_not_count(tmp_path: Path) -> None:
    measure = Measure("toy", toy, control={"rate": 0.0})
    experiment = dataclasses.replace(claim().experiment, measure=measure)
    done = measured(experiment, Cache(tmp_path, 1), lambda line: None)
    control = next(cell for cell in cells_of(experiment, "small") if cell.settings["rate"] == 0.0)
    del done[control.key(experiment)]
    assert not list(points(experiment, "small", done))


def vouched_by(control: dict[str, dict[str, float]], found: dict[str, dict[str, float]], told: str = "") -> bool:
    """Whether a cell that gives ``found`` counts beside a control that gives ``control``."""
    measure = Measure("toy", toy, control={"rate": 0.0}, told=told)
    whole = dataclasses.replace(claim().experiment, measure=measure)
    sweep = dataclasses.replace(whole.sweeps["small"], cells=({"rate": 0.1},), seeds=(0,))
    experiment = dataclasses.replace(whole, sweeps={"small": sweep})
    of = {0.0: control, 0.1: found}
    done = {c.key(experiment): {"found": of[c.settings["rate"]]} for c in cells_of(experiment, "small")}
    (point,) = points(experiment, "small", done)
    return point.control


def test_a_control_that_has_no_number_vouches_for_no_attack_and_training_needs_none() -> None:
    attack, training = {"ig": {"psnr": 9.0}}, {"training": {"accuracy": 0.9}}
    assert not vouched_by({}, attack) and not vouched_by(training, attack)
    assert not vouched_by({"other": {"psnr": 30.0}}, attack, told="ig")
    assert vouched_by({"ig": {"psnr": 30.0}}, attack, told="ig") and vouched_by(training, training, told="ig")


def test_a_seed_that_is_there_twice_is_no_second_sample(tmp_path: Path) -> None:
    whole = claim().experiment
    twice = dataclasses.replace(whole, sweeps={"small": dataclasses.replace(whole.sweeps["small"], seeds=(3, 1, 3))})
    with pytest.raises(ConfigError, match="seed 3 twice"):
        measured(twice, Cache(tmp_path, 1), print)


def over_seeds(*found: dict[str, dict[str, float]]) -> tuple[Any, dict[str, Any]]:
    """An experiment of one setting whose cells give this, seed by seed, and its cells."""
    whole = claim().experiment
    sweep = dataclasses.replace(whole.sweeps["small"], cells=({"rate": 0.1},), seeds=tuple(range(len(found))))
    experiment = dataclasses.replace(whole, sweeps={"small": sweep})
    return experiment, {c.key(experiment): {"found": found[c.seed]} for c in cells_of(experiment, "small")}


def test_a_series_counts_on_the_seeds_that_have_it_and_is_compared_on_those_that_all_have() -> None:
    a, b = {"x": 0.0}, {"x": 0.0}
    found = ({"b": b}, {"b": b, "a": {"x": 1.0}}, {"a": {"x": 2.0}}, {"a": {"x": 3.0}, "b": {"x": 9.0}})
    experiment, done = over_seeds(*found)
    there = {point.label[-1]: (point.seeds, point.values["x"]) for point in points(experiment, "small", done)}
    assert there == {"b": ((0, 1, 3), (0.0, 0.0, 9.0)), "a": ((1, 2, 3), (1.0, 2.0, 3.0))}
    seen = list[list[Point]]()
    asking = dataclasses.replace(experiment, judge=lambda given: seen.append(given) or Judgement(HOLDS, "so"))
    said = judged(asking, "small", list(points(experiment, "small", done)))
    assert [(p.seeds, p.values["x"]) for p in seen[0]] == [((1, 3), (0.0, 9.0)), ((1, 3), (1.0, 3.0))]
    assert said == Judgement(HOLDS, "on seeds 1, 3, which every series has: so")
    experiment, done = over_seeds({"a": a}, {"b": b})
    asking = dataclasses.replace(asking, sweeps=experiment.sweeps)
    assert judged(asking, "small", list(points(experiment, "small", done))).word == REFUSED and len(seen) == 1


def test_a_mean_whose_images_were_kept_in_part_has_no_interval() -> None:
    """The first seed scored four images and the second one, as of an attack that answers in part."""
    experiment, done = over_seeds({"a": each([{"x": 10.0}, *[{"x": 60.0}] * 3])}, {"a": each([{"x": 10.0}])})
    (point,) = points(experiment, "small", done)
    assert results.cell(point, experiment.metrics[0]) == "28.8 ± 26.5"
    experiment, done = over_seeds(*[{"a": each([{"x": 10.0}, {"x": 20.0}])}] * 2)
    (point,) = points(experiment, "small", done)
    assert results.cell(point, experiment.metrics[0]).startswith("15.0 [1")
