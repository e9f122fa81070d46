"""What server, client and attacker all know about the learning task: the model's structure and the data's shape.

>>> task = Task("cnn", (1, 8, 8), 10)
>>> params, buffers = initial(task, seed=0)
>>> sum(t.numel() for t in params.values()), buffers, sorted(prunable(task.build()))
(21882, {}, ['0.0.weight', '0.2.weight', '2.0.weight'])
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from prunella.core.copies import copied
from prunella.core.errors import ConfigError, PrunellaError, with_article
from prunella.core.foreign import is_foreign, lookup
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.tasks.models import MODELS, Builder
from prunella.tasks.models.layers import Shape, frozen_norm

MAX_VALUES = 2**22  # of one image: 3 x 1182 x 1182. A shape comes from others, too, and memory is taken by it


@dataclass(frozen=True)
class Task:
    """``model`` is an entry of ``MODELS`` or ``"package.module:function"``, a builder of (shape, classes), or a class
    that takes no arguments, installed on every node; ``shape`` is (C, H, W)."""

    model: str
    shape: Shape
    classes: int

    def build(self) -> nn.Module:
        """The structure, with weights nobody should rely on (``initial`` has the run's). Global randomness is kept."""
        return _build(self, 0)

    def structure(self) -> nn.Module:
        """Names and shapes of what ``build`` makes, and no memory for a weight, whatever the sizes."""
        with torch.device("meta"):
            return _build(self, 0)

    def builder(self) -> Builder:
        """The function of (shape, classes) that ``model`` names. Raises ``ConfigError``."""
        found: Builder = lookup("model", self.model, MODELS)
        return found


@dataclass(frozen=True)
class ModuleTask(Task):
    """The task of a ``module`` that is there already, with its weights; ``model`` only tells people which it is. Every
    ``build`` is a copy of it, whatever the seed. No trace can name such a model."""

    module: nn.Module

    def builder(self) -> Builder:
        return lambda shape, classes: copied(self.module)


@dataclass(frozen=True)
class FrozenNormTask(Task):
    """A task whose clients train with batch norm in evaluation mode (``frozen_norm``)."""


def are_classes(labels: Tensor, classes: int) -> bool:
    """Whether every label is one of 0 to ``classes`` - 1.

    >>> are_classes(torch.tensor([0, 9]), 10), are_classes(torch.tensor([10]), 10), are_classes(torch.tensor([-1]), 10)
    (True, False, False)
    """
    return bool(((labels >= 0) & (labels < classes)).all())


def initial(task: Task, seed: int) -> tuple[Tree, Tree]:
    """Parameters and float buffers every run with this seed starts from.

    Batch norm's ``num_batches_tracked`` is dropped: it is an integer nobody averages.
    """
    module = _build(task, stream(seed, purpose="initial").initial_seed())
    params = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in module.named_buffers() if b.is_floating_point()}
    return params, buffers


def prunable(module: nn.Module) -> frozenset[str]:
    """Names of the weights of linear and convolution layers: never biases, norms or buffers, nor a weight that is made
    of other parameters (weight norm, spectral norm)."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | _ConvNd)}
    own = (name for name, layer in layers.items() if layer._parameters.get("weight") is not None)
    return frozenset(f"{name}.weight" if name else "weight" for name in own)


def layers(module: nn.Module) -> tuple[str, ...]:
    """The ``prunable`` names in the module's own order, which a tree that was on a disk has lost."""
    names = prunable(module)
    return tuple(name for name, _ in module.named_parameters() if name in names)


def identity(task: Task, module: nn.Module) -> str:
    """What a model computes, as far as can be seen from outside: its structure, the classes of its layers and the
    source of those that are neither PyTorch's nor this release's. Two models with equal tensors may differ in it."""
    kinds = {type(layer) for layer in module.modules()}
    names = {kind.__module__ for kind in kinds} | ({task.model.partition(":")[0]} if is_foreign(task.model) else set())
    known = ("torch.", __name__.removesuffix("task"))
    foreign = sorted(name for name in names if not f"{name}.".startswith(known))
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in foreign}
    sources = {name: hashlib.sha256(Path(f).read_bytes()).hexdigest() if f else "" for name, f in files.items()}
    classes = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    return json.dumps([task.model, task.shape, task.classes, repr(module), classes, sources])


def require_fit(task: Task, module: nn.Module) -> None:
    """Raise ``ConfigError`` unless every parameter of the task's model belongs to one layer and can be trained in
    float32 and the model turns images of the task's shape into one number (logit) a class, of two or more. These are
    the usual mistakes in a user's own model."""
    who, params = f"model {task.model!r}", dict(module.named_parameters(remove_duplicate=False))
    if task.classes < 2:
        raise ConfigError(f"{who} has one logit, and the cross-entropy of one class is always 0: give it two logits")
    if not params or any(isinstance(parameter, UninitializedParameter) for parameter in params.values()):
        raise ConfigError(f"{who} has no parameters, or lazy layers: give every layer its sizes")
    if shared := params.keys() - dict(module.named_parameters()).keys():
        raise ConfigError(f"{who}: {min(shared)} is also another layer's weight: give every layer its own")
    for name, parameter in params.items():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            state = "is frozen" if parameter.dtype == torch.float32 else f"is {parameter.dtype}"
            raise ConfigError(f"{who}: {name} {state}, and every parameter is trained in float32: see docs/your-own.md")
    training = module.training
    try:
        with torch.no_grad():
            answer = module.eval()(torch.zeros(2, *task.shape))
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise ConfigError(f"{who} does not take images of {task.shape}: {error}") from None
    finally:
        module.train(training)
    if not isinstance(answer, Tensor) or answer.shape != (2, task.classes):
        found = tuple(answer.shape) if isinstance(answer, Tensor) else with_article(answer)
        raise ConfigError(f"{who} answers 2 images with {found}, not with one logit for each of {task.classes} classes")


def _takes(builder: Callable[..., object], given: tuple[object, ...]) -> bool:
    try:
        inspect.signature(builder).bind(*given)
    except (TypeError, ValueError):
        return False
    return True


def _build(task: Task, seed: int) -> nn.Module:
    """Layers initialise themselves from torch's global generator, which is put back afterwards."""
    builder: Callable[..., nn.Module] = task.builder()
    given = next((each for each in ((task.shape, task.classes), ()) if _takes(builder, each)), None)
    if given is None:
        raise ConfigError(f"model {task.model!r} is not a function of (shape, classes), nor one of nothing")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # alone: ``torch.manual_seed`` seeds every device, for good
        try:
            module = builder(*given)
        except PrunellaError:
            raise
        except Exception as error:  # somebody's own code; its text may hold anything
            who, what = f"model {task.model!r}", type(error).__name__
            how = f"call it with {', '.join(map(str, given)) or 'nothing'} to see why"
            raise ConfigError(f"{who} cannot be built ({what}): {how}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {task.model!r} built {with_article(module)}, not a torch.nn.Module")
    return frozen_norm(module) if isinstance(task, FrozenNormTask) else module
