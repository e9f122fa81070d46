"""Masks of whole filters make a network smaller that computes the same; Torch-Pruning runs where it is installed."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from prunella.benchmarks.speed import smaller
from prunella.core.randomness import stream
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task

TASK = Task("resnet10", (1, 8, 8), 10)
OPTIONS = SimpleNamespace(model="resnet10", dataset="digits", data="", size=8, flops="0.4", images=320, epochs=2.0,
                          tune=1.0, seeds=1, repeat=1, threads=1, tested=0)  # fmt: skip


def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(smaller, "BATCH", 2)
    threads = torch.get_num_threads()
    result = smaller.compare(OPTIONS)
    torch.set_num_threads(threads)
    return json.loads(json.dumps(result))


def test_filters_go_to_the_flops_that_are_asked_and_weights_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smaller, "importable", lambda packages: set())
    result = found(monkeypatch)
    arms = {name: row["seeds"][0] for name, row in result["arms"].items()}
    dense, weights = arms["dense"], arms["weights 0.4"]
    assert set(arms) == {"dense", "weights 0.4", "filters, by layer 0.4", "filters, global 0.4"}
    assert weights["parameters"] == dense["parameters"] and weights["flops"] == dense["flops"]
    for name in ("filters, by layer 0.4", "filters, global 0.4"):
        assert 0.38 * dense["flops"] < arms[name]["flops"] <= 0.4 * dense["flops"]
        assert arms[name]["apart"] < 1e-5 and arms[name]["accuracy"] > 0.3  # a guess has 0.1
    assert dense["accuracy"] > 0.6
    smaller.show(result)
    assert "filters" in capsys.readouterr().out


def test_flops_are_counted_as_two_for_each_weight_and_place() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.Flatten(), torch.nn.Linear(16, 5))
    assert smaller.flops(module, (3, 4, 4)) == 2 * (4 * 3 * 9 * 4 + 16 * 5)


def test_the_rate_is_the_one_whose_flops_come_nearest_from_below() -> None:
    def cut(rate: float) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(1, max(1, round(1000 * (1 - rate))), bias=False))

    rate, module = smaller.at_flops(cut, 2 * 420, (1, 1, 1))
    assert rate == pytest.approx(0.58, abs=1 / 256) and 416 <= module[1].out_features <= 420


def test_training_is_the_plain_loop_and_depends_on_the_seed_alone() -> None:
    examples = Examples(torch.rand(40, 1, 1, 3, generator=stream(0, purpose="x")), torch.arange(40) % 2)

    def trained(seed: int) -> torch.Tensor:
        module = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
        nn.init.ones_(module[1].weight), nn.init.zeros_(module[1].bias)
        smaller.train(module, examples, 0.8, seed)
        return module[1].weight.detach()

    assert torch.equal(trained(1), trained(1)) and not torch.equal(trained(1), trained(2))
    order = torch.randperm(40, generator=stream(1, purpose="smaller"))[:32]  # 0.8 of 40 in one step
    weight = torch.ones(2, 3, requires_grad=True)
    loss = nn.functional.cross_entropy(examples.x[order].flatten(1) @ weight.T, examples.y[order])
    (slope,) = torch.autograd.grad(loss, weight)
    assert torch.allclose(trained(1), weight - smaller.RATE * slope, atol=1e-6)


def test_the_public_library_cuts_to_the_same_flops_and_keeps_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_pruning")
    arms = {name: row["seeds"][0] for name, row in found(monkeypatch)["arms"].items()}
    for name in ("torch-pruning, by layer 0.4", "torch-pruning, global 0.4"):
        assert 0.35 < arms[name]["flops"] / arms["dense"]["flops"] <= 0.4
    assert smaller._peer(TASK, "layer", TASK.build(), 0.5)(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
