"""What the model files share: the shape type, a plain stack of convolutions, and how many features leave it.

Images are [B, C, H, W] float32 in [0, 1]. A stack too deep for the image raises ``ConfigError``.

>>> stack = convolutions(1, [(3, 8, True)], padding=2)
>>> flat_size(stack, (1, 28, 28))
1800
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.core.errors import ConfigError

Shape = tuple[int, int, int]
Conv = tuple[int, int, bool]  # kernel, output channels, max-pool 2x2 afterwards


def convolutions(channels: int, convs: Sequence[Conv], padding: int | None = None) -> nn.Sequential:
    """Convolution, ReLU and perhaps max-pooling, one after another; ``padding`` None keeps height and width."""
    layers: list[nn.Module] = []
    for kernel, width, pool in convs:
        layers += [nn.Conv2d(channels, width, kernel, padding=kernel // 2 if padding is None else padding), nn.ReLU()]
        if pool:
            layers.append(nn.MaxPool2d(2))
        channels = width
    return nn.Sequential(*layers)


def flat_size(features: nn.Module, shape: Shape) -> int:
    """Features per image after ``features``, found by running it on one blank image in evaluation mode."""
    features.eval()
    try:
        with torch.no_grad():
            return features(torch.zeros(1, *shape)).numel()  # type: ignore[no-any-return]
    except RuntimeError:
        raise ConfigError(f"images of {shape[1]}x{shape[2]} are too small for this model") from None
    finally:
        features.train()


@functools.cache
def _frozen(kind: Any) -> Any:
    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        return kind.train(self, False)  # type: ignore[no-any-return]

    return type(kind.__name__, (kind,), {"train": train, "__module__": kind.__module__})


def frozen_norm(module: nn.Module) -> nn.Module:
    """``module`` with batch norm in evaluation mode for good, as those train it who fine-tune a backbone: with the
    statistics that it came with, and not those of the batch.

    >>> frozen_norm(nn.Sequential(nn.BatchNorm1d(2), nn.ReLU())).train()[0].training
    False
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            kind: Any = type(layer)
            layer.__class__ = _frozen(kind)
            layer.eval()
    return module


def dense(sizes: Sequence[int]) -> nn.Sequential:
    """Fully connected layers with ReLU between them, none after the last.

    >>> [type(layer).__name__ for layer in dense([4, 3, 2])]
    ['Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def with_head(features: nn.Sequential, shape: Shape, hidden: Sequence[int], classes: int) -> nn.Sequential:
    """``features``, flattened, into fully connected layers of the ``hidden`` widths and ``classes`` logits."""
    head = dense([flat_size(features, shape), *hidden, classes])
    return nn.Sequential(features, nn.Flatten(), head)
