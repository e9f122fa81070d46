"""Clients of unequal strength under one global mask: whole rounds beside small networks in slow loops."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import prunella.client.app
import prunella.client.widths
from prunella.core.errors import ConfigError
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, intersect, same_trees
from prunella.pruning.widths import sub_mask
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import Federation, federate
from prunella.strategies.round.roster import read_hello
from prunella.tasks.task import Task, initial, prunable
from prunella.wire.records import from_coded, to_coded
from tests.client.test_app import model, send
from tests.local_grid import LocalGrid
from tests.pruning.test_widths import sliced
from tests.server.test_rounds import build, final
from tests.slow_rounds import record_batches, same_draws

TASK = Task("cnn", (1, 8, 8), 10)
STEP, WIDTHS = 0.1, {0: 0.25, 1: 0.5, 2: 1.0}


def went(folder: Path, widths: dict[int, float], tamper: Any = None, **overrides: Any) -> tuple[Federation, LocalGrid]:
    federation, raw = build(folder, **{"defenses": "none", "learning_rate": STEP, **overrides})
    grid = LocalGrid(prunella.client.app.app, 3, raw, folder / "nodes", tamper)
    for number, width in widths.items():
        grid.contexts[100 + number].node_config["width"] = width
    try:
        federate(federation, OrderedGrid(grid, 0.01))
    finally:
        federation.auditor.close()
    return federation, grid


def slow_small(params: Tree, held: Mask, batches: list[Any], pruned: Mask) -> Tree:
    """The really small network, trained by autograd and put back into the shapes of the large one."""
    module = TASK.build().train()
    small, alive = sliced(params, held), sliced(pruned, held)
    for batch in batches:
        leaves = {n: t.clone().requires_grad_() for n, t in small.items()}
        cross_entropy(functional_call(module, leaves, (batch.x,)), batch.y).backward()
        small = {n: ((t - STEP * t.grad) * alive[n]).detach() for n, t in leaves.items()}
    back = {}
    for name, tensor in params.items():
        whole = torch.zeros(tensor.numel())
        whole[held[name].flatten()] = small[name].flatten()
        back[name] = whole.reshape(tensor.shape)
    return back


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_whole_rounds_are_those_of_small_networks_averaged_over_their_holders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    drawn = record_batches(monkeypatch)
    federation, _ = went(tmp_path, WIDTHS, strategy="random", rate=rate, rounds=3)
    assert federation.strategy.stats.failures == {} and [one.client for one in drawn] == [0, 1, 2] * 3
    saved = final(tmp_path)
    held = {n: sub_mask(TASK.build(), TASK.shape, width) for n, width in WIDTHS.items()}
    params = apply_mask(initial(TASK, 0)[0], saved.mask)
    for clients in (drawn[at : at + 3] for at in range(0, 9, 3)):
        done = {one.client: slow_small(params, held[one.client], one.batches, saved.mask) for one in clients}
        after = {}
        for name, before in params.items():
            flat = before.double().flatten().tolist()
            for at in range(len(flat)):
                who = [one for one in clients if bool(held[one.client][name].flatten()[at])]
                total = sum(one.examples for one in who)
                told = [float(done[one.client][name].flatten()[at]) * one.examples for one in who]
                flat[at] = sum(told) / total
            after[name] = torch.tensor(flat, dtype=torch.float64).float().reshape(before.shape)
        params = apply_mask(after, saved.mask)
    assert all(torch.allclose(saved.tree[n], params[n], atol=1e-6) for n in params)


def test_width_1_is_plain_bit_for_bit_and_smaller_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_draws(monkeypatch)
    plain, _ = went(tmp_path / "plain", {}, strategy="random", rounds=2)
    whole, _ = went(tmp_path / "whole", dict.fromkeys(WIDTHS, 1.0), strategy="random", rounds=2)
    mixed, _ = went(tmp_path / "mixed", WIDTHS, strategy="random", rounds=2)
    a, b, c = (final(tmp_path / name).tree for name in ("plain", "whole", "mixed"))
    assert all(torch.equal(a[n], b[n]) for n in a) and not all(torch.equal(a[n], c[n]) for n in a)
    for way in ("up", "down"):
        assert mixed.counters[f"wire_bytes_total|{way}"] < 0.8 * plain.counters[f"wire_bytes_total|{way}"]
        assert whole.counters[f"wire_bytes_total|{way}"] == plain.counters[f"wire_bytes_total|{way}"]


@pytest.mark.parametrize("defenses", ["dgp", "priprune"])
def test_a_run_that_was_resumed_equals_one_that_was_not(tmp_path: Path, defenses: str) -> None:
    run = {"strategy": "magnitude", "defenses": defenses}
    went(tmp_path / "whole", WIDTHS, rounds=3, **run)
    for rounds in (1, 3):
        went(tmp_path / "parts", WIDTHS, rounds=rounds, resume=rounds > 1, **run)
    a, b = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert same_trees(a.mask, b.mask) and all(torch.equal(a.tree[n], b.tree[n]) for n in a.tree)


def test_a_client_is_sent_its_width_of_the_global_mask_and_reports_no_importance_beyond_it(tmp_path: Path) -> None:
    seen: list[Message] = []
    federation, grid = went(tmp_path, WIDTHS, lambda m: seen.append(m) or m, strategy="prunefl", rounds=1,
                            prunefl__adjust_interval=1)  # fmt: skip
    like = initial(TASK, 0)[0]
    held = sub_mask(TASK.build(), TASK.shape, 0.25)
    trains = [m for m in grid.sent if m.metadata.message_type == "train"]
    masks = {m.metadata.dst_node_id: from_coded(m.content["model"], like)[1] for m in trains}
    assert same_trees(masks[100], intersect(masks[102], held))
    (reply,) = [m for m in seen if m.metadata.src_node_id == 100 and m.has_content() and "update" in m.content]
    names = sorted(prunable(TASK.build()))
    told, _ = from_coded(reply.content["importance"], {n: like[n] for n in names})
    assert all(not bool(told[n][~held[n]].any()) for n in names) and any(bool(t.any()) for t in told.values())
    firsts = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "train.initial"]
    assert firsts == [100, 101, 102] and federation.strategy.stats.failures == {}, "only the whole client can make it"


def test_a_client_that_is_sent_more_than_its_width_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sub-models of width 0.5, and was sent more"):
        send(tmp_path, "train", model(), {"width": 0.5}, defenses="none")
    params, mask = initial(TASK, 0)[0], sub_mask(TASK.build(), TASK.shape, 0.5)
    content = model()
    content["model"] = to_coded(apply_mask(params, mask), mask)
    assert "update" in send(tmp_path, "train", content, {"width": 0.5}, defenses="none").content


def test_a_client_says_once_for_each_mask_that_it_trains_the_small_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, int]] = []
    monkeypatch.setattr(prunella.client.widths, "log", lambda level, text, kept, whole: said.append((kept, whole)))

    def trained(folder: str, round: int, width: float, **overrides: Any) -> None:
        params, mask = initial(TASK, 0)[0], sub_mask(TASK.build(), TASK.shape, width)
        content = model(round)
        content["model"] = to_coded(apply_mask(params, mask), mask)
        send(tmp_path / folder, "train", content, **{"strategy": "random", "defenses": "none", **overrides})

    for round, width in enumerate([0.5, 0.5, 0.25, 1.0], 1):
        trained("plain", round, width)
    sizes = [sum(int(m.sum()) for m in sub_mask(TASK.build(), TASK.shape, width).values()) for width in (0.5, 0.25)]
    assert said == [(kept, 21_882) for kept in sizes]
    for scheme in ("prunefl", "fedtiny"):  # whose server may be told the gradients of pruned weights in round 4
        trained(f"wanted-{scheme}", 4, 0.5, strategy=scheme)
    trained("watched", 1, 0.5, defenses="gaussian")  # draws for every coordinate
    assert len(said) == 2
    trained("unneeded", 1, 0.5, defenses="priprune")  # does without those of pruned rows and columns
    for scheme in ("prunefl", "fedtiny"):
        trained(f"unwanted-{scheme}", 3, 0.5, strategy=scheme)
    assert len(said) == 5


@pytest.mark.parametrize("defenses", ["none", "dgp"])
def test_a_federation_under_masks_of_filters_ends_as_that_of_dense_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_small: list[bool], defenses: str
) -> None:
    """Widths, batch norm's statistics, wire and server included; the first run's clients never train the small one."""
    run = {"strategy": "magnitude", "magnitude__granularity": "filter", "magnitude__ramp_rounds": 1, "rate": 0.6,
           "rounds": 2, "defenses": defenses, "momentum": 0.9, "weight_decay": 0.01}  # fmt: skip
    same_draws(monkeypatch)
    told = prunella.client.app.local_update
    small, _ = went(tmp_path / "small", WIDTHS, **run)
    monkeypatch.setattr(prunella.client.app, "local_update", lambda procedure, *rest: told(
        replace(procedure, shape=None), *rest))  # fmt: skip
    dense, _ = went(tmp_path / "dense", WIDTHS, **run)
    assert trained_small == [True, True, False, True, True, True] + [False] * 6  # the global mask comes after round 1
    a, b = final(tmp_path / "small"), final(tmp_path / "dense")
    assert same_trees(a.mask, b.mask) and all(torch.allclose(a.tree[n], b.tree[n], atol=1e-5) for n in a.tree)
    assert small.counters["wire_bytes_total|down"] == dense.counters["wire_bytes_total|down"]


@pytest.mark.parametrize("strategy", ["feddst", "lotteryfl", "sparsyfed", "fed-ltp-iterative"])
def test_a_width_needs_one_mask_for_all(tmp_path: Path, strategy: str) -> None:
    hello = RecordDict()
    with pytest.raises(ConfigError, match="where all share one mask"):
        send(tmp_path, "query.hello", hello, {"width": 0.5}, strategy=strategy)
    with pytest.raises(ConfigError, match="where all share one mask"):
        send(tmp_path, "query.hello", hello, {"width": 0.5}, strategy="random", defenses="adgp")
    summed = {"strategy": "random", "aggregation": "secure-sum", "audit_every": 0, "min_clients": 3}
    with pytest.raises(ConfigError, match="no secure-sum"):
        send(tmp_path, "query.hello", hello, {"width": 0.5}, **summed)
    with pytest.raises(ConfigError, match="no model with batch norm"):
        send(tmp_path, "query.hello", hello, {"width": 0.5}, strategy="random", model="resnet10")


@pytest.mark.parametrize("width", [0.0, 1.5, "half", True])
def test_a_width_that_is_none_is_refused(tmp_path: Path, width: object) -> None:
    with pytest.raises(ConfigError, match=r"width in the node configuration must be a number from 0.01 to 1"):
        send(tmp_path, "train", model(), {"width": width}, defenses="none")


@pytest.mark.parametrize(("stated", "read"), [(0.5, 0.5), (0.0, 1.0), (float("nan"), 1.0), ("half", 1.0)])
def test_a_width_that_a_server_cannot_use_is_the_whole(stated: object, read: float) -> None:
    reply = Message(RecordDict({"hello": ConfigRecord({"client": 1, "width": stated})}), dst_node_id=1,
                    message_type="query")  # fmt: skip
    assert read_hello(reply, 7).width == read


def test_everybody_narrow_leaves_the_rest_of_the_model_as_it_was(tmp_path: Path) -> None:
    went(tmp_path, dict.fromkeys(WIDTHS, 0.5), strategy="fedavg", rounds=2)
    params, held = initial(TASK, 0)[0], sub_mask(TASK.build(), TASK.shape, 0.5)
    saved = final(tmp_path)
    assert same_trees(saved.mask, full_mask(params))
    for name, tensor in params.items():
        assert torch.equal(saved.tree[name][~held[name]], tensor[~held[name]])
