"""From a checkpoint to files: smaller where filters are gone, the same size and said so where none is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import Mask, Tree, apply_mask, full_mask
from prunella.deploy.cli import main as cli
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.runs import RunDir
from prunella.deploy.tools import export
from prunella.deploy.tools.export import Wanted
from prunella.deploy.tools.forms import FORMS, write_onnx
from prunella.pruning.channels import channel_groups
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import keep_by_score
from prunella.server.checkpoint import Checkpoint, save
from prunella.server.report.build import exported
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore
from prunella.tasks.data import Partition, batches, load_client
from prunella.tasks.exported import fitted, load_exported
from prunella.tasks.task import Task, initial, prunable
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

TASK = Task("cnn", (1, 8, 8), 10)


def filters(scores: Tree, names: frozenset[str], rate: float) -> Mask:
    return keep_channels(scores, channel_groups(TASK.build(), TASK.shape), names, rate, "global")


def a_run(path: Path, select: Any, rate: float = 0.5, dataset: str = "digits") -> RunDir:
    """A run whose last checkpoint holds a pruned model, with biases training has moved."""
    params, _ = initial(TASK, 0)
    params = {name: t + 0.1 if t.ndim == 1 else t for name, t in params.items()}
    mask = select(magnitude(params), prunable(TASK.build()), rate) if select else full_mask(params)
    save(path / "checkpoint", Checkpoint(7, params, mask, {"model": "cnn", "dataset": dataset, "dgp.top": 0.1}))
    (path / "run.json").write_text('{"status": "completed"}')
    return RunDir(path)


def test_whole_filters_make_a_smaller_model_that_says_the_same(tmp_path: Path) -> None:
    run = a_run(tmp_path, filters)
    done = export.export(run, Wanted())
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
        export.export(run, Wanted())
    assert not (tmp_path / "export").exists() and exported(tmp_path) == ""


def test_the_ratio_is_of_two_times() -> None:
    slow = torch.nn.Sequential(*(torch.nn.Linear(400, 400) for _ in range(8)))
    fast, x = torch.nn.Linear(400, 400), torch.rand(64, 400)
    assert export.speed_up(slow, fast, x) > 1 > export.speed_up(fast, slow, x)


def test_a_run_without_a_checkpoint_and_a_place_that_takes_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint"):
        export.export(RunDir(tmp_path), Wanted())
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        export.export(a_run(tmp_path, None), Wanted(tmp_path / "file" / "x"))


def test_a_place_that_takes_no_files_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_forms", lambda *_: pytest.fail("quantizing and timing takes minutes"))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another with --out"):
        export.export(a_run(tmp_path, filters), Wanted(tmp_path / "file" / "model"))


def test_the_model_of_a_run_that_stopped_early_is_called_that(tmp_path: Path) -> None:
    run = a_run(tmp_path, filters)
    assert not export.export(run, Wanted()).notes
    (tmp_path / "run.json").write_text('{"status": "stopped"}')
    assert export.export(run, Wanted()).notes == ("the run is stopped: this is its model after round 7 of 10",)


def test_an_older_checkpoint_is_not_taken_for_the_last(tmp_path: Path) -> None:
    run = a_run(tmp_path / "r", filters)
    store = RunStore.open(run.path)
    store.append_metrics(7, [row("round", 7)])
    assert export.export(run, export.Wanted(tmp_path / "out")).round == 7
    saved = export.load(run.path / "checkpoint")
    assert saved is not None
    save(run.path / "checkpoint", replace(saved, round=8))
    store.append_metrics(8, [row("round", 8)])
    (run.path / "checkpoint" / "round-00000008.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match=r"round 8, the last of run r, is damaged.* of round 7: restore it, or train"):
        export.export(run, export.Wanted(tmp_path / "out"))


def test_the_best_round_is_exported_when_asked_and_missed_when_there_is_none(tmp_path: Path) -> None:
    run = a_run(tmp_path, None)
    with pytest.raises(UsageError, match="evaluation=clients"):
        export.export(run, Wanted(best=True))
    last = export.load(tmp_path / "checkpoint")
    better = {name: t + 1 for name, t in last.tree.items()}
    save(tmp_path / "best", Checkpoint(3, better, last.mask, last.settings, {"validation_score": 0.9}))
    done = CliRunner().invoke(cli.app, ["export", str(tmp_path), "--best"])
    assert done.exit_code == 0 and "round 3" in done.output
    found = dict(load_exported(tmp_path / "export").named_parameters())
    assert all(torch.allclose(found[name], t) for name, t in better.items())


def onnx() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: it is in prunella[export]")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: it is in prunella[export]")


def learnt(path: Path) -> RunDir:
    """A run whose pruned model tells the digits apart, after 300 steps on the images that train the main job."""
    params, buffers = initial(TASK, 0)
    mask, module = filters(magnitude(params), prunable(TASK.build()), 0.5), TASK.build()
    train = load_client("digits", Partition("iid", 1), 0, None)
    for batch in batches(train, 32, 300, rehearsal(0, purpose="learn")):
        _, gradient, buffers = loss_and_gradient(module, apply_mask(params, mask), buffers, batch.x, batch.y)
        params, _ = sgd_step(params, apply_mask(gradient, mask), {}, Sgd(0.25), None)
    save(path / "checkpoint", Checkpoint(7, apply_mask(params, mask), mask, {"model": "cnn", "dataset": "digits"}))
    return RunDir(path)


def test_onnx_and_int8_say_what_the_checkpoint_says_of_real_images(tmp_path: Path) -> None:
    onnx()
    done = export.export(learnt(tmp_path), Wanted(formats=("onnx",), int8=True, bench=True))
    facts = json.loads((done.folder / "model.json").read_text())
    plain, rounded = facts["forms"]
    assert plain["file"] == "model.onnx" and plain["difference"] < 1e-5 and plain["agreement"] == 1
    assert plain["accuracy"] > 0.8 and rounded["accuracy"] > plain["accuracy"] - 0.05 and rounded["agreement"] > 0.95
    assert 1e-4 < rounded["difference"]  # it is another computation, and the difference is seen
    assert rounded["bytes"] < 0.6 * plain["bytes"] == 0.6 * (done.folder / "model.onnx").stat().st_size
    assert [row["file"] for row in facts["bench"]] == ["dense.pt2", "model.pt2", "model.onnx", "model.int8.onnx"]
    assert all(row["cost"]["median"] > 0 and row["difference"] < 0.5 for row in facts["bench"])
    assert facts["bench"][0]["bytes"] > facts["bench"][1]["bytes"]
    told = "\n".join(done.lines())
    assert "of 270 test images in the same class" in told and "ms an image" in told and "dense.pt2" in told


def test_a_form_that_says_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx()

    def other(module: torch.nn.Module, images: torch.Tensor, path: Path) -> None:
        with torch.no_grad():
            next(module.parameters()).add_(0.05)
        write_onnx(module, images, path)

    monkeypatch.setitem(FORMS, ("onnx", False), FORMS["onnx", False]._replace(write=other))
    with pytest.raises(LaunchError, match="model.onnx: outputs differ by .*: nothing was written"):
        export.export(a_run(tmp_path, filters), Wanted(formats=("onnx",)))
    assert not (tmp_path / "export").exists()


def test_without_test_images_int8_is_refused_and_accuracy_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx()
    monkeypatch.setattr(export, "load_test", lambda dataset, data: None)
    run = a_run(tmp_path, filters)
    with pytest.raises(UsageError, match="--data"):
        export.export(run, Wanted(int8=True))
    with pytest.raises(UsageError, match="there is no directory .*nowhere: name that of the test examples"):
        export.export(run, Wanted(data=tmp_path / "nowhere"))  # not asked for without a format, and wrong all the same
    assert not (tmp_path / "export").exists()
    done = export.export(run, Wanted(formats=("onnx",)))
    assert "accuracy was not measured" in done.notes[-1] and (done.folder / "model.onnx").exists()
    assert json.loads((done.folder / "model.json").read_text())["forms"][0]["accuracy"] is None


def pictures(path: Path, classes: int) -> Path:
    for split, count in (("train", 10), ("test", 400)):
        for label in range(classes):
            folder = path / split / f"class-{label:02d}"
            folder.mkdir(parents=True)
            for n in range(-(-count // classes)):
                Image.new("L", (8, 8), 20 * label + n % 20).save(folder / f"{n}.png")
    return path


def test_a_run_whose_pictures_lie_elsewhere_is_exported_and_data_names_them(tmp_path: Path) -> None:
    onnx()
    run = a_run(tmp_path / "run", filters, dataset=f"imagefolder@1x8x8:{tmp_path / 'gone'}")
    here, other = pictures(tmp_path / "here", 10), pictures(tmp_path / "other", 9)
    with pytest.raises(UsageError, match="name the directory of the run's images with --data"):
        export.export(run, Wanted())
    assert export.export(run, Wanted(data=here)).parameters[0] == 21882, "of an older release"
    (run.path / "run.json").write_text('{"status": "completed", "shape": [1, 8, 8], "classes": 10}')
    without = export.export(run, Wanted(formats=("onnx",)))
    assert without.parameters[0] == 21882 and "accuracy was not measured: the data folder" in without.notes[-1]
    assert "accuracy" not in str(export.export(run, Wanted(formats=("onnx",), data=here)).notes)
    wrong = export.export(run, Wanted(formats=("onnx",), data=other))
    assert "another shape or other classes than the run's" in wrong.notes[-1]


def test_a_format_whose_packages_are_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.core.extras.find_spec", lambda name: None)
    run = a_run(tmp_path, filters)
    for formats, extra in ((("onnx",), "export"), (("pte",), "executorch")):
        with pytest.raises(ConfigError, match=rf'pip install "prunella\[{extra}\]"'):
            export.export(run, Wanted(formats=formats))
    assert not (tmp_path / "export").exists()


class Branching(nn.Module):
    """What it computes depends on its images."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(x.flatten(1)) if x.sum() > 0 else self.last(-x.flatten(1))
        return logits


