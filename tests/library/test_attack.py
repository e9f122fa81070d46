"""An attack by one call is the attack of the engine; its answer shows itself; unknown settings name the nearest."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.attacks import ATTACKS
from prunella.attacks.ig import Ig
from prunella.attacks.trace import load_trace, save_trace
from prunella.core.errors import AttackError, ConfigError
from prunella.core.randomness import stream
from prunella.library.attack import attack, settings_for
from prunella.library.view import View, view
from prunella.tasks.task import Task, initial
from tests.library.test_view import X, Y, net


@pytest.fixture
def seen() -> View:
    model = net()
    cross_entropy(model(X[:1]), Y[:1]).backward()
    return view(model, batch=1, labels=Y[:1])


def test_it_is_the_engine_s_attack_and_improves_with_time(seen: View) -> None:
    few, again = (attack(seen, "ig", iterations=3, seed=5, device="cpu") for _ in range(2))
    known = ATTACKS["ig"].reconstruct(seen.seen, seen.task, Ig(iterations=3), stream(5, purpose="replay"))
    assert few.images is not None and torch.equal(few.images, known.x) and few.objective == known.objective
    assert again.images is not None and torch.equal(few.images, again.images)
    many = attack(seen, "ig", iterations=60, device="cpu")
    assert many.images is not None and many.objective < few.objective
    assert (many.images - X[:1]).square().mean() < (few.images - X[:1]).square().mean() / 2
    assert many.labels is not None and many.labels.tolist() == [3]


def test_the_answer_shows_and_saves_itself(seen: View, tmp_path: Path) -> None:
    lines: list[str] = []
    found = attack(seen, "ig", iterations=2, progress=lines.append)
    assert found.images is not None and lines == []  # it was over before the first line was due
    assert "1 image of (1, 8, 8), labels [3]" in repr(found) and "objective" in repr(found)
    shown = found._repr_png_()
    assert shown is not None and Image.open(io.BytesIO(shown)).size[0] >= 128
    assert "data:image/png;base64," in found._repr_html_()
    assert found.save(tmp_path / "found.png").read_bytes() == shown
    assert torch.equal(load_file(found.save(tmp_path / "found.safetensors"))["x"], found.images)
    with pytest.raises(ConfigError, match=r"\.png"):
        found.save(tmp_path / "found.jpg")


def test_labels_alone_have_no_picture(seen: View) -> None:
    found = attack(View(seen.seen, seen.task), "label")
    assert found.images is None and found._repr_png_() is None and "<img" not in found._repr_html_()


def test_a_trace_is_a_view_as_it_is_loaded(tmp_path: Path) -> None:
    task = Task("cnn", (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    module: nn.Module = task.build()
    module.load_state_dict({**params, **buffers})
    cross_entropy(module(X[:1]), Y[:1]).backward()
    mine = view(module, batch=1, shape=(1, 8, 8))
    save_trace(tmp_path / "t.safetensors", mine.seen, task, {})
    (tmp_path / "t").mkdir()
    save_trace(tmp_path / "t" / "view.safetensors", mine.seen, task, {})  # as an audit's folder has it
    given = (mine, *(load_trace(path) for path in (tmp_path / "t.safetensors", str(tmp_path / "t"))))
    same = [attack(each, "ig", iterations=2).images for each in given]
    assert (
        same[0] is not None and same[1] is not None and torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])
    )


def test_unknown_names_and_settings_name_the_nearest(seen: View) -> None:
    assert settings_for("ig", {"iterations": 7, "max_images": 3}) == Ig(iterations=7, max_images=3)
    with pytest.raises(ConfigError, match="did you mean 'ig.iterations'"):
        attack(seen, "ig", iteration=3)
    with pytest.raises(ConfigError, match="did you mean 'sgi'"):
        attack(seen, "sgii")
    with pytest.raises(AttackError, match="prior"):
        attack(seen, "ggl")
