"""What is told of a file is what its runtime answers: against the same numbers by hand, and with a wrong file."""

from pathlib import Path

import pytest
import torch

from prunella.deploy.errors import LaunchError
from prunella.deploy.tools.verified import Original, verified
from prunella.tasks.examples import Examples
from prunella.tasks.exported import write_program
from prunella.tasks.task import Task

TASK = Task("lenet-zhu", (1, 8, 8), 10)


def written(path: Path, module: torch.nn.Module) -> Path:
    write_program(path, TASK, module)
    return path


@torch.no_grad()
def test_difference_agreement_and_accuracy_are_those_of_the_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, other = TASK.build().eval(), TASK.build().eval()
    images, x = torch.rand(5, 1, 8, 8), torch.rand(21, 1, 8, 8)
    for parameter in other.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape))
    labels = module(x).argmax(1)
    labels[:3] = (labels[:3] + 1) % 10
    original = Original(images, module(images), Examples(x, labels), module(x))
    same = verified(written(tmp_path / "same.pt2", module), original, passes=5)
    assert same.difference < 1e-5 and same.agreement == 1 and same.accuracy == original.accuracy == 18 / 21
    assert 0 < same.cost["least"] <= same.cost["median"] <= same.cost["most"]
    assert same.cost["peak"] >= same.cost["runtime"] > 1e7 or same.cost["peak"] == 0
    wrong = verified(written(tmp_path / "other.pt2", other), original)
    expected, got = module(images), other(images)
    assert wrong.difference == pytest.approx(
        float((expected - got).abs().max() / expected.abs().max().clamp(min=1)), rel=1e-3
    )
    assert wrong.agreement == pytest.approx(float((other(x).argmax(1) == module(x).argmax(1)).double().mean()))
    assert wrong.accuracy == pytest.approx(float((other(x).argmax(1) == labels).double().mean()))
    assert "of 21 test images" in wrong.said(original) and "ms an image" in same.costs()


def test_a_file_that_cannot_be_run_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"nothing")
    with pytest.raises(LaunchError, match="model.pt2 cannot be run, so it was not written: [^\n]*$"):
        verified(path, Original(torch.rand(1, 1, 8, 8), torch.rand(1, 10)))
