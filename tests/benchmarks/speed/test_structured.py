"""The benchmark compares what it says: half of the filters, as many single weights, one update; no time is."""

import json
import sys
from argparse import ArgumentTypeError
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prunella.benchmarks.speed import structured as bench
from prunella.core.trees import count
from prunella.pruning.channels import channel_groups
from prunella.pruning.compact import living
from prunella.tasks.task import Task, prunable

OPTIONS: dict[str, Any] = {"data": "", "models": "cnn", "steps": 1, "batch": 2, "repeat": 1, "rounds": 0, "seeds": 1,
                           "clients": 2, "rate": 0.05, "horizon": 0, "ramp": 0, "defenses": "none", "jobs": 1,
                           "filter_rounds": 0,
                           "arms": "dense,weights,filters", "device": "cpu"}  # fmt: skip


def test_half_of_the_filters_go_and_as_many_single_weights() -> None:
    rate, arms, idle = bench.arms("resnet10")
    masks = {name: arm.received.mask for name, arm in arms.items()}
    module = Task("resnet10", bench.SHAPE, 10).build()
    alive = torch.cat(living(channel_groups(module, bench.SHAPE), masks[bench.FILTERS]))
    assert 0.48 < float(alive.double().mean()) <= 0.5 and 0.7 < rate < 0.76  # in and out: a quarter of most weights
    assert masks[bench.FILTERS] is masks[bench.MASKED] and count(masks[bench.DENSE]) == 4_903_242
    kept = {name: sum(int(mask[n].sum()) for n in prunable(module)) for name, mask in masks.items()}
    assert abs(kept[bench.WEIGHTS] - kept[bench.FILTERS]) <= 1
    dead = sum(group.units * len(group.carriers) for group in channel_groups(module, bench.SHAPE)) / 2
    assert idle == pytest.approx(4 * 4 * dead, rel=0.05)  # weight, bias, mean and variance of dead norms, four bytes


def test_the_command_prints_one_json_object_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    result = json.loads(json.dumps(bench.compare(SimpleNamespace(**OPTIONS))))
    torch.set_num_threads(threads)
    found = result["models"]["cnn"]
    assert set(found["arms"]) == {"dense", "weights", "filters, masked", "filters"} and found["apart"] < 1e-4
    rows = found["arms"]
    assert rows["filters"]["up"] == pytest.approx(rows["filters, masked"]["up"], rel=0.01)
    assert rows["filters"]["down"] == rows["filters, masked"]["down"] < 0.6 * rows["dense"]["down"]
    assert rows["dense"]["ratio"] == rows["dense"]["up ratio"] == 1 and result["images"] == "synthetic"
    bench.show(result)
    assert "filters, masked" in capsys.readouterr().out


def test_a_chain_is_measured_or_refused_where_it_keeps_the_large_network() -> None:
    images, _ = bench.examples(None, 0)
    rows = bench.measure("cnn", images, SimpleNamespace(**{**OPTIONS, "defenses": "priprune"}))["arms"]
    assert rows["filters"]["up"] < rows["dense"]["up"] < 0.95 * rows["dense"]["down"]  # some of it is withheld
    with pytest.raises(RuntimeError, match="the small network was not trained where it should be"):
        bench.measure("cnn", images, SimpleNamespace(**{**OPTIONS, "defenses": "gaussian"}))


def test_it_stops_where_the_small_network_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "half_of_filters", lambda params, *_: bench.full_mask(params))
    images, _ = bench.examples(None, 0)
    with pytest.raises(RuntimeError, match="the small network was not trained where it should be"):
        bench.measure("cnn", images, SimpleNamespace(**OPTIONS))


def test_federations_learn_with_either_mask(capsys: pytest.CaptureFixture[str]) -> None:
    options = SimpleNamespace(**{**OPTIONS, "rounds": 6, "clients": 3, "jobs": 2, "steps": 8, "batch": 16})
    found = bench.federations({"cnn": 0.5}, options)["cnn"]
    assert set(found) == {"dense", "weights", "filters"} and all(
        0.4 < one["accuracy"] <= 1 for (one,) in found.values()
    )
    dense, weights, filters = (found[arm][0] for arm in ("dense", "weights", "filters"))
    for pruned in (weights, filters):
        assert pruned["down"] < 0.6 * dense["down"] and pruned["up"] < 0.6 * dense["up"]
    assert dense["down"] > 3 * 4 * 8000 and dense["seconds"] > 0  # one round's, of three clients, and not all rounds'
    bench.show({"models": {}, "federations": {"cnn": found}})
    assert "s a round over dense" in capsys.readouterr().out


