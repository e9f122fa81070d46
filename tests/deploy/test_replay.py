"""A recorded view of an undefended client gives its image back; a bad request gives one line."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from attacks.trace import save_trace
from core.errors import ConfigError
from core.files import write_tree
from core.randomness import stream
from core.types import ServerView
from deploy.errors import UsageError
from deploy.replay import find, replay, save, settings_of
from tasks.models import MODELS
from tasks.task import Task, initial


def record(path: Path, x: torch.Tensor, label: int) -> Path:
    """What a server sees of one step of gradient descent on one image, undefended."""
    task = Task("lenet-zhu", (1, 8, 8), 10) if "lenet-zhu" in MODELS else Task("cnn", (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    logits = torch.func.functional_call(task.build(), {**leaves, **buffers}, (x,))
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([label]))
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    update = {name: -0.1 * g for name, g in zip(leaves, gradients, strict=True)}
    shared = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in update.items()}
    view = ServerView(
        params,
        update,
        shared=shared,
        buffers=buffers,
        num_examples=1,
        labels=torch.tensor([label]),
        steps=1,
        batch_size=1,
        learning_rate=0.1,
    )
    save_trace(path, view, task, {})
    return path


def test_an_undefended_view_is_rebuilt_and_drawn(tmp_path: Path) -> None:
    x = torch.rand(1, 1, 8, 8, generator=stream(0, purpose="image"))
    trace = record(tmp_path / "mine.safetensors", x, 3)
    few = replay(trace, "ig", ["ig.iterations=2"], tmp_path, 0)
    many = replay(trace, "ig", ["ig.iterations=300"], tmp_path, 0)
    assert many.answer.objective < few.answer.objective
    assert (many.answer.x - x).square().mean() < (few.answer.x - x).square().mean()
    assert Image.open(many.pictures).size[0] >= 128 and many.pictures.name == "mine-ig.png"
    assert many.pictures.stat().st_mode & 0o777 == 0o600
    text = "\n".join(many.lines())
    assert "honest-but-curious" in text and "objective" in text and "labels [3]" in text


def test_settings_are_the_attacks_own() -> None:
    assert settings_of("ig", ["ig.iterations=5"]) == {"ig.iterations": 5}
    for name, given, told in (
        ("magic", [], "unknown attack"),
        ("ig", ["ig.iteration=5"], "did you mean 'ig.iterations'"),
        ("ig", ["sgi.iterations=5"], "unknown setting"),
        ("ig", ["ig.iterations=-5"], "ig.iterations"),
    ):
        with pytest.raises(ConfigError, match=told):
            settings_of(name, given)


def test_a_trace_may_be_named_by_its_directory(tmp_path: Path) -> None:
    (tmp_path / "round-000005-control").mkdir()
    file = tmp_path / "round-000005-control" / "view.safetensors"
    file.write_bytes(b"")
    assert find(file) == find(file.parent) == (file, "round-000005-control")


def test_files_that_are_no_traces_and_places_that_take_no_picture(tmp_path: Path) -> None:
    for missing in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(UsageError, match="no trace"):
            replay(missing, "ig", [], tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        save(torch.zeros(1, 1, 8, 8), tmp_path / "file" / "x.png")


def test_scores_need_the_truth_and_a_canary_has_it_beside_it(tmp_path: Path) -> None:
    x = torch.rand(1, 1, 8, 8, generator=stream(0, purpose="image"))
    folder = tmp_path / "round-000005-control"
    folder.mkdir()
    trace = record(folder / "view.safetensors", x, 3)
    without = replay(trace, "ig", ["ig.iterations=2"], tmp_path, 0)
    assert without.leakage is None and "--truth" in without.lines()[-1]
    write_tree(folder / "truth.safetensors", {"x": x, "y": torch.tensor([3])})
    scored = replay(folder, "ig", ["ig.iterations=2"], tmp_path, 0)
    assert scored.leakage is not None
    assert scored.leakage.mse.mean == pytest.approx(float((scored.answer.x - x).square().mean()))
    with pytest.raises(UsageError, match="no safetensors file of images"):
        replay(trace, "ig", [], tmp_path, 0, truth=trace)
