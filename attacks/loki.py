"""LOKI (Zhao, Sharma, Elkordy, Ezzeldin, Avestimehr, Bagchi 2023, arXiv 2303.12233): one client's images out of a sum.

Threat model: an *active* server behind secure aggregation, which sees only the mean of all updates. It puts a
convolution and an imprint module (``attacks.rob``) in front of the model and sends every client a convolution of its
own: client i's copies the image into the i-th group of channels and leaves the others empty (``for_client``). The
gradient of an imprint row with respect to the i-th group's columns then holds client i's images alone, whoever else is
in the sum. ``client.planted`` is the client's answer.

A bias's gradient is the sum over all clients, so it cannot scale the image, as in Rob. What can is the bin: the row
measures the mean pixel, and an image alone between two thresholds has a mean pixel between them.

Use: ``model = "prunella.attacks.loki:cnn"`` (or conv_2, lenet_zhu, and ``amplified_cnn``, whose gradient outlasts noise
as Rob's does); the view's ``params`` say whose images are wanted.

Of three clients with 16 images each, 47 of 48 images of MNIST (`cnn`) and 48 of 48 of CIFAR-10 (`lenet-zhu`) came out
of the mean of their updates above 20 dB, seed 0.

Departures: the scale is read off the bin; the module stands beside an identity, as Rob's does. Errors: ``AttackError``
where the model has no such module.

>>> torch.nn.Conv2d(1, 2, 3).weight.shape, for_client({KERNEL: torch.zeros(2, 1, 3, 3)}, 1)[KERNEL][:, 0, 1, 1]
(torch.Size([2, 1, 3, 3]), tensor([0., 1.]))
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.matching import target_gradient, target_of
from prunella.attacks.rob import AMPLIFIED, BRIGHTNESS, Imprint, bins_of
from prunella.core.config import Positive
from prunella.core.errors import AttackError
from prunella.core.trees import Tree
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models import MODELS, Builder
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

KERNEL, ENCODE = "loki.split.weight", "loki.imprint.encode"
CLIENTS = 4  # groups of channels
BINS = 512


@dataclass(frozen=True)
class Loki:
    """An active server plants a convolution that differs from client to client, and a module that copies its inputs."""

    least: Positive = 1e-3  #: a bin counts as filled when its share of the largest is at least this


class Split(nn.Module):
    """x [B, C, H, W] + imprint(split(x)), split a convolution into ``CLIENTS`` groups of C channels."""

    def __init__(self, shape: Shape, mean: float, deviation: float, gain: float = 1.0) -> None:
        super().__init__()
        self.split = nn.Conv2d(shape[0], CLIENTS * shape[0], 3, padding=1, bias=False)
        self.imprint = Imprint(shape, BINS, mean, deviation, copies=CLIENTS, gain=gain)
        with torch.no_grad():
            self.split.weight.copy_(for_client({KERNEL: self.split.weight.detach()}, 0)[KERNEL])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.imprint.shift(self.split(x)).view_as(x)


def for_client(params: Tree, client: int) -> Tree:
    """The model for ``client``, from 0: its convolution fills only its own group of channels."""
    kernel = torch.zeros_like(params[KERNEL])
    channels = kernel.shape[1]
    groups = kernel.shape[0] // channels
    if not 0 <= client < groups:
        raise AttackError(f"loki's model tells {groups} clients apart, there is no client {client}")
    own = torch.arange(channels)
    kernel[client * channels + own, own, kernel.shape[2] // 2, kernel.shape[3] // 2] = 1
    return {**params, KERNEL: kernel}


def split(base: str, gain: float = 1.0) -> Builder:
    """The builder of ``base`` behind LOKI's module for ``CLIENTS`` clients, its kernels those of client 0."""

    def build(shape: Shape, classes: int) -> nn.Module:
        front = Split(shape, *BRIGHTNESS.get(shape[0], (0.5, 0.2)), gain)
        return nn.Sequential(OrderedDict([("loki", front), ("model", MODELS[base](shape, classes))]))

    return build


cnn, conv_2, lenet_zhu = (split(base) for base in ("cnn", "conv-2", "lenet-zhu"))
amplified_cnn = split("cnn", AMPLIFIED)


def reconstruct(view: ServerView, task: Task, attack: Loki, generator: Generator) -> Reconstruction:
    """The images [N, C, H, W] of the client that ``view.params`` was sent to, out of an update summed or averaged over
    clients; at most as many as it trained on, without labels."""
    weight, bias = f"{ENCODE}.weight", f"{ENCODE}.bias"
    if not {KERNEL, weight, bias} <= view.update.keys():
        raise AttackError("loki needs its module in the model: model = 'prunella.attacks.loki:cnn', for one")
    target = target_of(view, task.build(), False, view.images_used or 1)
    gradient, pixels = target_gradient(view), task.shape[0] * task.shape[1] * task.shape[2]
    kernel = view.params[KERNEL]
    client = int(kernel.flatten(1).abs().sum(dim=1).argmax()) // kernel.shape[1]
    own = gradient[weight][:, client * pixels : (client + 1) * pixels]
    order = view.params[bias].argsort(descending=True)  # the bias is minus the threshold
    sums, _ = bins_of(own, gradient[bias], order)
    size = sums.norm(dim=1)
    filled = size > attack.least * size.max()
    if not bool(filled.any()):
        raise AttackError("no image left a trace in loki's module")
    best = torch.where(filled, size, 0).topk(min(int(filled.sum()), target.plan.images)).indices
    gain = float(view.params[weight].max()) * pixels
    cuts = -view.params[bias][order].double() / gain
    middle = (cuts + torch.cat([cuts[1:], cuts[-1:]])) / 2
    x = sums[best] * (middle[best] / sums[best].mean(dim=1))[:, None]
    return Reconstruction(into_box(x.reshape(-1, *task.shape).float()), None, 0.0, 1, compared=False)
