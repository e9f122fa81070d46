"""Fishing for user data in large batches (Wen, Geiping, Fowl, Goldblum, Goldstein, ICML 2022, arXiv 2202.00580).

Threat model: an *active* server that leaves the model's structure as it is and plants weights in the last layer only.
Class fishing: with the rows of all classes but c zero and their biases large, the probability of c is about nothing,
and the gradient at the last layer's input, W^T (p - e_y), is -w_c for an image of class c and zero for any other. So
the update of everything before the last layer, and of its row c, is that of the images of class c as if nobody else had
been in the batch. They are then inverted as an honest server inverts a small batch (``attacks.sgi``); the gradient of
c's bias says how many there are. ``client.planted`` is the client's answer.

Use: ``model = "prunella.attacks.fishing:cnn"`` (or lenet_zhu), for class 0; ``plant`` takes any class and weights. On
`cnn` untrained, the one image of its class in a batch of 16 came back at 57 to 65 dB (two of MNIST, two of CIFAR-10,
seed 0), on `lenet-zhu` at 24 dB (two of CIFAR-10); three of one class in a batch of 64 did not (13 dB).

Departure: feature fishing, which tells images of one class apart by the size of a feature, is left out. Errors:
``AttackError`` where the last layer does not look planted, or where nobody has the class.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Generator, nn

from prunella.attacks.engine import inversion
from prunella.attacks.engine.label_inference import last_linear
from prunella.attacks.engine.matching import target_gradient
from prunella.attacks.sgi import Sgi
from prunella.core.errors import AttackError
from prunella.core.trees import Tree, full_mask, scale
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models import MODELS, Builder
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

QUIET = 1000.0  # bias of the classes that nobody fishes for (the paper's alpha)


@dataclass(frozen=True)
class Fishing(Sgi):
    """An active server silences all classes but one, and inverts what is left."""


def plant(module: nn.Module, params: Tree, classes: int, wanted: int) -> Tree:
    """The params with a last layer that hears class ``wanted`` only."""
    layer = last_linear(module, classes)
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    rows, shifts = torch.zeros_like(params[weight]), torch.full_like(params[bias], QUIET)
    rows[wanted], shifts[wanted] = params[weight][wanted], 0
    return {**params, weight: rows, bias: shifts}


def planted(base: str) -> Builder:
    """The builder of ``base`` that fishes for class 0."""

    def build(shape: Shape, classes: int) -> nn.Module:
        module = MODELS[base](shape, classes)
        weights = plant(module, {name: p.detach() for name, p in module.named_parameters()}, classes, 0)
        module.load_state_dict(weights, strict=False)
        return module

    return build


cnn, lenet_zhu = (planted(base) for base in ("cnn", "lenet-zhu"))


def caught(view: ServerView, task: Task) -> tuple[ServerView, int]:
    """What the images of the wanted class would have sent alone, and how many there are."""
    layer = last_linear(task.build(), task.classes)
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    rows = view.params[weight].abs().sum(dim=1).nonzero().flatten()
    if len(rows) != 1:
        raise AttackError("fishing needs its last layer in the model: model = 'prunella.attacks.fishing:cnn', for one")
    wanted, batch = int(rows), view.images_used or 1
    count = round(-float(target_gradient(view)[bias][wanted]) * batch)
    if count < 1:
        raise AttackError("no image of the class that was fished for is in the batch")
    shared = full_mask(view.params) if view.shared is None else dict(view.shared)
    for name in (weight, bias):
        kept = torch.zeros_like(shared[name])
        kept[wanted] = shared[name][wanted]
        shared[name] = kept
    alone = dataclasses.replace(
        view,
        update=scale(view.update, batch / count),
        shared=shared,
        num_examples=count,
        batch_size=count,
        labels=torch.full((count,), wanted, device=rows.device),
    )
    return alone, count


def reconstruct(view: ServerView, task: Task, attack: Fishing, generator: Generator) -> Reconstruction:
    """The images [n, C, H, W] of the wanted class, and their labels."""
    alone, _ = caught(view, task)
    return inversion.reconstruct(alone, task, attack, generator)
