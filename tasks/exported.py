"""Models on disk for use without a federation: tensors, a description, and a program that needs PyTorch only.

    model.safetensors   parameters and buffers by name
    model.json          model name, input shape, classes, every layer with its sizes, and whatever else is known of it
    model.pt2           ``torch.export``: ``torch.export.load(path).module()(images)``, any batch size

The program is the one to use elsewhere: it holds the whole computation and no Python class, so that it loads without
this package. It is ``torch.export``'s, since PyTorch has deprecated TorchScript. ``load_exported`` gives a module that
can be trained further.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.core.files import read_tree, write_atomically, write_json, write_tree
from prunella.core.trees import Tree
from prunella.tasks.task import Task

WEIGHTS, DESCRIPTION, PROGRAM = "model.safetensors", "model.json", "model.pt2"
FORMAT = 1
_SIZES = {
    nn.Conv2d: ("out_channels", "in_channels"),
    nn.Linear: ("out_features", "in_features"),
    nn.BatchNorm1d: ("num_features",),
    nn.BatchNorm2d: ("num_features",),
}
_SETTINGS = ("kernel_size", "stride", "padding", "dilation", "groups")


def fitted(module: nn.Module, tree: Tree) -> nn.Module:
    """``module``, changed: its parameters and buffers replaced by those of ``tree``, which may be smaller or larger."""
    for name, tensor in tree.items():
        owner, _, last = name.rpartition(".")
        layer = module.get_submodule(owner)
        if last in layer._parameters:
            setattr(layer, last, nn.Parameter(tensor.detach().clone()))
        elif last in layer._buffers:
            setattr(layer, last, tensor.detach().clone())
        else:
            raise ConfigError(f"this model has no tensor {name}")
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and 1 < layer.groups == layer.in_channels == layer.out_channels:
            layer.groups = layer.in_channels = layer.out_channels = len(layer.weight)  # one filter a channel
            continue
        for size, attribute in zip(_shape(layer), _SIZES.get(type(layer), ()), strict=False):
            grouped = layer.groups if isinstance(layer, nn.Conv2d) and attribute == "in_channels" else 1
            setattr(layer, attribute, size * grouped)
    return module


def _shape(layer: nn.Module) -> tuple[int, ...]:
    tensors = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    return tuple(tensors[0].shape) if tensors else ()


def layers(module: nn.Module) -> list[dict[str, Any]]:
    """Name, type and sizes of every part without parts of its own, in order.

    >>> layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    [{'name': '0', 'type': 'Linear', 'out_features': 3, 'in_features': 2}, {'name': '1', 'type': 'ReLU'}]
    """
    found = []
    for name, layer in module.named_modules():
        if not list(layer.children()):
            sizes = {key: getattr(layer, key) for key in _SIZES.get(type(layer), ())}
            settings = {key: getattr(layer, key) for key in _SETTINGS if hasattr(layer, key)}
            found.append({"name": name, "type": type(layer).__name__, **sizes, **settings})
    return found


def write_exported(folder: Path, task: Task, module: nn.Module, notes: dict[str, Any]) -> None:
    """The three files. ``module`` must be in evaluation mode."""
    tree = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
    description = {
        "format": FORMAT,
        "model": task.model,
        "shape": task.shape,
        "classes": task.classes,
        "parameters": sum(p.numel() for p in module.parameters()),
        "layers": layers(module),
        **notes,
    }
    write_program(folder / PROGRAM, task, module)
    write_tree(folder / WEIGHTS, tree)
    write_json(folder / DESCRIPTION, description)


def write_program(path: Path, task: Task, module: nn.Module) -> None:
    """The program alone, without the source lines and paths of this machine that PyTorch notes at every node. Raises
    ``ConfigError`` for a model that PyTorch cannot make one of."""
    example = torch.zeros(2, *task.shape)
    try:
        program = torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    except Exception as error:  # noqa: BLE001 - somebody's own code, in PyTorch's hands
        raise ConfigError(
            f"PyTorch cannot export this model ({type(error).__name__}): what it does must not depend on an image's "
            "values or on how many images come. Its weights are in the run's checkpoint"
        ) from None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    write_atomically(path, lambda temporary: _save(program, temporary))


def _save(program: torch.export.ExportedProgram, path: Path) -> None:
    with path.open("wb") as file:
        torch.export.save(program, file)


def read_description(folder: Path) -> dict[str, Any]:
    """``model.json``. Raises ``ConfigError`` where there is none that can be read."""
    try:
        return dict(json.loads((folder / DESCRIPTION).read_text()))
    except (OSError, ValueError, TypeError):
        raise ConfigError(f"{folder} holds no exported model") from None


def load_exported(folder: Path) -> nn.Module:
    """The model in evaluation mode, in the sizes it was written with. Raises ``ConfigError``."""
    notes = read_description(folder)
    if notes.get("format") != FORMAT:
        raise ConfigError(f"{folder} was written by another release")
    channels, height, width = notes["shape"]
    task = Task(str(notes["model"]), (channels, height, width), int(notes["classes"]))
    return fitted(task.build(), read_tree(folder / WEIGHTS)[0]).eval()
