"""The views that both attacks get are what a client's plain training sends, and the best arm is told from the worst."""

import math
from pathlib import Path

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.benchmarks.speed import quality as bench
from prunella.benchmarks.speed.quality import RATE, SETTINGS, UpdateSetting, ahead, attacked

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("name", ["one-image", "batch-norm", "fedavg-4x4"])
def test_the_update_is_that_of_plain_training(name: str) -> None:
    """Against steps written out here; a network with batch norm trains in training mode."""
    setting = SETTINGS[name]
    task, view, truth = attacked(setting, 1, DATA)
    module = task.build().train()
    weights = {n: t.clone().requires_grad_() for n, t in view.params.items()}
    for x, y in zip(truth.x.split(setting.batch), truth.y.split(setting.batch), strict=True):
        state = {**weights, **{n: b.clone() for n, b in view.buffers.items()}}
        loss = cross_entropy(functional_call(module, state, (x,)), y)
        gradient = torch.autograd.grad(loss, list(weights.values()))
        pairs = zip(weights.items(), gradient, strict=True)
        weights = {n: (t - RATE * g).detach().requires_grad_() for (n, t), g in pairs}
    for n, sent in view.update.items():
        torch.testing.assert_close(sent, (weights[n] - view.params[n]).detach(), rtol=1e-3, atol=1e-6)
    assert (
        view.labels is not None and torch.equal(view.labels, truth.y) and len(truth.y) == setting.steps * setting.batch
    )


def test_an_arm_that_rebuilds_is_ahead_of_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(view: object, task: object, iterations: int) -> tuple[float, torch.Tensor]:
        return 0.0, torch.full((1, 3, 32, 32), 0.5)

    monkeypatch.setattr(bench, "arms", lambda data: {"breaching": nothing, "sgi": bench.engine(bench.Sgi())})
    found = bench.compare(UpdateSetting("cnn", 1, 1), 1, 100, DATA)["psnr"]
    assert found["sgi"][0] > found["breaching"][0] + 3


def test_the_interval_is_over_updates() -> None:
    low, high = (float(bound) for bound in ahead([4.0, 2.0, 3.0], [1.0, 1.0, 1.0])[6:-1].split(","))
    assert 1 <= low < 2 < high <= 3
    assert not math.isnan(low + high)
