"""ResNet-10 and ResNet-18 for small images (He et al., 2016): 3x3 stem, no first pooling, batch norm.

For 3x32x32 and 10 classes: 4,903,242 (CHN: 4.90e6) and 11,173,962 parameters (DGP Table 3: 85.251 MiB both ways).
The residual is added out of place, since per-sample gradients and double backward need the summands intact.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from prunella.tasks.models.layers import Shape

WIDTHS = (64, 128, 256, 512)


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside an identity, or beside a 1x1 convolution where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv_norm(inputs, outputs, 3, stride), nn.ReLU(), _conv_norm(outputs, outputs, 3, 1))
        same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def _resnet(shape: Shape, classes: int, blocks: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = [_conv_norm(shape[0], WIDTHS[0], 3, 1), nn.ReLU()]
    inputs = WIDTHS[0]
    for stage, (width, count) in enumerate(zip(WIDTHS, blocks, strict=True)):
        for block in range(count):
            layers.append(BasicBlock(inputs, width, 2 if stage and not block else 1))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet10(shape: Shape, classes: int) -> nn.Module:
    return _resnet(shape, classes, (1, 1, 1, 1))


def resnet18(shape: Shape, classes: int) -> nn.Module:
    return _resnet(shape, classes, (2, 2, 2, 2))
