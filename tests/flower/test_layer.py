"""Layers stack and hand on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity

from prunella.benchmarks.engine.inprocess import FIRST_NODE
from prunella.core.errors import ConfigError
from prunella.flower.defend import Defend
from prunella.flower.layer import Layer, common_metrics
from prunella.flower.prune import Prune
from prunella.flower.record import Record, Recorder, Training, record
from prunella.flower.robust import Robust
from prunella.tasks.task import Task
from tests.flower.foreign import make, run, tree

TASK, HOW = Task("tests.flower.test_record:small", (1, 8, 8), 10), Training(0.1, 8)


def test_two_layers_that_do_nothing_change_nothing(tmp_path) -> None:
    bare = tree(run(make([]), tmp_path / "a", {}, FedAdam(eta=0.3), rounds=2).arrays)
    twice = Layer(Layer(FedAdam(eta=0.3)))
    assert twice.eta == 0.3
    found = tree(run(make([]), tmp_path / "b", {}, twice, rounds=2).arrays)
    assert all((bare[name] == found[name]).all() for name in bare)


def test_only_strategies_that_flower_starts_can_be_wrapped() -> None:
    class Own(FedAvg):
        def start(self, *args, **kwargs):
            raise AssertionError

    with pytest.raises(ConfigError, match="start"):
        Layer(Own())
    with pytest.raises(ConfigError, match="not str"):
        Layer("fedavg")  # type: ignore[arg-type]
    assert isinstance(Layer(OlderFedAvg()), OlderStrategy)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        Layer(FedAvg()).nothing  # noqa: B018


def silent(reply: Message) -> Message:
    """One of the clients tells neither its loss in training nor that in evaluation."""
    for numbers in reply.content.metric_records.values() if reply.metadata.src_node_id == FIRST_NODE else ():
        for name in ("train_loss", "eval_loss"):
            numbers.pop(name, None)
    return reply


WRAPS: dict[str, Callable[[Path], Strategy]] = {
    "layer": lambda folder: Layer(FedAvg()),
    "recorded": lambda folder: Record(FedAvg(), folder, TASK, HOW),
    "by function": lambda folder: record(FedAvg(), Recorder(TASK, folder, HOW)),
    "by function around a layer": lambda folder: record(Robust(FedAvg(), "median"), Recorder(TASK, folder, HOW)),
    "pruned": lambda folder: Prune(FedAvg(), "random", rate=0.0),
    "robust": lambda folder: Robust(FedAvg(), "median"),
    "all": lambda folder: Record(Prune(Robust(FedAvg(), "median"), "random", rate=0.0), folder, TASK, HOW),
}


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_metric_that_one_client_does_not_tell_is_left_out_and_ends_no_run(wrap: str, tmp_path: Path) -> None:
    with pytest.raises(InconsistentMessageReplies):
        run(make([]), tmp_path / "bare", {}, FedAvg(), tamper=silent)
    whole = run(make([]), tmp_path / "a", {}, WRAPS[wrap](tmp_path / "whole"), clients=3)
    assert whole.train_metrics_clientapp[1].keys() == {"train_loss", "secret"}
    result = run(make([]), tmp_path / "b", {}, WRAPS[wrap](tmp_path / "traces"), clients=3, tamper=silent)
    assert result.train_metrics_clientapp[1].keys() == {"secret"}
    assert result.evaluate_metrics_clientapp[1].keys() == {"labels"}
    torch.testing.assert_close(tree(result.arrays), tree(whole.arrays))  # but for the order of the sum


@pytest.mark.parametrize("wrap", [Prune, Robust], ids=lambda layer: layer.__name__)
def test_a_count_that_does_not_leave_is_told_with_its_fix(
    wrap: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A strategy that weighs by another metric: Defend lets it out where it is listed."""
    for metrics, trained in (((), False), (("rows",), True)):
        caplog.clear()
        layer = wrap(FedAvg(fraction_evaluate=0.0, weighted_by_key="rows"), "random" if wrap is Prune else "median")

        def tell(message: Message, context: Context, call_next: Any) -> Message:
            reply = call_next(message, context)
            reply.content["metrics"]["rows"] = 32
            return reply

        app = make([Defend(metrics=metrics), tell])
        result = run(app, tmp_path / str(trained), {"defenses": "none"}, layer, clients=4)
        assert bool(result.train_metrics_clientapp) == trained
        assert ("Defend(metrics=('rows',)); under an ε num-examples alone" in caplog.text) != trained


def test_records_of_metrics_are_compared_with_those_of_their_name() -> None:
    def reply(**records: dict[str, float]) -> Message:
        question = Message(RecordDict(), dst_node_id=1, message_type="train")
        return Message(RecordDict({name: MetricRecord(each) for name, each in records.items()}), reply_to=question)

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    replies = [reply(train={"loss": 1.0, "num-examples": 3}, fairness={"gap": 0.1}), reply(train={"num-examples": 3})]
    first, second = common_metrics(replies, FedAvg())
    assert dict(first.content.metric_records["fairness"]) == {"gap": 0.1}
    assert first.content.metric_records["train"].keys() == second.content.metric_records["train"].keys()


def test_a_client_that_tells_nothing_takes_no_metric_from_the_others(tmp_path: Path) -> None:
    """A layer inside leaves it out, since it says no weight, before the metrics are compared."""

    def tamper(reply: Message) -> Message:
        for numbers in reply.content.metric_records.values() if reply.metadata.src_node_id == FIRST_NODE else ():
            if "train_loss" in numbers:
                numbers.clear()
        return reply

    result = run(make([]), tmp_path / "state", {}, WRAPS["all"](tmp_path / "traces"), clients=4, tamper=tamper)
    assert result.train_metrics_clientapp[1].keys() == {"train_loss", "secret"}
