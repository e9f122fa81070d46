"""What the model files share: the shape type, a plain stack of convolutions, and how many features leave it.

Images are [B, C, H, W] float32 in [0, 1]. A stack too deep for the image raises ``ConfigError``.

>>> stack = convolutions(1, [(3, 8, True)], padding=2)
>>> flat_size(stack, (1, 28, 28))
1800
"""

from collections.abc import Sequence

import torch
from torch import nn

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
