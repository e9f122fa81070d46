"""A recorded view on disk, to attack later or elsewhere: one safetensors file, its metadata JSON, nothing pickled.

Tensors are named ``<field>/<parameter>`` (``labels`` stands alone); the metadata holds the format's version, the task,
the view's plain fields and the caller's own ``extra``. A trace is not trusted: every tree must fit the model, and a
model that is named by an import path is built only when the caller passes that task, since building it runs its code.

Errors: ``AttackError`` that says what differs, names and shapes only.
"""

import json
import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from prunella.attacks.engine.matching import check_view
from prunella.core.errors import AttackError, PrunellaError
from prunella.core.files import read_tree, write_tree
from prunella.core.trees import Tree
from prunella.core.types import ServerView
from prunella.core.untrusted import MAX_COUNT
from prunella.tasks.models import MODELS
from prunella.tasks.task import MAX_VALUES, FrozenNormTask, Task, are_classes

VIEW = "view.safetensors"  # the trace in an audit's folder
FORMAT = "prunella.trace.v1"
_TREES = ("params", "update", "mask", "shared", "buffers", "received_buffers", "importance")
_MASKS = ("mask", "shared")
_NORM = "running_mean"
_LEAST = 2 * torch.finfo(torch.float64).eps  # how far a difference and a sum of two numbers move one, as a share
_COUNTS = ("num_examples", "steps", "batch_size")
_PLAIN = tuple(f.name for f in fields(ServerView) if f.name not in (*_TREES, "labels"))
_TYPES: dict[str, tuple[type, ...]] = {
    "num_examples": (int, type(None)),
    "steps": (int, type(None)),
    "batch_size": (int, type(None)),
    "learning_rate": (int, float, type(None)),
    "momentum": (int, float),
    "weight_decay": (int, float),
    "defenses": (list,),
    "frozen": (list,),
}


def save_trace(path: Path, view: ServerView, task: Task, extra: dict[str, Any]) -> None:
    """Write ``view`` atomically, owner-readable only. ``extra`` must be JSON."""
    trees = {field: getattr(view, field) for field in _TREES}
    tensors = {f"{field}/{name}": tensor for field, tree in trees.items() for name, tensor in (tree or {}).items()}
    if view.labels is not None:
        tensors["labels"] = view.labels
    present = [field for field, tree in trees.items() if tree is not None]
    about = {"format": FORMAT, "task": asdict(task), "trees": present, "extra": extra}
    about["view"] = {field: getattr(view, field) for field in _PLAIN}
    # safetensors refuses tensors that share storage, as an update and its clone-free mask may.
    write_tree(path, {name: tensor.detach().clone() for name, tensor in tensors.items()}, {"trace": json.dumps(about)})


def load_trace(path: Path, task: Task | None = None) -> tuple[ServerView, Task, dict[str, Any]]:
    """The view, its task and ``extra``. With ``task``, a trace of another task is refused. Where batch norm's
    statistics came back as they were sent, the client had it in evaluation mode, and so has the task."""
    tensors, about = _read(path)
    recorded = _task(about["task"])
    frozen = FrozenNormTask(**asdict(recorded))
    if task is not None and task not in (recorded, frozen):
        raise AttackError(f"the trace is of {recorded}, not of {task}")
    if task is None and recorded.model not in MODELS:
        advice = f"pass its task, or --model {recorded.model} to prunella audit, if its code may run here"
        raise AttackError(f"the trace names {recorded.model!r}, a model of somebody's own: {advice}")
    view = _view(tensors, about, recorded)
    check_view(view, _structure(recorded))
    return view, frozen if norm_stood_still(view) else recorded, about["extra"]


def norm_stood_still(view: ServerView) -> bool:
    """Whether there are statistics of batch norm, and a client that returned what it was sent."""
    came = {name: tensor for name, tensor in view.received_buffers.items() if name.endswith(_NORM)}
    return bool(came) and all(name in view.buffers and torch.equal(t, view.buffers[name]) for name, t in came.items())


def _structure(task: Task) -> nn.Module:
    """What the tensors must fit, without memory for it: a task may claim any size, and the file holds what it holds."""
    try:
        return task.structure()
    except PrunellaError:
        raise
    except Exception:  # noqa: BLE001 - a user's own builder, which looks at values; those of ``structure`` have none
        return task.build()


def recorded_task(path: Path) -> Task:
    """The task a trace says it is of; nothing of it is built."""
    return _task(_read(path)[1]["task"])


def recorded_about(path: Path) -> dict[str, Any]:
    """The ``extra`` of a trace; nothing of its model is built."""
    about: dict[str, Any] = _read(path)[1]["extra"]
    return about


def _read(path: Path | str) -> tuple[Tree, dict[str, Any]]:
    path = Path(path)
    path = path / VIEW if path.is_dir() else path
    try:
        tensors, metadata = read_tree(path)
    except FileNotFoundError:
        raise AttackError(f"there is no trace {path}") from None
    except (OSError, SafetensorError) as error:
        raise AttackError(f"{path.name} is not a readable trace: {type(error).__name__}") from None
    return tensors, _about(metadata, path.name)


