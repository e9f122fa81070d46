"""Evaluation beside the next round: the same numbers as without it, none lost, and no round that waits."""

import copy
import threading
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn

import prunella.server.evaluation
from prunella.benchmarks.engine.inprocess import failures
from prunella.core.trees import Tree, to_device
from prunella.server.store.read import read_lines
from prunella.tasks.training import Evaluation, evaluate
from tests.server.test_rounds import build, go, series

PLAIN = {"clients": 2, "strategy": "fedavg", "defenses": "none", "local_steps": 1, "device": "cpu"}  # a GPU rounds anew


def by_round(folder: Path) -> dict[int, float]:
    lines = read_lines(folder / "run" / "metrics.jsonl")
    return {line["round"]: line["value"] for line in lines if line["metric"] == "accuracy_ratio"}


def test_clients_train_the_next_round_while_the_last_one_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replied, waited = list[Message](), list[bool]()
    second = threading.Event()  # a reply of the second round is there

    def note(message: Message) -> Message:
        replied.append(message)
        if sum("update" in each.content for each in replied) > 2:
            second.set()
        return message

    def slow(*args: object) -> Evaluation:
        waited.append(second.wait(60))
        return evaluate(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("prunella.server.rounds.LEAST", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(prunella.server.evaluation, "evaluate", slow)
        beside = go(tmp_path / "beside", tamper=note, rounds=3, **PLAIN)
    assert waited == [True, True, True]
    go(tmp_path / "after", rounds=3, **PLAIN)
    assert by_round(tmp_path / "beside") == by_round(tmp_path / "after") and len(by_round(tmp_path / "after")) == 3
    assert series(beside, "model_diverged") == [0.0, 0.0, 0.0]


def test_what_was_being_evaluated_when_the_server_was_killed_is_evaluated_by_the_next(tmp_path: Path) -> None:
    go(tmp_path / "whole", rounds=4, **PLAIN)
    go(tmp_path / "parts", rounds=2, **PLAIN)
    path = tmp_path / "parts" / "run" / "metrics.jsonl"
    of_it = ("accuracy_ratio", "loss", "model_diverged")
    kept = [
        line
        for line in path.read_text().splitlines()
        if not ('"round":2,' in line and any(f'"{name}"' in line for name in of_it))
    ]
    path.write_text("\n".join(kept) + "\n")
    assert by_round(tmp_path / "parts").keys() == {1}
    go(tmp_path / "parts", rounds=4, resume=True, **PLAIN)
    assert by_round(tmp_path / "parts") == by_round(tmp_path / "whole")


def test_an_evaluation_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> Evaluation:
        raise TimeoutError("no memory")  # the name that a wait for a result may raise, too

    monkeypatch.setattr(prunella.server.evaluation, "evaluate", fail)
    with pytest.raises(TimeoutError, match="no memory"):
        go(tmp_path, rounds=2, **PLAIN)


@pytest.mark.parametrize("room", [True, False])
def test_it_is_done_where_clients_train_while_there_is_room(
    room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretended: None
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    asked = list[str]()

    def noted(module: nn.Module, params: Tree, buffers: Tree, x: Tensor, y: Tensor) -> Evaluation:
        asked.append(next(iter(params.values())).device.type)
        if asked[-1] == "cuda" and not room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        found = evaluate(module, params, buffers, x, y)
        again = evaluate(copy.deepcopy(module).to("cpu"), to_device(params, "cpu"), to_device(buffers, "cpu"), x, y)
        assert (found.accuracy, found.loss) == pytest.approx((again.accuracy, again.loss), abs=1e-3)
        return found

    monkeypatch.setattr(prunella.server.evaluation, "evaluate", noted)
    done = go(tmp_path, rounds=2, **{**PLAIN, "device": "cuda:0"})
    assert asked == (["cuda"] * 2 if room else ["cuda", "cpu"] * 2)
    assert by_round(tmp_path).keys() == {1, 2} and not failures(done)


def test_a_server_without_the_clients_device_evaluates_on_the_cpu(tmp_path: Path) -> None:
    run = build(tmp_path, device="cuda:31")[0].run
    assert prunella.server.evaluation.device_here(run) == torch.device("cpu")
