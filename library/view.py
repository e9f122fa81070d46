"""What a curious server would see of one update of a module, made from what a user has at hand.

A gradient g of the mean cross-entropy over the batch is the update -g at learning rate 1. Batch norm is in the mode in
which each layer stands: a model that was fine-tuned with ``eval()`` is to be passed so, and ``repr`` says how it is
taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.attacks.engine.matching import check_view
from prunella.core.errors import AttackError, ConfigError
from prunella.core.trees import Mask, Tree, scale
from prunella.core.types import ServerView
from prunella.library.module import own_task
from prunella.server.report.units import plural
from prunella.tasks.models.layers import frozen_norm
from prunella.tasks.normalisation import Normal
from prunella.tasks.task import Task, are_classes, initial

Update = Mapping[str, Tensor] | Sequence[Tensor | None]


@dataclass(frozen=True)
class View:
    """A server's view of one update, and the task it is of."""

    seen: ServerView
    task: Task

    def __repr__(self) -> str:
        steps, images = plural(self.seen.steps or 1, "step"), plural(self.seen.num_examples or 1, "image")
        what = f"{steps} on up to {images} of {self.task.shape}"
        norms = [layer for layer in self.task.build().train().modules() if isinstance(layer, _BatchNorm)]
        if still := sum(not layer.training for layer in norms):
            what += f", {still} of {len(norms)} batch norms in evaluation mode"
        return f"View({self.task.model}: {what}; {self.seen.describe()})"


def _tree(given: Update | None, model: nn.Module, what: str) -> Tree:
    """By parameter name. Raises ``ConfigError`` that says what is missing."""
    params = dict(model.named_parameters())
    if given is None:
        given = {name: p.grad for name, p in params.items()}  # type: ignore[misc]
    if not isinstance(given, Mapping):
        if len(given) != len(params):
            raise ConfigError(
                f"the {what} has {len(given)} tensors and the model {len(params)} parameters: pass a dict"
            )
        given = dict(zip(params, given, strict=True))  # type: ignore[arg-type]
    if missing := [name for name in params if given.get(name) is None]:
        raise ConfigError(
            f"there is no {what} of {missing[0]}: call loss.backward() first, or pass one tensor for each"
        )
    if more := sorted(given.keys() - params.keys()):
        raise ConfigError(f"the {what} names {more[0]!r}, which is no parameter of the model")
    return {name: given[name].detach().cpu().float().clone() for name in params}


def _keep_norms(model: nn.Module, copied: nn.Module) -> None:
    """Hold the batch norms of a copy in evaluation mode that stand so in the model."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and not layer.training:
            frozen_norm(copied.get_submodule(name))


def _check(
    gradient: Update | None, update: Update | None, size: int | None, steps: int, learning_rate: float | None
) -> None:
    """Raise ``ConfigError`` that names the keyword that is missing."""
    if update is not None and (gradient is not None or learning_rate is None):
        raise ConfigError("an update takes the place of the gradient and needs learning_rate=, that of its SGD")
    if update is None and steps != 1:
        raise ConfigError("a gradient is of one step: pass what several steps changed as update=, with learning_rate=")
    if learning_rate is not None and not learning_rate > 0:
        raise ConfigError(f"learning_rate={learning_rate} is not above 0")
    if size is None:
        raise ConfigError("pass batch=, the number of images in a step (or labels=, where they are known)")
    if size < 1 or steps < 1:
        raise ConfigError(f"batch={size} and steps={steps}: both are at least 1")


def view(
    model: nn.Module,
    gradient: Update | None = None,
    *,
    update: Update | None = None,
    shape: Sequence[int] | None = None,
    classes: int | None = None,
    batch: int | None = None,
    labels: Tensor | Sequence[int] | None = None,
    steps: int = 1,
    learning_rate: float | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
    shared: Mask | None = None,
    normalize: Normal | None = None,
) -> View:
    """What a server sees that gets ``gradient``, or an ``update``, of ``model``, to be attacked.

    ``model``      the module, with the weights from which the gradient was taken, and each batch norm in the mode that
                   it was taken in
    ``gradient``   by name, or in the order of ``parameters()``; None: what ``backward`` left in ``.grad``
    ``update``     in its place: weights after training minus weights before, with ``learning_rate``, ``steps``,
                   ``momentum`` and ``weight_decay`` of the SGD that made it
    ``batch``      images in a step; ``labels`` [N] where the server knows them
    ``mask``       where a pruned model trains; ``shared`` the coordinates that arrived, where some were withheld
    ``normalize``  (mean, std) of each channel, where the gradient was taken on normalised images; attacks guess in
                   [0, 1]

    ``shape`` (C, H, W) and ``classes`` are inferred where only one answer is possible. Raises ``ConfigError`` for a
    keyword that is missing or wrong, ``AttackError`` for tensors that do not fit the model.
    """
    task = own_task(model, shape, classes, normalize)
    _keep_norms(model, task.module)
    known = None if labels is None else torch.as_tensor(labels).long().cpu()
    size = len(known) if known is not None and batch is None else batch
    _check(gradient, update, size, steps, learning_rate)
    if known is not None and (len(known) != (size or 0) * steps or not are_classes(known, task.classes)):
        raise ConfigError(f"labels= has to name a class from 0 to {task.classes - 1} for each of batch * steps images")
    moved = scale(_tree(gradient, model, "gradient"), -1.0) if update is None else _tree(update, model, "update")
    params, buffers = initial(task, 0)
    seen = ServerView(
        params,
        moved,
        mask=mask,
        shared=shared,
        buffers=buffers,
        num_examples=len(known) if known is not None else (size or 1) * steps,
        labels=known,
        steps=steps,
        batch_size=size,
        learning_rate=1.0 if learning_rate is None else learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
    )
    check_view(seen, task.module)
    if not any(bool(tensor.any()) for tensor in moved.values()):
        raise AttackError("the update is zero everywhere: there is nothing to attack")
    return View(seen, task)
