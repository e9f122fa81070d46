"""PriPrune's VGG-4, 6, 9, 11 (METHODS section 9), DGP's VGG11 with batch norm, and CHN's VGG16.

3x3 convolutions with padding 1, ReLU, 2x2 max-pooling, biases. For 3x32x32 and 10 classes: 1,125,642, 1,814,538,
6,436,106 and 9,385,994 parameters as PriPrune prints them, 9,231,114 for DGP's VGG11 (its Table 3: 70.428 MiB both
ways), 134,301,514 for VGG16 (CHN: 1.34e8). PriPrune's text gives VGG-4 one convolution; only two reproduce its count.
VGG16 keeps the ImageNet head, so a 32x32 image's 1x1 features are repeated to 7x7 by the adaptive pooling; its two
dropout layers are left out, because a client's gradient is to be a function of weights and batch alone.
"""

from collections.abc import Sequence

from torch import nn

from prunella.tasks.models.layers import Conv, Shape, convolutions, with_head


def _plan(widths: Sequence[int], pooled: Sequence[int]) -> list[Conv]:
    """3x3 convolutions of these widths; ``pooled`` counts from 1 which ones are followed by pooling."""
    return [(3, width, number in pooled) for number, width in enumerate(widths, start=1)]


def vgg_4(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], _plan([64, 128], [1, 2])), shape, [128], classes)


def vgg_6(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], _plan([64, 128, 256, 512], [1, 2, 3, 4])), shape, [128], classes)


def vgg_9(shape: Shape, classes: int) -> nn.Module:
    plan = _plan([64, 128, 256, 512, 512, 512], [1, 2, 3, 4, 6])
    return with_head(convolutions(shape[0], plan), shape, [256, 128], classes)


_ELEVEN = _plan([64, 128, 256, 256, 512, 512, 512, 512], [1, 2, 4, 6, 8])


def vgg_11(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], _ELEVEN), shape, [256, 128], classes)


def vgg11_bn(shape: Shape, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for layer in convolutions(shape[0], _ELEVEN):
        layers.append(layer)
        if isinstance(layer, nn.Conv2d):
            layers.append(nn.BatchNorm2d(layer.out_channels))
    return with_head(nn.Sequential(*layers), shape, [], classes)


def vgg16(shape: Shape, classes: int) -> nn.Module:
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    features = convolutions(shape[0], _plan(widths, [2, 4, 7, 10, 13]))
    features.append(nn.AdaptiveAvgPool2d(7))
    return with_head(features, shape, [4096, 4096], classes)
