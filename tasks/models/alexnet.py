"""AlexNet at 32x32 (CHN: 3.59e7 parameters).

The paper gives the count only. AlexNet's five convolutions (64, 192, 384, 256, 256) as 3x3 with padding 1, pooled
after the first, second and fifth, end at 256x4x4, and with the usual 4096-4096 head have 35,855,178 parameters for
3x32x32 and 10 classes; a 5x5 second convolution would print as 3.61e7. Dropout is left out, because a client's
gradient is to be a function of weights and batch alone.
"""

from torch import nn

from prunella.tasks.models.layers import Conv, Shape, convolutions, with_head

PLAN: list[Conv] = [(3, 64, True), (3, 192, True), (3, 384, False), (3, 256, False), (3, 256, True)]


def alexnet(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], PLAN), shape, [4096, 4096], classes)
