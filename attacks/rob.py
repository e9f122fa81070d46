"""Rob, Robbing the Fed (Fowl, Geiping, Czaja, Goldblum, Goldstein 2021): an imprint module that copies its inputs.

Threat model: an *active* server. It sends a model with a module of its own in front and otherwise follows the protocol;
it knows roughly how bright the images are, and needs no optimisation. ``privacy.imprint`` is the client's answer: it
refuses such a model before training.

The module is x + decode(relu(encode(x))), encode and decode linear. Every row of encode measures the mean pixel h(x)
and has its own threshold, a quantile of h's distribution; all columns of decode are alike, so every row's gradient has
the same factor delta(x) for an image that passed its threshold. The difference of two neighbouring rows' gradients is
then sum delta(x) x over the images whose brightness lies between the two thresholds, that of the biases' sum delta(x),
and where one image is alone in its bin their ratio is that image. Of B images in k even bins, (1 - 1/k)^(B - 1) are.

Use: ``model = "prunella.attacks.rob:cnn"`` (or cnn6, lenet_zhu, resnet18), then the attack ``rob`` on the view of one
step. The server chooses the module's scale, too: with encode times ``AMPLIFIED`` and decode divided by it the model
is the same function, bit by bit, and the gradient of encode 2^20 times as large (``amplified_cnn``,
``amplified_resnet18``). Noise of a fixed deviation, without clipping, is nothing beside that. The authors' code scales
alike: decode is 1 / gain everywhere, with gains of 1 and 1e-3, where it is of size 1 / k here.

A client that sends the largest fifth of every layer's gradient only (``top-k``) sends all of it where four rows of five
never fire (``sparse_cnn``), and one that leaves out the largest, too (``dgp``), where some rows are there to be left
out (``shielded_cnn``). Ours, and obvious to whoever knows the rule: pruning by size hides nothing from a server that
chooses the sizes.

Departures: the module stands beside an identity, so that the model behind it still learns. Errors: ``AttackError``
where the model has no such module.

>>> thresholds(3, 0.5, 0.1).tolist()
[0.4325510..., 0.5, 0.5674489...]
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import relu

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.label_inference import label_candidates
from prunella.attacks.engine.matching import target_gradient, target_of
from prunella.core.config import Positive
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models import MODELS, Builder
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

ENCODE = "imprint.encode"
BINS = 512
AMPLIFIED = 2.0**-20
_ALIKE = 0.01  # rows that differ by less, relatively, sent the same
LOUD = 2.0**-6  # of the gain of the others: the gradient of a loud row is 64 times as large
BRIGHTNESS = {1: (0.13, 0.06), 3: (0.47, 0.13)}  # mean and deviation of an image's mean pixel: MNIST, CIFAR-10


@dataclass(frozen=True)
class Rob:
    """An active server plants a module that copies its inputs."""

    least: Positive = 1e-4  #: a bin counts as filled when its share of the largest is at least this


def thresholds(bins: int, mean: float, deviation: float) -> Tensor:
    """Even quantiles of a normal distribution, ascending, float64."""
    levels = torch.arange(1, bins + 1, dtype=torch.float64) / (bins + 1)
    cuts: Tensor = mean + deviation * torch.special.ndtri(levels)
    return cuts


class Rows(NamedTuple):
    """Shares of encode's rows: those that measure, and ``loud`` ones, which always fire and take what a defense prunes
    for its size upon themselves. All others never fire, and their zeros are what is pruned as small. ``alike`` rows
    share a threshold: what they do not send alike was made up."""

    live: float = 1.0
    loud: float = 0.0
    alike: int = 1


PLAIN = Rows()


class Imprint(nn.Module):
    """x [B, C, H, W] + decode(relu(encode(x))) with planted weights; encode may see ``copies`` of the image's size, of
    which all but one are empty (``attacks.loki``). encode is ``gain`` times as large, decode as much smaller."""

    def __init__(
        self,
        shape: Shape,
        bins: int,
        mean: float,
        deviation: float,
        copies: int = 1,
        gain: float = 1.0,
        rows: Rows = PLAIN,
    ) -> None:
        super().__init__()
        pixels, live, loud = shape[0] * shape[1] * shape[2], round(bins * rows.live), round(bins * rows.loud)
        self.encode, self.decode = nn.Linear(copies * pixels, bins), nn.Linear(bins, pixels)
        gains, cuts = torch.zeros(bins), torch.full((bins,), float(mean + 100 * deviation))
        gains[:loud], cuts[:loud] = gain * LOUD, -1.0
        measured = thresholds(live // rows.alike, mean, deviation).float().repeat_interleave(rows.alike)
        gains[loud : loud + len(measured)], cuts[loud : loud + len(measured)] = gain, measured
        with torch.no_grad():
            self.encode.weight.copy_((gains / pixels)[:, None])
            self.encode.bias.copy_(-cuts * torch.where(gains > 0, gains, gain))
            self.decode.weight.copy_(torch.randn(pixels, 1).expand(-1, bins) / bins)
            self.decode.weight.div_(torch.where(gains > 0, gains, gain))
            self.decode.bias.zero_()

    def shift(self, x: Tensor) -> Tensor:
        """decode(relu(encode(x))), [B, C H W]."""
        found: Tensor = self.decode(relu(self.encode(x.flatten(1))))
        return found

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift(x).view_as(x)


def imprinted(
    base: str, brightness: tuple[float, float] | None = None, gain: float = 1.0, rows: Rows = PLAIN, bins: int = BINS
) -> Builder:
    """The builder of ``base`` behind an imprint module for images of this (mean, deviation) of the mean pixel."""

    def build(shape: Shape, classes: int) -> nn.Module:
        mean, deviation = brightness or BRIGHTNESS.get(shape[0], (0.5, 0.2))
        front = Imprint(shape, bins, mean, deviation, gain=gain, rows=rows)
        return nn.Sequential(OrderedDict([("imprint", front), ("model", MODELS[base](shape, classes))]))

    return build


cnn, cnn6, lenet_zhu, resnet18 = (imprinted(base) for base in ("cnn", "cnn6", "lenet-zhu", "resnet18"))
amplified_cnn, amplified_resnet18 = (imprinted(base, gain=AMPLIFIED) for base in ("cnn", "resnet18"))
sparse_cnn = imprinted("cnn", gain=AMPLIFIED, rows=Rows(0.18, alike=2), bins=2 * BINS)
shielded_cnn = imprinted("cnn", gain=AMPLIFIED, rows=Rows(0.12, loud=0.12, alike=2), bins=2 * BINS)


def bins_of(rows: Tensor, biases: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Per bin, dimmest first: sum delta(x) x, [k, d], and sum delta(x), [k], from the gradients of encode.

    Above the last threshold nothing is subtracted.
    """
    rows, biases = rows[order].double(), biases[order].double()
    return rows - torch.cat([rows[1:], rows.new_zeros((1, rows.shape[1]))]), biases - torch.cat(
        [biases[1:], biases.new_zeros(1)]
    )


