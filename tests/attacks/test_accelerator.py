"""What a machine without an accelerator can check of the engine on one: devices, and bfloat16's rounding.

Fake tensors (the fixture ``fake``) have a device and a shape and no values.
"""

import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks import ATTACKS
from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import dummy_gradient, target_of
from prunella.attacks.engine.objectives import flatten
from prunella.attacks.score.control import undefended_view
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task, initial

CUDA = torch.device("cuda", 0)


def seen(task: Task, images: int) -> ServerView:
    params, buffers = initial(task, seed=0)
    training = {"num_examples": images, "batch_size": images, "steps": 1, "learning_rate": 0.1}
    return ServerView(params, dict(params), buffers=buffers, received_buffers=dict(buffers), **training)


@pytest.mark.parametrize(
    ("model", "name"),
    [("cnn", name) for name in ("dlg", "idlg", "ig", "sgi", "gradinversion")]
    + [(model, name) for model in ("lenet-zhu", "vgg-4") for name in ("ig", "gradinversion")],  # the two engines
)
def test_attacks_stay_on_the_view_s_device(fake: None, name: str, model: str) -> None:
    task = Task(model, (3, 32, 32), 10)
    settings = dataclasses.replace(ATTACKS[name].settings(), iterations=2, restarts=2, labels_tried=2)
    found = ATTACKS[name].reconstruct(seen(task, 1).on(CUDA), task, settings, torch.Generator())
    assert found.x.device == CUDA and found.y is not None and found.y.device == CUDA
    assert found.x.shape == (1, 3, 32, 32)


@pytest.mark.parametrize("model", ["resnet10", "conv-2"])
def test_batches_with_labels_of_their_own_stay_there_too(fake: None, model: str) -> None:
    task = Task(model, (3, 32, 32), 10)
    view = dataclasses.replace(seen(task, 2), steps=2, num_examples=4, momentum=0.9)
    settings = Inversion(iterations=2, labels="optimise", tv=0.1)
    assert reconstruct(view.on(CUDA), task, settings, torch.Generator()).x.device == CUDA


def test_two_devices_raise_here_as_they_would_there(fake: None) -> None:
    """The positive control: the same attack on a view of which one part was left behind."""
    task = Task("cnn", (3, 32, 32), 10)
    torn = dataclasses.replace(seen(task, 1).on(CUDA), labels=torch.tensor([1]))
    with pytest.raises(RuntimeError, match="device"):
        reconstruct(torn, task, Inversion(iterations=1), torch.Generator())


class Untraced(nn.Module):
    """Its engine is autograd: tracing meets a branch on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) if float(x.sum()) > -1 else self.layers(-x)


@pytest.mark.parametrize("traced", [True, False], ids=["by hand", "autograd"])
def test_bfloat16_rounds_the_same_gradient(traced: bool, batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.attacks.engine.layer_rules._SMALL", 0)  # the library's convolutions, as on a GPU
    module = Untraced() if not traced else Untraced().layers
    truth: PrivateBatch = batch(0, 1)
    view = undefended_view(Task("cnn", (1, 8, 8), 10), *initial(Task("cnn", (1, 8, 8), 10), 0), truth)
    named = {n: p.detach() for n, p in module.named_parameters()}
    view = dataclasses.replace(view, params=named, update={n: torch.ones_like(p) for n, p in named.items()}, buffers={})
    exact, rounded = (target_of(view, module, False, 16, bf16) for bf16 in (False, True))
    assert (exact.network is not None) is traced
    x = torch.rand((1, 1, 8, 8), generator=stream(0, purpose="x"))
    (plain, back), (near, near_back) = (linearised(t, x, truth.y) for t in (exact, rounded))
    torch.testing.assert_close(plain, flatten(dummy_gradient(exact, x, truth.y)).detach(), rtol=1e-4, atol=1e-6)
    slope = torch.randn(plain.shape, generator=stream(1, purpose="x"))
    for one, two in ((plain, near), (back(slope)[0], near_back(slope)[0])):
        error = float((one - two).norm() / one.norm())
        assert two.dtype == torch.float32 and 1e-5 < error < 2e-2


def test_a_digit_is_rebuilt_in_bfloat16(view, task, batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.attacks.engine.layer_rules._SMALL", 0)
    monkeypatch.setattr("prunella.attacks.engine.folded._DIRECT", 0)
    truth = batch(0, 1)
    errors = {}
    for bf16 in (False, True):
        found = reconstruct(view, task, Inversion(iterations=150, bf16=bf16), stream(0, purpose="attack"))
        errors[bf16] = float((found.x - truth.x).square().mean())
    assert errors[True] < 1e-2 and errors[True] != errors[False]  # 20 dB
