"""Models by name. A builder takes the image shape (C, H, W) and the number of classes."""

from collections.abc import Callable

from torch import nn

from prunella.tasks.models.alexnet import alexnet
from prunella.tasks.models.cnn import cnn, cnn_bn
from prunella.tasks.models.cnn6 import cnn6
from prunella.tasks.models.conv import conv_1, conv_2, conv_4, conv_6
from prunella.tasks.models.layers import Shape
from prunella.tasks.models.lenet import lenet, lenet_zhu
from prunella.tasks.models.ltp import ltp_1, ltp_2
from prunella.tasks.models.precode import with_bottleneck
from prunella.tasks.models.resnet import resnet10, resnet18
from prunella.tasks.models.vgg import vgg11_bn, vgg16, vgg_4, vgg_6, vgg_9, vgg_11
from prunella.tasks.models.vit import vit

Builder = Callable[[Shape, int], nn.Module]

MODELS: dict[str, Builder] = {
    "cnn": cnn,
    "cnn-bn": cnn_bn,
    "conv-1": conv_1,
    "conv-2": conv_2,
    "conv-4": conv_4,
    "conv-6": conv_6,
    "vgg-4": vgg_4,
    "vgg-6": vgg_6,
    "vgg-9": vgg_9,
    "vgg-11": vgg_11,
    "vgg11-bn": vgg11_bn,
    "lenet-zhu": lenet_zhu,
    "lenet": lenet,
    "cnn6": cnn6,
    "alexnet": alexnet,
    "vgg16": vgg16,
    "resnet10": resnet10,
    "resnet18": resnet18,
    "vit": vit,
    "ltp-1": ltp_1,
    "ltp-2": ltp_2,
    "precode-cnn": with_bottleneck(cnn),
    "precode-cnn-bn": with_bottleneck(cnn_bn),
    "precode-lenet": with_bottleneck(lenet),
    "precode-lenet-zhu": with_bottleneck(lenet_zhu),
    "precode-resnet18": with_bottleneck(resnet18),
}