def agreed(weights: Tensor, biases: Tensor, slopes: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of encode's rows [k, d] and biases [k] that measure, one of those that were planted alike, and their
    order, dimmest first. Where these did not send alike, a defense made something up: there nothing was sent."""
    sizes = weights.amax(dim=1)
    live = (sizes > sizes.max() / 2).nonzero().flatten()  # a round of training moves them a little
    order = live[biases[live].argsort(descending=True, stable=True)]  # the bias is minus the threshold
    alike = int((biases[order] == biases[order[0]]).sum())
    alike = 1 if len(order) % alike else alike
    kept = []
    for sent in (slopes, shifts):
        found = sent[order].reshape(-1, alike, *sent.shape[1:])
        low, high = found.amin(dim=1), found.amax(dim=1)
        kept.append(torch.where(high - low <= _ALIKE * torch.maximum(high.abs(), low.abs()), found.mean(dim=1), 0.0))
    return kept[0], kept[1], torch.arange(len(kept[1]), device=order.device)


def reconstruct(view: ServerView, task: Task, attack: Rob, generator: Generator) -> Reconstruction:
    """The images [N, C, H, W] of the best filled bins, at most as many as were trained on. Images that share a bin come
    out as a blend; one that is dimmer than every threshold does not come out."""
    module = task.build()
    weight, bias = f"{ENCODE}.weight", f"{ENCODE}.bias"
    if weight not in view.update or bias not in view.update:
        raise AttackError("rob needs its imprint module in the model: model = 'prunella.attacks.rob:cnn', for one")
    target = target_of(view, module, False, view.images_used or 1)
    gradient = target_gradient(view)
    sums, deltas = bins_of(*agreed(view.params[weight], view.params[bias], gradient[weight], gradient[bias]))
    filled = (deltas.abs() >= attack.least * deltas.abs().max()) & (deltas != 0)
    if not bool(filled.any()):
        raise AttackError("no image left a trace in the imprint module")
    best = torch.where(filled, deltas.abs(), 0).topk(min(int(filled.sum()), target.plan.images)).indices
    x = into_box((sums[best] / deltas[best, None]).reshape(-1, *task.shape).float())
    labels = view.labels
    if labels is None:
        labels = next(
            y for y in label_candidates(target, task, view.learning_rate is not None, generator) if y is not None
        )
    return Reconstruction(x, labels[: len(x)], 0.0, 1, compared=False)
