"""The choice of the first mask: the statistics that are averaged, the loss that wins, the answers that are left out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord
from torch.nn.functional import cross_entropy

from prunella.core.trees import apply_mask, full_mask, map_trees, same_trees, scale
from prunella.pruning.fedtiny import candidate_masks
from prunella.tasks.statistics import batch_statistics
from prunella.tasks.task import Task, initial, prunable
from prunella.wire.records import from_coded, to_coded
from tests.slow_rounds import record_batches
from tests.strategies.test_fedtiny import RATE, build

NORMED = {"model": "resnet10", "fedtiny__candidates": 3, "fedtiny__selection_batches": 2}
TASK = Task("resnet10", (1, 8, 8), 10)


def asked(grid: Any, what: str) -> list[Message]:
    sent = [m for m in grid.sent if m.metadata.message_type == "train.select"]
    return [m for m in sent if m.content["config"]["asked"] == what]


def test_statistics_are_averaged_and_the_lowest_mean_loss_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = record_batches(monkeypatch)
    strategy, grid, arrays = build(tmp_path, **NORMED)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    params, buffers = initial(TASK, 0)
    pool, module = candidate_masks(params, prunable(TASK.build()), RATE, (3, 0.5), 0), TASK.build()
    first, second, losses = drawn[:3], drawn[3:6], []
    sent = asked(grid, "loss")[0].content
    for number, mask in enumerate(pool):
        pruned = apply_mask(params, mask)
        each = [batch_statistics(module, pruned, buffers, [b.x for b in one.batches]) for one in first]
        total = sum(one.examples for one in first)
        parts = [scale(s, one.examples / total) for s, one in zip(each, first, strict=True)]
        mean = map_trees(lambda *t: sum(t), *parts)
        told, _ = from_coded(sent[f"statistics-{number}"], buffers)
        assert all(torch.allclose(told[n], mean[n], atol=1e-5) for n in buffers)
        assert any(not torch.allclose(told[n], buffers[n], atol=1e-2) for n in buffers)
        state = {**pruned, **told}
        module.load_state_dict(state, strict=False)
        of_each = []
        for one in second:
            x, y = torch.cat([b.x for b in one.batches]), torch.cat([b.y for b in one.batches])
            of_each.append(round(float(cross_entropy(module.eval()(x), y).detach()), 3))
        losses.append(sum(of_each) / 3)
    assert same_trees(strategy.mask, pool[losses.index(min(losses))])
    assert len(set(losses)) == 3
    assert strategy.stats.up > 0 and not strategy.stats.failures


def damage(fault: str, message: Message) -> Message | None:
    if fault == "silent":
        return None
    metrics, arrays = message.content["metrics"], message.content.array_records
    if fault == "examples":
        message.content["metrics"] = MetricRecord({**metrics, "num-examples": 0})
    elif fault == "missing":
        message.content.array_records.pop("statistics-1", None)
        message.content["metrics"] = MetricRecord({k: v for k, v in metrics.items() if k != "loss-1"})
    elif fault == "impossible":
        message.content["metrics"] = MetricRecord({k: float("nan") if "loss" in k else v for k, v in metrics.items()})
        if arrays:
            like = initial(TASK, 0)[1]
            tree = map_trees(lambda t: t - 9, from_coded(arrays["statistics-0"], like)[0])
            message.content["statistics-0"] = to_coded(tree, full_mask(tree))
    return message


@pytest.mark.parametrize("fault", ["examples", "missing", "impossible"])
def test_a_bad_answer_is_left_out_as_if_it_had_not_come(tmp_path: Path, fault: str) -> None:
    def tamper(kind: str) -> Any:
        def change(message: Message) -> Message | None:
            own = message.metadata.src_node_id == 100 and message.has_content() and "hello" not in message.content
            return damage(kind, message) if own else message

        return change

    bad, grid, arrays = build(tmp_path / "bad", tamper(fault), **NORMED)
    bad.configure_train(1, arrays, ConfigRecord(), grid)
    absent, other, arrays = build(tmp_path / "absent", tamper("silent"), **NORMED)
    absent.configure_train(1, arrays, ConfigRecord(), other)
    like = initial(TASK, 0)[1]
    for number in range(3):
        a, b = (from_coded(asked(g, "loss")[1].content[f"statistics-{number}"], like)[0] for g in (grid, other))
        assert all(torch.equal(a[n], b[n]) for n in like)
    assert same_trees(bad.mask, absent.mask)


@pytest.mark.parametrize(("robust", "wins"), [("none", 4), ("median", 2)])
def test_one_liar_decides_the_mean_and_not_the_median(tmp_path: Path, robust: str, wins: int) -> None:
    def say(message: Message) -> Message:
        if message.has_content() and "loss-0" in message.content.get("metrics", {}):
            lies = message.metadata.src_node_id == 100
            told = {f"loss-{n}": (0.0 if n == 4 else 1e8) if lies else (1.0 if n == 2 else 2.0) for n in range(5)}
            message.content["metrics"] = MetricRecord({**message.content["metrics"], **told})
        return message

    strategy, grid, arrays = build(tmp_path, say, robust=robust, min_clients=3)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    params, _ = initial(Task("cnn", (1, 8, 8), 10), 0)
    pool = candidate_masks(params, strategy.model.prunable, RATE, (5, 0.5), 0)
    assert [n for n, mask in enumerate(pool) if same_trees(strategy.mask, mask)] == [wins]


def test_fewer_answers_than_the_rule_needs_choose_nothing(tmp_path: Path) -> None:
    def lose(message: Message) -> Message | None:
        own = message.metadata.src_node_id == 100 and message.has_content() and "hello" not in message.content
        return None if own else message

    strategy, grid, arrays = build(tmp_path, lose, robust="median", min_clients=3)
    assert strategy.aggregator.quorum == 3
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    params, _ = initial(Task("cnn", (1, 8, 8), 10), 0)
    assert same_trees(strategy.mask, candidate_masks(params, strategy.model.prunable, RATE, (5, 0.5), 0)[0])
