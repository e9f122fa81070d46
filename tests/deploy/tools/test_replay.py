"""A recorded view of an undefended client gives its image back; a bad request gives one line."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from prunella.attacks import Attack
from prunella.attacks.ig import Ig
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import score
from prunella.attacks.trace import save_trace
from prunella.core.errors import AttackError, ConfigError
from prunella.core.files import write_tree
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.deploy.errors import UsageError
from prunella.deploy.tools.replay import Replay, Sources, find_trace, replay, save, settings_of
from prunella.server.audit.canary import load_pool
from prunella.server.audit.shadow import write_public
from prunella.tasks.data import load_test
from prunella.tasks.models import MODELS
from prunella.tasks.task import Task, initial


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
    few = replay(Sources(trace, tmp_path), "ig", ["ig.iterations=2"], 0)
    many = replay(Sources(trace, tmp_path), "ig", ["ig.iterations=300"], 0)
    assert many.answer.objective < few.answer.objective
    assert (many.answer.x - x).square().mean() < (few.answer.x - x).square().mean()
    assert Image.open(many.pictures).size[0] >= 128 and many.pictures.name == "mine-ig.png"
    assert many.pictures.stat().st_mode & 0o777 == 0o600
    text = "\n".join(many.lines())
    assert "honest-but-curious" in text and "objective" in text and "labels [3]" in text


@pytest.mark.parametrize("objective", [0.001, 0.6, None])
def test_a_level_at_the_baseline_is_no_comfort_by_itself(objective: float | None) -> None:
    x = torch.rand(2, 1, 8, 8, generator=stream(0, purpose="image"))
    noise = torch.rand(2, 1, 8, 8, generator=stream(1, purpose="image"))
    answer = Reconstruction(noise, None, objective or 0.0, 1, compared=objective is not None)
    leakage = score(answer, PrivateBatch(x, torch.tensor([3, 4])))
    found = Replay("ig", "t", True, ServerView({}, {}), answer, None, leakage)
    (line,) = [each for each in found.scores() if each.startswith("level")]
    assert "baseline" in line and "by itself shows nothing" in line


def test_settings_are_the_attacks_own() -> None:
    assert settings_of("ig", ["ig.iterations=5"]) == Ig(iterations=5)
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
    assert find_trace(file) == find_trace(file.parent) == (file, "round-000005-control")


def test_files_that_are_no_traces_and_places_that_take_no_picture(tmp_path: Path) -> None:
    (failed := tmp_path / "round-000001-control").mkdir()
    for missing, why in ((tmp_path / "missing", "^no trace"), (tmp_path, "^no trace"), (failed, "its audit failed")):
        with pytest.raises(UsageError, match=why):
            replay(Sources(missing, tmp_path), "ig", [], 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        save(torch.zeros(1, 1, 8, 8), tmp_path / "file" / "x.png")


def test_scores_need_the_truth_and_a_canary_has_it_beside_it(tmp_path: Path) -> None:
    x = torch.rand(1, 1, 8, 8, generator=stream(0, purpose="image"))
    folder = tmp_path / "round-000005-control"
    folder.mkdir()
    trace = record(folder / "view.safetensors", x, 3)
    without = replay(Sources(trace, tmp_path), "ig", ["ig.iterations=2"], 0)
    assert without.leakage is None and "--truth" in without.lines()[-1]
    write_tree(folder / "truth.safetensors", {"x": x, "y": torch.tensor([3])})
    scored = replay(Sources(folder, tmp_path), "ig", ["ig.iterations=2"], 0)
    assert scored.leakage is not None
    assert scored.leakage.mse.mean == pytest.approx(float((scored.answer.x - x).square().mean()))
    assert "AlexNet's weights" in scored.perceptual or scored.perceptual.startswith("mean")
    names = [line.split()[0] for line in scored.lines()]
    assert names[5:] == ["psnr", "ssim", "nmi", "ami", "mse", "ncc", "rdlv", "lpips", "iip", "level", "labels"]
    assert "(random " in scored.lines()[13] and "other" not in scored.lines()[13], "it has no gallery"
    with pytest.raises(UsageError, match="not a safetensors file with images"):
        replay(Sources(trace, tmp_path, truth=trace), "ig", [], 0)
    with pytest.raises(UsageError, match=f"there is no file {tmp_path}/typo"):
        replay(Sources(trace, tmp_path, truth=tmp_path / "typo"), "ig", [], 0)


def test_labels_get_a_verdict_and_their_grey_images_none(tmp_path: Path) -> None:
    """Sixteen labels of two classes are told; the one label of a single image could be a lucky guess."""
    task, x = Task("cnn", (1, 8, 8), 10), torch.rand(16, 1, 8, 8, generator=stream(0, purpose="image"))
    batch = PrivateBatch(x, torch.tensor([2] * 12 + [7] * 4))
    view = undefended_view(task, *initial(task, 0), batch)
    save_trace(tmp_path / "many.safetensors", view, task, {})
    write_tree(tmp_path / "truth.safetensors", {"x": x, "y": batch.y})
    many, single, known = (tmp_path / f"{name}.safetensors" for name in ("many", "one", "truth"))
    told = replay(Sources(many, tmp_path, truth=known), "label", [], 0)
    text = "\n".join(told.lines())
    assert told.labels is not None and told.labels.told and "tells which classes" in text and "psnr" not in text
    assert told.labels.chance == pytest.approx(0.2, abs=0.03)  # 12 and 4 of 16: 1.6 of each class are drawn
    assert not list(tmp_path.glob("*.png"))
    first = PrivateBatch(x[:1], batch.y[:1])
    save_trace(single, undefended_view(task, *initial(task, 0), first), task, {})
    write_tree(known, {"x": first.x, "y": first.y})
    one = replay(Sources(single, tmp_path, truth=known), "label", [], 0)
    assert one.labels is not None and one.labels.accuracy == 1 and not one.labels.told
    assert "--truth" in replay(Sources(single, tmp_path), "label", [], 0).lines()[-1]


def test_rob_is_replayed_where_the_user_vouches_for_its_model(tmp_path: Path) -> None:
    task, x = (
        Task("prunella.attacks.rob:cnn", (1, 28, 28), 10),
        torch.rand(1, 1, 28, 28, generator=stream(0, purpose="x")) / 4,
    )
    view = undefended_view(task, *initial(task, 0), PrivateBatch(x, torch.tensor([1])))
    save_trace(tmp_path / "rob.safetensors", view, task, {})
    found = replay(Sources(tmp_path / "rob.safetensors", tmp_path, task.model), "rob", [], 0)
    torch.testing.assert_close(found.answer.x, x, rtol=1e-3, atol=1e-3)
    with pytest.raises(AttackError, match="pass its task"):
        replay(Sources(tmp_path / "rob.safetensors", tmp_path), "rob", [], 0)


@dataclass(frozen=True)
class Learning(Ig):
    iterations: int = 2


def learn(view: ServerView, task: Task, settings: Any, generator: Any, shadow: Any = None) -> Reconstruction:
    """An attack that answers white where it was given a shadow that can play."""
    told = shadow is not None and shadow.send(shadow.public.take(torch.arange(2)), 0).steps == view.steps
    return Reconstruction(torch.full((1, 1, 8, 8), float(told)), None, 1.0, 1)


LEARNING = Attack(Learning, learn, "learns")


def test_an_attack_that_learns_gets_the_run_s_shadow_where_the_trace_lies_in_its_directory(tmp_path: Path) -> None:
    task = Task("cnn", (1, 8, 8), 10)
    batch = PrivateBatch(torch.rand(1, 1, 8, 8), torch.tensor([1]))
    view = undefended_view(task, *initial(task, 0), batch)
    trace = tmp_path / "traces" / "round-000001-client-0" / "view.safetensors"
    name = f"{__name__}:LEARNING"

    def white(defenses: tuple[str, ...]) -> bool:
        save_trace(trace, dataclasses.replace(view, defenses=defenses), task, {"round": 1, "kind": "client"})
        return bool(replay(Sources(trace, tmp_path), name, [], 0).answer.x.all())

    assert not white(("none",))
    pool = load_pool(task, load_test("digits", None), 0)
    write_public(tmp_path / "traces", *reversed(pool), {"strategy": "fedavg", "defenses": "none"})
    assert white(("none",)) and not white(("os:system",))  # of which a file could name any
