"""Fed-LTP's models 1 and 2 (LTP section on experiments; METHODS section 7).

No padding, ReLU, 2x2 max-pooling after each convolution. For 1x28x28 and 10 classes model 1 flattens to 320 features
and model 2 to 1600; model 2's 843,658 parameters give DP-Fed's published 64.36 MiB exactly.
"""

from torch import nn

from prunella.tasks.models.layers import Shape, convolutions, with_head


def ltp_1(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], [(5, 10, True), (5, 20, True)], padding=0), shape, [320], classes)


def ltp_2(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], [(3, 32, True), (3, 64, True)], padding=0), shape, [512], classes)
