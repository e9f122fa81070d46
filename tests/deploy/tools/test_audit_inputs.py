"""Attacks that must know more than a view get it from files of the user's, through the command."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.membership import compare
from prunella.attacks.trace import save_trace
from prunella.core.errors import AttackError
from prunella.core.files import write_tree
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import subtract
from prunella.core.types import PrivateBatch, ServerView
from prunella.deploy.cli import main as cli
from prunella.deploy.errors import UsageError
from prunella.deploy.tools.audit_inputs import attack_keywords, membership_examples, read_tensors
from prunella.privacy.channel import NaturalChannel, natural_channel
from prunella.tasks.data import load_test
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step


def audit(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli.app, ["audit", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def figure(output: str, name: str) -> float:
    return float(next(line for line in output.splitlines() if line.startswith(name)).split()[1].rstrip(","))


@pytest.fixture
def digits() -> PrivateBatch:
    found = load_test("digits", None)
    assert found is not None
    return PrivateBatch(found.x, found.y)


def test_membership_in_the_weights_a_trace_ends_with(digits: PrivateBatch, tmp_path: Path) -> None:
    """Overfit on 60 examples whose labels are noise: the weights know them, the weights they began from do not."""
    task = Task("cnn", (1, 8, 8), 10)
    start, buffers = initial(task, 0)
    labels = torch.randint(10, (240,), generator=stream(0, purpose="labels"))
    end, x, module = start, digits.x[:240], task.build()
    for _ in range(150):
        _, gradient, _ = loss_and_gradient(module, end, buffers, x[:60], labels[:60])
        end, _ = sgd_step(end, gradient, {}, Sgd(0.3), None)
    save_trace(tmp_path / "end.safetensors", ServerView(start, subtract(end, start), num_examples=60), task, {})
    save_trace(tmp_path / "start.safetensors", ServerView(start, subtract(start, start), num_examples=60), task, {})
    for name, rows in (("known", [*range(30), *range(60, 150)]), ("asked", [*range(30, 60), *range(150, 240)])):
        member = torch.tensor([row < 60 for row in rows])
        write_tree(tmp_path / f"{name}.safetensors", {"x": x[rows], "y": labels[rows], "member": member})
    files = ["--attack", "mia", "--known", tmp_path / "known.safetensors", "--truth", tmp_path / "asked.safetensors"]

    def outranks(output: str) -> float:
        return float(output.split("that was not in ")[1].split("\u202f%")[0])

    known = audit(tmp_path / "end.safetensors", *files)
    assert outranks(known) > 85 and "members told from outsiders better than by chance" in known
    assert "0.1\u202f% of false alarms cannot be resolved with at most 90 outsiders" in known
    for option, value in (("--earlier", tmp_path / "start.safetensors"), ("--keep", tmp_path), ("--public", "digits")):
        result = CliRunner().invoke(
            cli.app, ["audit", *map(str, (tmp_path / "end.safetensors", *files, option, value))]
        )
        assert result.exit_code == 2 and option in result.output
    unknown = audit(tmp_path / "start.safetensors", *files)
    assert abs(outranks(unknown) - 50) < 20 and "members not told" in unknown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (255 * x, y), "pixels from 0 to 255"),
        (lambda x, y: (x, y + 10), "classes from 0 to 9"),
        (lambda x, y: (x, y - 10), "classes from 0 to 9"),
        (lambda x, y: (x, y + 0.5), "classes from 0 to 9"),
        (lambda x, y: (x, torch.eye(10)[y]), r"labels y of shape \[4, 10\] for 4 images: .*argmax"),
        (lambda x, y: (x[:, :, :4], y), r"images x of shape \[4, 1, 4, 8\], and the model takes \[N, 1, 8, 8\]"),
        (lambda x, y: (x * float("nan"), y), "pixels from nan"),
    ],
)
def test_examples_that_the_model_never_saw_in_that_form_are_refused(
    change: Any, words: str, digits: PrivateBatch, tmp_path: Path
) -> None:
    x, y = change(digits.x[:4], digits.y[:4])
    path, task = tmp_path / "asked.safetensors", Task("cnn", (1, 8, 8), 10)
    write_tree(path, {"x": x.contiguous(), "y": y, "member": torch.ones(4, dtype=torch.bool)})
    with pytest.raises(UsageError, match=words):
        membership_examples(path, "--truth", task)


def test_too_few_examples_judge_no_membership() -> None:
    with pytest.raises(AttackError, match="cannot be judged"):
        compare(torch.ones(1), torch.zeros(1))


def test_a_channel_s_noise_comes_off_with_what_is_known_of_it(digits: PrivateBatch, tmp_path: Path) -> None:
    task, truth = Task("cnn6", (1, 8, 8), 10), PrivateBatch(digits.x[:1], digits.y[:1])
    channel = natural_channel(NaturalChannel(kappa=10.0))
    state = channel.fit(digits.x[1:], rehearsal(0, purpose="fit"))
    for turn in range(2):
        shown = channel.apply(truth.x, state, rehearsal(turn, purpose="noise"))
        view = undefended_view(task, *initial(task, 0), PrivateBatch(shown, truth.y))
        save_trace(tmp_path / f"{turn}.safetensors", view, task, {})
    variance = state["channel"]["variance"]
    write_tree(tmp_path / "known.safetensors", {"public": digits.x[1:], "noise": variance})
    write_tree(tmp_path / "truth.safetensors", {"x": truth.x, "y": truth.y})
    common = ["--truth", tmp_path / "truth.safetensors", "--out", tmp_path, tmp_path / "1.safetensors"]
    denoise = ["--attack", "denoise", "--known", tmp_path / "known.safetensors"]
    plain = figure(audit("--attack", "r-gap", *common), "mse")
    once = figure(audit(*denoise, *common), "mse")
    assert once < plain / 1.5
    assert figure(audit(*denoise, *common, "--earlier", tmp_path / "0.safetensors"), "mse") != once


def test_what_an_attack_cannot_use_or_lacks_is_said(tmp_path: Path) -> None:
    view = ServerView({}, {})
    for name, known, earlier, words in (
        ("sgi", None, [view], "--earlier is for unrolling"),
        ("sgi", tmp_path, [], "--known is for denoise"),
    ):
        with pytest.raises(UsageError, match=words):
            attack_keywords(name, known, earlier, ResumeStore())
    with pytest.raises(UsageError, match="no progress to save"):
        attack_keywords("r-gap", None, [], ResumeStore(tmp_path))
    assert attack_keywords("sgi", None, [], ResumeStore(tmp_path)) == {"resume": ResumeStore(tmp_path)}
    assert attack_keywords("unrolling", None, [view], ResumeStore()) == {"earlier": [view], "resume": ResumeStore()}
    (tmp_path / "garbage").write_bytes(b"\x80\x04.")
    for path, words in (("garbage", "not a safetensors file with the tensors x, y"), ("missing", "there is no file")):
        with pytest.raises(UsageError, match=words):
            read_tensors(tmp_path / path, ("x", "y"))
    with pytest.raises(UsageError, match="--known FILE"):
        membership_examples(None, "--known", Task("cnn", (1, 8, 8), 10))
    write_tree(tmp_path / "odd", {"x": torch.zeros(2, 1, 8, 8), "y": torch.zeros(2), "member": torch.ones(3)})
    with pytest.raises(UsageError, match="the same length"):
        membership_examples(tmp_path / "odd", "--known", Task("cnn", (1, 8, 8), 10))
