"""Images that an app normalises before its model sees them: (x - mean) / std, channel by channel.

Attacks guess images in [0, 1]. A model that was trained on others gets them from these where it normalises first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prunella.core.errors import ConfigError
from prunella.tasks.models import Builder
from prunella.tasks.task import Task

Normal = tuple[Sequence[float], Sequence[float]]  #: mean and std, a number for each channel or one for all
# What tutorials and model zoos have: of no data in particular, of MNIST, Fashion-MNIST, CIFAR-10 in two versions,
# CIFAR-100 and ImageNet.
USUAL: tuple[Normal, ...] = (
    ((0.5,), (0.5,)),
    ((0.1307,), (0.3081,)),
    ((0.286,), (0.353,)),
    ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)),
    ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
)
WIDE: Normal = ((0.5,), (0.177,))  #: whose images reach as far as those of any other here
_NEAR, _FEW = 0.05, 0.01  # of the range, and of the pixels: what may lie outside of an image that was rebuilt nearly
_GRID = 0.1  # of a step of 8 bits: how far off such pixels are in the mean, where the right way shows them; 0.25 else


def _channels(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float32).reshape(-1, 1, 1)


def normalised(module: nn.Module, normal: Normal) -> nn.Module:
    """``module`` with (x - mean) / std before it, under the same names. Raises ``ConfigError`` where it keeps its
    ``forward`` itself, which a class of its own would not change."""
    if "forward" in vars(module):
        raise ConfigError("a model whose forward is set on the object cannot be made to normalise: subclass it")
    mean, std = map(_channels, normal)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        answer: Tensor = kind.forward(self, (x - mean.to(x)) / std.to(x))
        return answer

    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return module


@dataclass(frozen=True)
class NormalisedTask(Task):
    """A task ``of`` which the model sees images that are ``normal``; ``model`` only tells people which it is."""

    of: Task
    normal: Normal

    def builder(self) -> Builder:
        return lambda shape, classes: normalised(self.of.build(), self.normal)


def normalising(task: Task, normal: Normal) -> NormalisedTask:
    return NormalisedTask(task.model, task.shape, task.classes, task, normal)


def usual(channels: int) -> list[Normal]:
    """Those of ``USUAL`` that images of so many channels may have."""
    return [normal for normal in USUAL if len(normal[0]) in (1, channels)]


def formula(normal: Normal) -> str:
    """
    >>> formula(((0.5,), (0.5,))), formula(((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    ('(x - 0.5) / 0.5', '(x - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)')
    """
    mean, std = (f"({', '.join(map(str, each))})" if len(each) > 1 else str(each[0]) for each in normal)
    return f"(x - {mean}) / {std}"


def pixels(x: Tensor) -> list[tuple[Tensor, Normal]]:
    """What images the values x [N, C, H, W] that a model saw may be, in [0, 1], and how they were normalised then: of
    the usual ways those that leave next to all pixels in range, first of all one that shows steps of 8 bits, next those
    of every channel its own, then the one with the most contrast; last of all stretched over the range.

    >>> x = torch.tensor([[[[0.0, 0.2], [0.6, 1.0]]]])
    >>> found, normal = pixels((x - 0.1307) / 0.3081)[0]
    >>> normal, bool(torch.allclose(found, x, atol=1e-6))
    (((0.1307,), (0.3081,)), True)
    """
    fits = list[tuple[Tensor, Normal]]()
    for normal in usual(x.shape[1]):
        mean, std = (_channels(values).to(x) for values in normal)
        image = x * std + mean
        if float(((image - 0.5).abs() > 0.5 + _NEAR).float().mean()) <= _FEW:
            fits.append((image.clamp(0, 1), normal))

    def order(fit: tuple[Tensor, Normal]) -> tuple[float, int, float]:
        image, (mean, _) = fit
        off = float((255 * image - (255 * image).round()).abs().mean())
        return off if off < _GRID else 1.0, -len(mean), -float(image.std())

    fits.sort(key=order)
    low, high = float(x.min()), float(x.max())
    spread = max(high - low, torch.finfo(x.dtype).tiny)
    return [*fits, ((x - low) / spread, ((-low / spread,), (1 / spread,)))]
