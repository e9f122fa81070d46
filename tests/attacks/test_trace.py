import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from prunella.attacks.trace import load_trace, save_trace
from prunella.core.errors import AttackError
from prunella.core.files import read_tree
from prunella.core.trees import full_mask
from prunella.core.types import ServerView
from prunella.tasks.task import Task, initial


@pytest.fixture
def full(view: ServerView) -> ServerView:
    mask = full_mask(view.update)
    return dataclasses.replace(
        view,
        mask=mask,
        shared=mask,
        importance=view.update,
        labels=torch.tensor([3]),
        defenses=("dgp", "gaussian"),
        frozen=(next(iter(mask)),),
    )


def assert_same(a: ServerView, b: ServerView) -> None:
    for field in dataclasses.fields(ServerView):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, dict):
            assert left.keys() == right.keys()
            assert all(left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left)
        elif isinstance(left, torch.Tensor):
            assert torch.equal(left, right)
        else:
            assert left == right


def test_a_full_and_a_bare_view_come_back_bit_for_bit(
    tmp_path: Path, full: ServerView, view: ServerView, task: Task
) -> None:
    for seen in (full, view):
        save_trace(tmp_path / "a.trace", seen, task, {"round": 3, "note": "x"})
        loaded, recorded, extra = load_trace(tmp_path / "a.trace")
        assert recorded == task and extra == {"round": 3, "note": "x"}
        assert_same(seen, loaded)


@pytest.mark.parametrize("moved", [0.0, 0.1])
def test_statistics_that_came_back_as_they_were_sent_are_of_a_frozen_batch_norm(moved: float, tmp_path: Path) -> None:
    task = Task("resnet10", (3, 8, 8), 4)
    params, buffers = initial(task, 0)
    received = {name: tensor + moved for name, tensor in buffers.items()}
    save_trace(tmp_path / "a.trace", ServerView(params, params, buffers=buffers, received_buffers=received), task, {})
    recorded = load_trace(tmp_path / "a.trace", task)[1]
    layer = next(each for each in recorded.build().train().modules() if isinstance(each, torch.nn.BatchNorm2d))
    assert layer.training is bool(moved)
    again = load_trace(tmp_path / "a.trace", recorded)[1]
    assert again == recorded and recorded.build().state_dict().keys() == task.build().state_dict().keys()


@pytest.mark.parametrize("answered", [torch.float32, torch.float64])
def test_an_old_trace_of_a_float64_model_counts_no_rounding_as_a_change(
    answered: torch.dtype, tmp_path: Path, task: Task
) -> None:
    """As recorded before: what a client answers in its own type, less the float64 weights that it was sent."""
    generator = torch.Generator().manual_seed(0)
    params = {name: tensor.double() / 3 for name, tensor in initial(task, 0)[0].items()}
    chosen = {name: torch.rand(tensor.shape, generator=generator) < 0.2 for name, tensor in params.items()}
    moved = {name: 0.1 * torch.rand(t.shape, generator=generator, dtype=torch.float64) for name, t in params.items()}
    after = {name: tensor.to(answered) + chosen[name] * moved[name].to(answered) for name, tensor in params.items()}
    update = {name: after[name] - params[name] for name in params}
    assert all(each.dtype == torch.float64 for each in update.values())
    shared = {name: tensor != 0 for name, tensor in update.items()}
    save_trace(tmp_path / "a.trace", ServerView(params, update, shared=shared, defenses=("dgp",)), task, {})
    view = load_trace(tmp_path / "a.trace", task)[0]
    for name in params:
        assert torch.equal(view.params[name], params[name].float())
        own = after[name].float() - params[name].float() if answered == torch.float32 else update[name].float()
        assert torch.equal(view.update[name], own)
    assert view.shared is not None and all(torch.equal(view.shared[name], chosen[name]) for name in params)


def test_a_replay_gives_the_same_attack(tmp_path: Path, full: ServerView, task: Task) -> None:
    from prunella.attacks.engine.inversion import Inversion, reconstruct
    from prunella.core.randomness import stream

    save_trace(tmp_path / "a.trace", full, task, {})
    loaded, recorded, _ = load_trace(tmp_path / "a.trace", task)
    attack = Inversion(iterations=20)
    first = reconstruct(full, task, attack, stream(0, purpose="attack"))
    assert torch.equal(first.x, reconstruct(loaded, recorded, attack, stream(0, purpose="attack")).x)


def rewritten(path: Path, full: ServerView, task: Task, change) -> Path:
    """A saved trace after ``change(tensors, about)``."""
    save_trace(path, full, task, {})
    tensors, metadata = read_tree(path)
    about = json.loads(metadata["trace"])
    change(tensors, about)
    save_file(tensors, path, metadata={"trace": json.dumps(about)})
    return path