def test_filters_may_train_for_more_rounds_with_their_ramp_and_horizon_as_much_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[Any]()
    run = bench.run_in_process
    monkeypatch.setattr(bench, "run_in_process", lambda *about, **own: (asked.append(own), run(*about, **own))[1])
    threads = torch.get_num_threads()
    options = SimpleNamespace(**{**OPTIONS, "rounds": 4, "ramp": 2, "horizon": 4, "filter_rounds": 6})
    found = {arm: bench.federation("cnn", 0.5, options, 0, arm) for arm in ("dense", "weights", "filters")}
    torch.set_num_threads(threads)
    lengths = [(own["rounds"], own["learning_rate_horizon"], own.get("magnitude__ramp_rounds")) for own in asked]
    assert lengths == [(4, 4, None), (4, 4, 2), (6, 6, 3)]
    dense, filters = found["dense"], found["filters"]
    assert dense["bytes total"] == pytest.approx(4 * (dense["down"] + dense["up"]), rel=0.1)
    assert filters["processor total"] == pytest.approx(6 * filters["processor"])
    with pytest.raises(ArgumentTypeError, match="--filter-rounds must be 0 or at least --rounds"):
        bench.compare(SimpleNamespace(**{**OPTIONS, "rounds": 4, "filter_rounds": 3}))
    with pytest.raises(ArgumentTypeError, match="an arm that --arms leaves out"):
        bench.compare(SimpleNamespace(**{**OPTIONS, "rounds": 4, "filter_rounds": 5, "arms": "dense,weights"}))


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["structured", "--steps", "0"])
    asked = {"--steps": 8, "--batch": 16, "--repeat": 9, "--jobs": 1, "--rounds": 0}
    with pytest.raises(SystemExit):
        bench.command(bench.__doc__, bench.compare, bench.show, asked)
    with pytest.raises(ArgumentTypeError, match="or 0 with --rounds"):
        bench.compare(SimpleNamespace(**{**OPTIONS, "repeat": 0}))


def test_federations_alone_are_measured_where_nothing_is_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "federations", lambda rates, options: {})
    threads = torch.get_num_threads()
    result = bench.compare(SimpleNamespace(**{**OPTIONS, "repeat": 0, "rounds": 2}))
    torch.set_num_threads(threads)
    assert list(result["models"]["cnn"]) == ["rate"]
    bench.show(result)
    assert not capsys.readouterr().out


def test_accuracy_is_the_mean_of_the_last_evaluations_and_an_arm_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single round's accuracy moves by points. In one process, so that the pool reads what is set here."""
    monkeypatch.setattr(bench, "accuracies", lambda done: {2: 0.9, 4: 0.1, 6: 0.4, 8: 0.7})
    threads = torch.get_num_threads()
    options = SimpleNamespace(**{**OPTIONS, "rounds": 2, "arms": "dense,filters"})
    assert bench.federation("cnn", 0.5, options, 0, "dense")["accuracy"] == pytest.approx(0.4)
    torch.set_num_threads(threads)
    assert set(bench.federations({"cnn": 0.5}, options)["cnn"]) == {"dense", "filters"}
    with pytest.raises(ArgumentTypeError, match="--arms: dense"):
        bench.compare(SimpleNamespace(**{**OPTIONS, "arms": "filters"}))
    with pytest.raises(ArgumentTypeError, match="--horizon must be 0 or at least --rounds"):
        bench.compare(SimpleNamespace(**{**OPTIONS, "rounds": 4, "horizon": 3}))
    with pytest.raises(ArgumentTypeError, match="--ramp must lie between"):
        bench.compare(SimpleNamespace(**{**OPTIONS, "rounds": 4, "ramp": 4}))
