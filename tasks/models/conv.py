"""PriPrune's Conv-1, 2, 4, 6 (LEAF's FEMNIST network and its relatives), METHODS section 9.

ReLU, max-pooling, biases, no batch norm. For 1x28x28 and 62 classes: 3,815,566, 6,603,710, 13,657,406 and
25,324,350 parameters, as printed. The paper gives counts only; layers were recovered from them. Where Conv-4 and
Conv-6 pool is not determined by the counts beyond the size they end with (5x5 and 3x3), so the places are ours.
"""

from torch import nn

from prunella.tasks.models.layers import Conv, Shape, convolutions, with_head

HIDDEN = 2048
_FIRST: list[Conv] = [(5, 32, True), (5, 64, True)]


def conv_1(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], [(3, 8, True)], padding=2), shape, [HIDDEN], classes)


def conv_2(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], _FIRST, padding=2), shape, [HIDDEN], classes)


def conv_4(shape: Shape, classes: int) -> nn.Module:
    rest: list[Conv] = [(3, 128, False), (3, 256, True)]
    return with_head(convolutions(shape[0], _FIRST + rest, padding=2), shape, [HIDDEN], classes)


def conv_6(shape: Shape, classes: int) -> nn.Module:
    rest: list[Conv] = [(3, 128, True), (3, 256, True), (3, 512, False), (3, 1024, True)]
    return with_head(convolutions(shape[0], _FIRST + rest, padding=2), shape, [HIDDEN], classes)
