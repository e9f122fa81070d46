"""What server, client and attacker all know about the learning task: the model's structure and the data's shape.

>>> task = Task("cnn", (1, 8, 8), 10)
>>> params, buffers = initial(task, seed=0)
>>> sum(t.numel() for t in params.values()), buffers, sorted(prunable(task.build()))
(21882, {}, ['0.0.weight', '0.2.weight', '2.0.weight'])
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from core.errors import ConfigError
from core.foreign import lookup
from core.randomness import stream
from core.trees import Tree
from tasks.models import MODELS, Builder
from tasks.models.layers import Shape


@dataclass(frozen=True)
class Task:
    """``model`` is an entry of ``MODELS`` or ``"package.module:function"``, a builder of (shape, classes) that is
    installed on every node; ``shape`` is (C, H, W)."""

    model: str
    shape: Shape
    classes: int

    def build(self) -> nn.Module:
        """The structure, with weights nobody should rely on (``initial`` has the run's). Global randomness is kept."""
        return _build(self, 0)


def initial(task: Task, seed: int) -> tuple[Tree, Tree]:
    """Parameters and float buffers every run with this seed starts from.

    Batch norm's ``num_batches_tracked`` is dropped: it is an integer nobody averages.
    """
    module = _build(task, stream(seed, purpose="initial").initial_seed())
    params = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in module.named_buffers() if b.is_floating_point()}
    return params, buffers


def prunable(module: nn.Module) -> frozenset[str]:
    """Names of the weights of linear and convolution layers: never biases, norms or buffers."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | _ConvNd)}
    return frozenset(f"{name}.weight" if name else "weight" for name in layers)


def _build(task: Task, seed: int) -> nn.Module:
    """Layers initialise themselves from torch's global generator, which is put back afterwards."""
    builder: Builder = lookup("model", task.model, MODELS)
    if not callable(builder):
        raise ConfigError(f"model {task.model!r} is not a function of (shape, classes)")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = builder(task.shape, task.classes)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {task.model!r} built a {type(module).__name__}, not a torch.nn.Module")
    return module