class Odd(nn.Module):
    """Exported by PyTorch, and of an operation that ONNX has none for."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(torch.special.modified_bessel_i1(x.flatten(1)))
        return logits


@pytest.mark.parametrize(
    ("model", "asked", "told"),
    [
        (Branching, [], "PyTorch cannot export this model"),
        (Branching, ["--format", "onnx"], "model.onnx: this model cannot be written in that form"),
        (Odd, ["--format", "onnx"], "leave out --format onnx"),
    ],
)
def test_a_model_that_cannot_be_exported_is_a_line_and_no_file(
    tmp_path: Path, model: type[nn.Module], asked: list[str], told: str
) -> None:
    tree = {name: p.detach() for name, p in model().named_parameters()}
    settings = {"model": f"{__name__}:{model.__name__}", "dataset": "digits"}
    save(tmp_path / "checkpoint", Checkpoint(1, tree, full_mask(tree), settings))
    (tmp_path / "run.json").write_text('{"status": "completed"}')
    result = CliRunner().invoke(cli.app, ["export", str(tmp_path), *asked])
    said = " ".join(result.output.split())
    assert result.exit_code not in (0, None) and isinstance(result.exception, SystemExit), result.exception
    assert told in said and "Traceback" not in said
    assert not list((tmp_path / "export").glob("*"))
