"""The task of a module that a user has at hand: a copy of it, the shape of its images and its classes.

What is not given is inferred: the shape from the first layer and from the only usual side that the whole module takes,
the classes from its answer. Errors: ``ConfigError`` that names the keyword to pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from prunella.core.copies import copied
from prunella.core.errors import ConfigError, with_article
from prunella.tasks.models.layers import Shape
from prunella.tasks.normalisation import Normal, normalised
from prunella.tasks.task import ModuleTask, require_fit

SIDES = (8, 28, 32, 64, 96, 128, 224)  # of usual square images
_MISFIT = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)


def _answer(module: nn.Module, shape: Shape) -> Tensor | None:
    """What ``module`` says to two grey images, or None where it takes none of that shape."""
    try:
        with torch.no_grad():
            found = module(torch.full((2, *shape), 0.5))
    except _MISFIT:
        return None
    return found if isinstance(found, Tensor) and found.dim() == 2 else None


def infer_shape(module: nn.Module) -> Shape:
    """The only square shape of ``SIDES`` that ``module`` takes. Raises ``ConfigError`` where several fit, or none."""
    first = next((layer for layer in module.modules() if isinstance(layer, _ConvNd)), None)
    channels = (1, 3) if first is None else (first.in_channels,)
    fits = [(c, side, side) for c in channels for side in SIDES if _answer(module, (c, side, side)) is not None]
    if len(fits) != 1:
        which = "several do" if fits else "no usual one does"
        raise ConfigError(
            f"which images the model takes cannot be told ({which}): pass shape=(channels, height, width)"
        )
    return fits[0]


def own_task(
    model: nn.Module, shape: Sequence[int] | None = None, classes: int | None = None, normalize: Normal | None = None
) -> ModuleTask:
    """The task of a copy of ``model``, on the CPU. Raises ``ConfigError`` where the model cannot be audited."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model is {with_article(model)}: pass a torch.nn.Module with its weights")
    module = copied(model).cpu().eval()
    if other := [name for name, p in module.named_parameters() if p.dtype != torch.float32]:
        kind = str(module.get_parameter(other[0]).dtype).removeprefix("torch.")
        raise ConfigError(f"{other[0]} is of {kind}, and attacks compute in float32: pass model.float()")
    if normalize is not None:
        if not all(isinstance(each, Sequence) for each in normalize) or not all(std > 0 for std in normalize[1]):
            raise ConfigError("normalize=(mean, std) takes a list for each, a number a channel, the deviations above 0")
        module = normalised(module, normalize)
    if shape is not None and len(shape) != 3:
        raise ConfigError(f"shape={tuple(shape)} is not (channels, height, width)")
    found: Shape = infer_shape(module) if shape is None else (int(shape[0]), int(shape[1]), int(shape[2]))
    answer = _answer(module, found) if classes is None else None
    if classes is None and answer is None:
        raise ConfigError(
            f"the model does not answer images of {found}, which is (channels, height, width), with one logit a class: "
            "pass others, or another shape="
        )
    task = ModuleTask(type(model).__name__, found, int(classes or answer.shape[1]), module)  # type: ignore[union-attr]
    require_fit(task, module)
    return task
