"""From a checkpoint to files: smaller where filters are gone, the same size and said so where none is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from prunella.core.trees import Mask, Tree, full_mask
from prunella.deploy.cli import main as cli
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.runs import RunDir
from prunella.deploy.tools import export
from prunella.pruning.channels import channel_groups
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import keep_by_score
from prunella.server.checkpoint import Checkpoint, save
from prunella.server.report.build import exported
from prunella.tasks.exported import fitted, load_exported
from prunella.tasks.task import Task, initial, prunable

TASK = Task("cnn", (1, 8, 8), 10)


def filters(scores: Tree, names: frozenset[str], rate: float) -> Mask:
    return keep_channels(scores, channel_groups(TASK.build(), TASK.shape), names, rate, "global")


def a_run(path: Path, select: Any, rate: float = 0.5) -> RunDir:
    """A run whose last checkpoint holds a pruned model, with biases training has moved."""
    params, _ = initial(TASK, 0)
    params = {name: t + 0.1 if t.ndim == 1 else t for name, t in params.items()}
    mask = select(magnitude(params), prunable(TASK.build()), rate) if select else full_mask(params)
    save(path / "checkpoint", Checkpoint(7, params, mask, {"model": "cnn", "dataset": "digits", "dgp.top": 0.1}))
    (path / "run.json").write_text('{"status": "completed"}')
    return RunDir(path)


def test_whole_filters_make_a_smaller_model_that_says_the_same(tmp_path: Path) -> None:
    run = a_run(tmp_path, filters)
    done = export.export(run, None)
    dense, small = done.parameters
    assert done.smaller and small < 0.7 * dense and done.round == 7 and done.difference <= 1e-5
    saved = export.load(tmp_path / "checkpoint")
    masked = fitted(TASK.build(), export._masked(saved)).eval()
    x = torch.rand(9, 1, 8, 8)
    assert torch.allclose(load_exported(done.folder)(x), masked(x), atol=1e-5)
    assert f"{small:,} of {dense:,} parameters" in done.lines()[0] and "times the dense" in done.lines()[2]
    assert f"{small:,} of {dense:,} parameters" in exported(tmp_path) and "times as fast" in exported(tmp_path)


def test_scattered_zeros_make_nothing_faster_and_the_command_says_so(tmp_path: Path) -> None:
    a_run(tmp_path, keep_by_score, 0.1)
    result = CliRunner().invoke(cli.app, ["export", str(tmp_path), "--out", str(tmp_path / "export")])
    assert result.exit_code == 0, result.output
    assert "no whole filter is pruned: nothing gets faster" in result.output
    text = " ".join((tmp_path / "report.html").read_text().split())
    assert "No whole filter is pruned: nothing gets faster." in text
    assert sum(p.numel() for p in load_exported(tmp_path / "export").parameters()) == 21_882


def test_a_model_that_says_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path, filters)
    wrong = lambda module, tree, shape: {name: t + 0.01 for name, t in tree.items()}  # noqa: E731
    monkeypatch.setattr(export, "shrink", wrong)
    with pytest.raises(LaunchError, match="nothing was written"):
        export.export(run, None)
    assert not (tmp_path / "export").exists() and exported(tmp_path) == ""


def test_the_ratio_is_of_two_times() -> None:
    slow = torch.nn.Sequential(*(torch.nn.Linear(400, 400) for _ in range(8)))
    fast, x = torch.nn.Linear(400, 400), torch.rand(64, 400)
    assert export.speed_up(slow, fast, x) > 1 > export.speed_up(fast, slow, x)


def test_a_run_without_a_checkpoint_and_a_place_that_takes_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint"):
        export.export(RunDir(tmp_path), None)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        export.export(a_run(tmp_path, None), tmp_path / "file" / "x")


def test_the_best_round_is_exported_when_asked_and_missed_when_there_is_none(tmp_path: Path) -> None:
    run = a_run(tmp_path, None)
    with pytest.raises(UsageError, match="evaluation=clients"):
        export.export(run, None, best=True)
    last = export.load(tmp_path / "checkpoint")
    better = {name: t + 1 for name, t in last.tree.items()}
    save(tmp_path / "best", Checkpoint(3, better, last.mask, last.settings, {"validation_score": 0.9}))
    done = CliRunner().invoke(cli.app, ["export", str(tmp_path), "--best"])
    assert done.exit_code == 0 and "round 3" in done.output
    found = dict(load_exported(tmp_path / "export").named_parameters())
    assert all(torch.allclose(found[name], t) for name, t in better.items())
