"""``prunella prior``: what it learns from, and that the attack can use what it wrote."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from prunella.attacks import ggl, rog
from prunella.deploy.cli import main as cli
from prunella.deploy.errors import UsageError
from prunella.deploy.tools.prior import learn, prior, public_images
from prunella.server.audit.canary import canary_count, load_pool
from prunella.tasks.data import load_test
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task


def test_a_run_s_canaries_are_not_learnt_from() -> None:
    public, test = public_images("digits", "test", None, 7), load_test("digits", None)
    canaries = load_pool(Task("cnn", (1, 8, 8), 10), test, 7)[0].x
    assert len(public.y) == len(test.y) - canary_count(len(test.y))
    same = (public.x[:, None] == canaries[None]).flatten(2).all(2)
    every = torch.cat([public.x, canaries]).flatten(1).sort(0).values
    assert torch.equal(every, test.x.flatten(1).sort(0).values) and int(same.sum()) <= 2  # digits that look alike


@pytest.mark.parametrize("kind", ["ggl", "rog"])
def test_what_it_writes_is_used_and_beats_what_it_started_from(kind: str, tmp_path: Path) -> None:
    public = public_images("digits", "train", None, 0)
    few, fewer = (Examples(public.x[:count], public.y[:count]) for count in (200, 40))
    done = learn(kind, few, 10, tmp_path / "p.safetensors", 0)  # type: ignore[arg-type]
    assert done.error < done.without and done.images == 180
    assert f"{kind}.prior=" in done.lines()[-1]
    same, again = (learn(kind, fewer, 10, tmp_path / name, 0) for name in "qr")  # type: ignore[arg-type]
    assert same.error == again.error != done.error
    ggl.load(str(done.file), (1, 8, 8), 10) if kind == "ggl" else rog.load(str(done.file), (1, 8, 8))


def test_images_of_another_dataset_take_its_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr("prunella.deploy.tools.prior.learn", lambda kind, public, classes, out, seed: seen.append(
        (*public.x.shape[1:], classes)))  # fmt: skip
    prior("ggl", "digits", tmp_path / "p", split="test", data=None, like="mnist", seed=0)
    assert seen == [(1, 28, 28, 10)]


def test_too_few_images_and_a_place_that_takes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.deploy.tools.prior.load_test", lambda dataset, data: None)
    with pytest.raises(UsageError, match="--split train"):
        public_images("femnist", "test", None, 0)
    result = CliRunner().invoke(cli.app, ["prior", "ggl", "--dataset", "femnist"])
    assert result.exit_code == 2
    few = Examples(torch.rand(13, 1, 8, 8), torch.zeros(13, dtype=torch.int64))
    monkeypatch.setattr("prunella.deploy.tools.prior.load_test", lambda dataset, data: few)
    with pytest.raises(UsageError, match="only 7 images to learn from"):
        public_images("digits", "test", None, 0)


def test_where_nothing_can_be_read_or_written_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.deploy.tools.prior.learn", lambda *_: pytest.fail("training takes minutes"))
    file = tmp_path / "file"
    file.touch()
    for out, why in (
        (tmp_path, "it is a folder: name a file in it"),
        (file / "p", f"{file} is a file: choose another"),
    ):
        with pytest.raises(UsageError, match=why):
            prior("ggl", "digits", out, split="test", data=None, like="", seed=0)
    with pytest.raises(UsageError, match="no directory .*nowhere"):
        prior("ggl", "digits", tmp_path / "p", split="test", data=tmp_path / "nowhere", like="", seed=0)
