"""Two networks called LeNet: Zhu's for gradient attacks, and LeNet-5.

``lenet_zhu``: three 5x5 convolutions of 12 channels, sigmoid, strides 2, 2, 1 (Zhu et al., Deep Leakage from
Gradients, 2019; DGP). Sigmoids make it twice differentiable, so second-order attacks work. 15,826 parameters for
3x32x32 and 10 classes (DGP Table 3: 0.121 MiB both ways).
DLG's own code draws all its weights from U(-0.5, 0.5); the attack depends on it, training does not mind.
``lenet``: LeNet-5 with ReLU and max-pooling, 62,006 parameters for 3x32x32 and 10 classes (CHN: 6.20e4).
"""

from torch import nn

from prunella.tasks.models.layers import Shape, convolutions, with_head

ZHU_RANGE = 0.5


def lenet_zhu(shape: Shape, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, stride in ((shape[0], 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(channels, 12, 5, stride=stride, padding=2), nn.Sigmoid()]
    model = with_head(nn.Sequential(*layers), shape, [], classes)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -ZHU_RANGE, ZHU_RANGE)
    return model


def lenet(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], [(5, 6, True), (5, 16, True)], padding=0), shape, [120, 84], classes)