def _about(metadata: dict[str, str], name: str) -> dict[str, Any]:
    try:
        about = json.loads(metadata.get("trace", "null"))
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise AttackError(f"{name} is a safetensors file, but not a {FORMAT}")
    kinds = {"task": dict, "view": dict, "trees": list, "extra": dict}
    for key, kind in kinds.items():
        if not isinstance(about.get(key), kind):
            raise AttackError(f"the metadata of {name} has no valid {key!r}")
    return about


def _task(raw: dict[str, Any]) -> Task:
    model, shape, classes = raw.get("model"), raw.get("shape"), raw.get("classes")
    numbers = [*shape, classes] if isinstance(shape, list) else []
    if not isinstance(model, str) or len(numbers) != 4 or not all(type(n) is int and 0 < n < 2**20 for n in numbers):
        raise AttackError("the task of the trace is not a model, a shape (C, H, W) and a number of classes")
    if math.prod(numbers[:3]) > MAX_VALUES:
        raise AttackError(f"the task of the trace has more than {MAX_VALUES} values an image")
    return Task(model, (numbers[0], numbers[1], numbers[2]), numbers[3])


def _trees(tensors: Tree, present: list[Any]) -> dict[str, Tree]:
    trees: dict[str, Tree] = {field: {} for field in _TREES if field in present}
    for key, tensor in tensors.items():
        field, _, name = key.partition("/")
        if key == "labels":
            continue
        if field not in trees:
            raise AttackError(f"unknown tensor {key!r} in the trace")
        if (tensor.dtype == torch.bool) != (field in _MASKS):
            raise AttackError(f"{key} has dtype {tensor.dtype}")
        trees[field][name] = tensor
    for field in ("params", "update"):
        if field not in trees:
            raise AttackError(f"the trace has no {field}")
    return trees


def _check_numbers(plain: dict[str, Any]) -> None:
    """Refuse numbers that are no counts or rates, negative or too large."""
    for field, value in plain.items():
        if type(value) not in _TYPES[field]:
            raise AttackError(f"the field {field!r} of the trace has the wrong type")
        if field in _COUNTS and value is not None and not 1 <= value <= MAX_COUNT:
            raise AttackError(f"the field {field!r} of the trace is not a count from 1 to {MAX_COUNT}")
        if isinstance(value, int | float) and not 0 <= value <= MAX_COUNT:
            raise AttackError(f"the field {field!r} of the trace is not a number from 0 to {MAX_COUNT}")


def _view(tensors: Tree, about: dict[str, Any], task: Task) -> ServerView:
    plain = {"frozen": [], **about["view"]}  # older releases did not write it
    if set(plain) != set(_PLAIN):
        raise AttackError(f"fields of the view differ: {sorted(set(plain) ^ set(_PLAIN))[:3]}")
    _check_numbers(plain)
    labels = tensors.get("labels")
    if labels is not None and (labels.dim() != 1 or labels.dtype != torch.int64):
        raise AttackError(f"labels are {labels.dtype} of shape {tuple(labels.shape)}, not int64 of one dimension")
    if labels is not None and not are_classes(labels, task.classes):
        raise AttackError(f"labels of the trace are not among the {task.classes} classes of its task")
    named = {field: tuple(map(str, plain[field])) for field in ("defenses", "frozen")}
    values = {**plain, **_trees(tensors, about["trees"]), **named}
    return in_float32(ServerView(**values, labels=labels))


def in_float32(view: ServerView) -> ServerView:
    """``view`` in the type that attacks compute in. Older releases recorded a client that answered a float64 model in
    float32 as the difference of the two types: behind a defense, a coordinate that only this rounding moved was
    withheld."""
    trees = {field: tree for field in _TREES if field not in _MASKS and (tree := getattr(view, field)) is not None}
    single: dict[str, Any] = {
        field: {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tree.items()}
        for field, tree in trees.items()
    }
    shared, defended = dict(view.shared or {}), set(view.defenses) - {"none"}
    for name in view.update.keys() & view.params.keys():
        if (moved := _rounded(view.params[name], view.update[name])) is None:
            continue
        single["update"][name] = moved
        if defended and name in shared and shared[name].shape == moved.shape:
            shared[name] = shared[name] & (moved != 0)
    return replace(view, **single, shared=view.shared and shared)


def _rounded(before: Tensor, update: Tensor) -> Tensor | None:
    """What a client moved that rounded a float64 weight to float32 and answered so; None for any other client. A weight
    of a client that computes in float64 is next to a float32 number by chance only."""
    if {before.dtype, update.dtype} != {torch.float64} or before.shape != update.shape:
        return None
    after = before + update
    near = (after - after.float()).abs() <= _LEAST * (before.abs() + after.abs())
    return after.float() - before.float() if bool(near.all()) else None
