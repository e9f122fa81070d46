import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from prunella.deploy.cli.main import app
from prunella.deploy.errors import UsageError
from prunella.deploy.runs import RunDir
from prunella.deploy.tools.compare import by_seed, comparison, differing, figures, outcomes
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore


def a_run(folder: Path, rate: float, accuracy: float | None, seed: int = 0, status: str = "completed") -> RunDir:
    store = RunStore.open(folder)
    settings = {"rate": rate, "run-dir": str(folder), "seed": seed}
    store.write_run(id=folder.name, status=status, error=None, settings=settings)
    if accuracy is not None:
        store.append_metrics(1, [row("round", 1), row("rounds", 1), row("accuracy_ratio", accuracy)])
    return RunDir(folder)


def test_figures_of_all_runs_in_one_order_and_a_dash_where_there_is_none(tmp_path: Path) -> None:
    first, second = a_run(tmp_path / "a", 0.3, None), a_run(tmp_path / "b", 0.5, 0.75)
    assert figures(first).keys() == {"verdict", "privacy", "promised", "next"}
    found = dict(outcomes([[first], [second]]))
    assert found["rounds"] == ["—", "1 of 1"] and found["accuracy"] == ["—", "0.750"]


def test_the_table_has_a_column_a_run_and_only_the_settings_that_differ(tmp_path: Path) -> None:
    console = Console(width=100, record=True, quiet=True)
    console.quiet = False
    with console.capture() as shown:
        console.print(comparison([[a_run(tmp_path / "a", 0.3, 0.5)], [a_run(tmp_path / "b", 0.5, 0.75)]]))
    lines = shown.get().splitlines()
    assert any("rate" in line and "0.3" in line and "0.5" in line for line in lines)
    assert any("accuracy" in line and "0.500" in line and "0.750" in line for line in lines)
    assert not any("run-dir" in line for line in lines)


def test_a_run_is_not_compared_with_itself_or_with_one_that_is_not_there(tmp_path: Path) -> None:
    a_run(tmp_path / "a", 0.3, 0.5)
    same = CliRunner().invoke(app, ["compare", "a", "a", "--runs", str(tmp_path)])
    missing = CliRunner().invoke(app, ["compare", "a", "b", "--runs", str(tmp_path)])
    assert same.exit_code and "two different runs" in same.output
    assert missing.exit_code and "no run 'b'" in missing.output


def test_settings_of_another_version_are_counted_not_listed() -> None:
    assert differing([{"rate": 0.3}, {"rate": 0.3, "dgp.top": 0.1, "dgp.keep": 0.2}]) == [
        ("settings not in all", ["0", "2"])
    ]


def test_seeds_of_the_same_settings_are_one_column_with_mean_and_deviation(tmp_path: Path) -> None:
    told = [(0.3, 0.5, 0), (0.3, 0.7, 1), (0.3, 0.9, 2), (0.5, 0.25, 0)]
    runs = [a_run(tmp_path / f"{number}", *one) for number, one in enumerate(told)]
    arms = by_seed(runs)
    assert [[run.id for run in arm] for arm in arms] == [["0", "1", "2"], ["3"]]
    assert dict(outcomes(arms))["accuracy"] == ["0.700 ± 0.200", "0.250"]
    shown = CliRunner().invoke(app, ["compare", "--seeds", "0", "1", "2", "3", "--runs", str(tmp_path)]).output
    assert "0.700 ± 0.200" in shown and "0, 1, 2" in shown and shown.count("0.250") == 1


def test_an_epsilon_is_not_averaged_over_seeds(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / f"{seed}", 0.3, 0.5, seed) for seed in (0, 1)]
    for run, epsilon in zip(runs, (2.5, 4.5), strict=True):
        RunStore.open(run.path).append_metrics(1, [row("privacy_epsilon", epsilon, stat="worst")])
    promised = dict(outcomes(by_seed(runs)))["promised"]
    assert promised == ["ε 2.5 at an unknown δ\nε 4.5 at an unknown δ"]


def test_a_mean_over_seeds_is_of_different_seeds_that_completed(tmp_path: Path) -> None:
    a_run(tmp_path / "a", 0.3, 0.5)
    a_run(tmp_path / "b", 0.3, 0.5)
    a_run(tmp_path / "c", 0.3, 0.5, seed=1, status="failed")
    RunStore.open(a_run(tmp_path / "d", 0.3, 0.5).path).write_run(settings={})
    for other, why in (("b", "the same seed"), ("c", "c is failed"), ("d", "run.json of d names no seed: restore it")):
        refused = CliRunner().invoke(app, ["compare", "--seeds", "a", other, "--runs", str(tmp_path)])
        assert refused.exit_code == 2 and why in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"versions": {"torch": "2.12.0", "prunella": "0.1.0"}}, "torch (2.13.0, 2.12.0)"),
        ({"versions": {"torch": "2.13.0"}}, "prunella (0.1.0, unknown)"),
        ({"test_examples": 100}, "test examples (359, 100)"),
    ],
)
def test_a_mean_over_seeds_is_of_one_version_and_the_same_test_examples(
    fields: dict[str, Any], why: str, tmp_path: Path
) -> None:
    runs, same = [a_run(tmp_path / f"{seed}", 0.3, 0.5, seed) for seed in (0, 1)], {"torch": "2.13.0"}
    for run in runs:
        RunStore.open(run.path).write_run(versions={**same, "prunella": "0.1.0"}, test_examples=359)
    assert len(by_seed(runs)) == 1
    RunStore.open(runs[1].path).write_run(**fields)
    with pytest.raises(UsageError) as refused:
        by_seed(runs)
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, prunella.deploy.tools.compare; assert not {'torch', 'sklearn', 'flwr'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
