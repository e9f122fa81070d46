"""Masks of whole filters make a network smaller that computes the same; Torch-Pruning runs where it is installed."""

import json
from typing import Any

import pytest
import torch

from prunella.benchmarks.speed import smaller
from prunella.tasks.task import Task

TASK = Task("vgg-4", (3, 32, 32), 10)
OPTIONS = type("Options", (), {"model": "vgg-4", "rates": "0.5", "repeat": 1})


def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(smaller, "BATCH", 2)
    threads = torch.get_num_threads()
    result = smaller.compare(OPTIONS)
    torch.set_num_threads(threads)
    return json.loads(json.dumps(result))


def test_filters_go_and_weights_stay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(smaller, "importable", lambda packages: set())
    result = found(monkeypatch)
    arms = result["arms"]
    dense, filters = arms["dense"], arms["filters, by layer 0.5"]
    assert set(arms) == {"dense", "weights 0.5", "filters, by layer 0.5", "filters, global 0.5"}
    assert arms["weights 0.5"]["parameters"] == dense["parameters"] and arms["weights 0.5"]["flops"] == dense["flops"]
    assert filters["parameters"] < 0.6 * dense["parameters"] and filters["flops"] < 0.6 * dense["flops"]
    assert all(row["apart"] is None or row["apart"] < 1e-5 for row in arms.values()) and filters["apart"] is not None
    smaller.show(result)
    assert "filters" in capsys.readouterr().out


def test_flops_are_counted_as_two_for_each_weight_and_place() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.Flatten(), torch.nn.Linear(16, 5))
    assert smaller.flops(module, (3, 4, 4)) == 2 * (4 * 3 * 9 * 4 + 16 * 5)


def test_the_public_library_cuts_about_as_much_and_keeps_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_pruning")
    arms = found(monkeypatch)["arms"]
    assert 0.4 < arms["torch-pruning 0.5"]["parameters"] / arms["dense"]["parameters"] < 0.65
    assert smaller._peer(TASK, 0.5)(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