CHANGES = {
    "missing": lambda tensors, about: tensors.pop("update/0.0.bias"),
    "unknown": lambda tensors, about: tensors.update({"update/extra": torch.ones(2)}),
    "unknown tensor": lambda tensors, about: tensors.update({"truth/x": torch.ones(2)}),
    "the model has": lambda tensors, about: tensors.update({"update/0.0.bias": torch.ones(2)}),
    "dtype": lambda tensors, about: tensors.update({"mask/0.0.bias": torch.ones(16)}),
    "not finite": lambda tensors, about: tensors["params/0.0.bias"].fill_(float("nan")),
    "labels": lambda tensors, about: tensors.update({"labels": torch.ones(1)}),
    "do not fit the model": lambda tensors, about: about["task"].update(model="lenet-zhu"),
    "pass its task": lambda tensors, about: about["task"].update(model="os:getcwd"),
    "number of classes": lambda tensors, about: about["task"].update(shape=[1, 8]),
    "'steps'": lambda tensors, about: about["view"].update(steps="many"),
    "fields of the view": lambda tensors, about: about["view"].pop("steps"),
    "'extra'": lambda tensors, about: about.update(extra=3),
    "not a prunella.trace": lambda tensors, about: about.update(format="other"),
    "no params": lambda tensors, about: (
        about["trees"].remove("params"),
        [tensors.pop(k) for k in list(tensors) if k[:6] == "params"],
    ),
}


def test_a_trace_that_is_not_there_is_said_not_to_be(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no.safetensors"):
        with pytest.raises(AttackError, match=f"there is no trace {tmp_path}"):
            load_trace(path)
    (tmp_path / "x.safetensors").write_text("x")
    with pytest.raises(AttackError, match="x.safetensors is not a readable trace"):
        load_trace(tmp_path / "x.safetensors")


@pytest.mark.parametrize("message", CHANGES)
def test_malformed_traces_are_refused_with_the_reason(
    message: str, tmp_path: Path, full: ServerView, task: Task
) -> None:
    path = rewritten(tmp_path / "a.trace", full, task, CHANGES[message])
    with pytest.raises(AttackError, match=message):
        load_trace(path)


CLAIMS = {
    "2**19 classes": lambda tensors, about: about["task"].update(classes=2**19),
    "a head of 34 billion weights": lambda tensors, about: about["task"].update(model="conv-2", shape=[1, 1024, 1024]),
    "an image of a terabyte": lambda tensors, about: about["task"].update(model="resnet18", shape=[1, 2**19, 2**19]),
    "a label of 3 GB": lambda tensors, about: tensors.update(labels=torch.tensor([4 * 10**8])),
    "a label below zero": lambda tensors, about: tensors.update(labels=torch.tensor([-1])),
    "10**30 steps": lambda tensors, about: about["view"].update(steps=10**30),
    "fewer than no steps": lambda tensors, about: about["view"].update(steps=-5),
    "no images": lambda tensors, about: about["view"].update(num_examples=0),
    "10**12 images": lambda tensors, about: about["view"].update(batch_size=10**12),
    "no learning rate": lambda tensors, about: about["view"].update(learning_rate=float("nan")),
    "an endless momentum": lambda tensors, about: about["view"].update(momentum=float("inf")),
    "buffers of its own": lambda tensors, about: (
        about["trees"].append("received_buffers"),
        tensors.update({"received_buffers/a": torch.ones(2)}),
    ),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_trace_claims_is_refused_before_anything_is_built(
    claim: str, tmp_path: Path, full: ServerView, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rewritten(tmp_path / "a.trace", full, task, CLAIMS[claim])
    monkeypatch.setattr(Task, "build", lambda self: pytest.fail("built"))
    with pytest.raises(AttackError):
        load_trace(path)


def test_another_task_is_refused(tmp_path: Path, full: ServerView, task: Task) -> None:
    save_trace(tmp_path / "a.trace", full, task, {})
    with pytest.raises(AttackError, match="not of"):
        load_trace(tmp_path / "a.trace", Task("cnn", (1, 8, 8), 11))


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    save_file({"a": torch.ones(1)}, tmp_path / "bare")
    for name in ("text", "bare", "absent"):
        with pytest.raises(AttackError, match=name):
            load_trace(tmp_path / name)


def test_only_the_owner_can_read_it(tmp_path: Path, full: ServerView, task: Task) -> None:
    save_trace(tmp_path / "a.trace", full, task, {})
    assert (tmp_path / "a.trace").stat().st_mode & 0o077 == 0
    assert all(isinstance(tensor, torch.Tensor) for tensor in load_file(tmp_path / "a.trace").values())


def test_frozen_tensors_fit_the_model_and_older_traces_name_none(tmp_path: Path, full: ServerView, task: Task) -> None:
    save_trace(tmp_path / "a.trace", dataclasses.replace(full, frozen=("nowhere",)), task, {})
    with pytest.raises(AttackError, match="frozen tensors .* unknown .'nowhere'"):
        load_trace(tmp_path / "a.trace")
    save_trace(tmp_path / "a.trace", full, task, {})
    tensors, metadata = read_tree(tmp_path / "a.trace")
    about = json.loads(metadata["trace"])
    del about["view"]["frozen"]
    save_file(tensors, tmp_path / "old.trace", {"trace": json.dumps(about)})
    assert_same(load_trace(tmp_path / "old.trace")[0], dataclasses.replace(full, frozen=()))
