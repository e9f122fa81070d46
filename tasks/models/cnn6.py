"""CNN6 of R-GAP (Zhu and Blaschko, 2021; DGP): six convolutions and one linear layer, no biases.

LeakyReLU(0.2) is invertible and nothing pools, so the recursive attack can solve layer by layer. 154,256 parameters
for 3x32x32 and 10 classes, which is DGP Table 3's 1.177 MiB both ways.
"""

from torch import nn

from prunella.tasks.models.layers import Shape, flat_size

SLOPE = 0.2
# output channels, kernel, stride, padding
LAYERS = ((12, 4, 2, 2), (36, 3, 2, 1), (36, 3, 1, 1), (36, 3, 1, 1), (64, 3, 2, 1), (128, 3, 1, 1))


def cnn6(shape: Shape, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = shape[0]
    for width, kernel, stride, padding in LAYERS:
        layers.append(nn.Conv2d(channels, width, kernel, stride=stride, padding=padding, bias=False))
        layers.append(nn.LeakyReLU(SLOPE))
        channels = width
    features = nn.Sequential(*layers)
    return nn.Sequential(features, nn.Flatten(), nn.Linear(flat_size(features, shape), classes, bias=False))
