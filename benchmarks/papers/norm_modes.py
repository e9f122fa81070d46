"""Batch norm in training and in evaluation mode: what is rebuilt of an undefended update, by the kind of network.

Whether gradient inversion works on a network with batch norm is disputed: attacks are mostly shown in evaluation mode,
where images do not mix, and in training mode are said to need networks that are shallow and wide, with skip
connections and normalisation before the activation (arXiv 2508.19819). Here networks of one width, all with skip
connections, stand beside each other that differ in the place of normalisation and in depth, under the portfolio
(without a shadow), for one step of four images.

Running statistics are those after ``WARM`` public images; weights are untrained, labels known. In evaluation
mode the client normalises by them (``frozen_norm``), in training mode by its batch.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from prunella.attacks import portfolio
from prunella.attacks.score.control import matched_view
from prunella.attacks.score.leakage import assign, paired, psnr, ssim
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Settings, declared, each
from prunella.benchmarks.engine.images import chosen_images, class_means, client_images, first, task_of
from prunella.benchmarks.engine.machine import device
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.data import Partition
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import FrozenNormTask, Task, initial

WIDTH, SIDE, RATE, PASSES = 48, 4, 0.1, 2_000
PUBLIC, WARM, BATCHES = 1000, 256, 8  # public images, those that statistics are of, in so many batches
TRAINING, EVALUATION = "training", "evaluation"


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, ``before`` each convolution with its ReLU or after it, beside an
    identity."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        conv: Callable[[], nn.Module] = lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)  # noqa: E731
        norm: Callable[[], list[nn.Module]] = lambda: [nn.BatchNorm2d(WIDTH), nn.ReLU()]  # noqa: E731
        layers = [*norm(), conv(), *norm(), conv()] if before else [conv(), *norm(), conv(), nn.BatchNorm2d(WIDTH)]
        self.body, self.before = nn.Sequential(*layers), before

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x) + x
        return found if self.before else nn.functional.relu(found)


def network(shape: Shape, classes: int, before: bool, depth: int) -> nn.Module:
    stem: list[nn.Module] = [nn.Conv2d(shape[0], WIDTH, 3, stride=2, padding=1, bias=False)]
    stem += [] if before else [nn.BatchNorm2d(WIDTH), nn.ReLU()]
    blocks = [Block(before) for _ in range(depth)]
    head = [nn.AdaptiveAvgPool2d(SIDE), nn.Flatten(), nn.Linear(SIDE**2 * WIDTH, classes)]
    return nn.Sequential(*stem, *blocks, *head)


def before_activation(shape: Shape, classes: int) -> nn.Module:
    """One block, normalised before each convolution."""
    return network(shape, classes, before=True, depth=1)


def after_convolution(shape: Shape, classes: int) -> nn.Module:
    """One block, normalised after each convolution, as ResNets are."""
    return network(shape, classes, before=False, depth=1)


def deeper(shape: Shape, classes: int) -> nn.Module:
    """Four blocks, normalised before each convolution."""
    return network(shape, classes, before=True, depth=4)


BUILDERS = (before_activation, after_convolution, deeper)
NETWORKS = {builder.__name__.replace("_", " "): builder for builder in BUILDERS}


def warmed(task: Task, params: Tree, buffers: Tree, public: Tensor) -> Tree:
    """The running statistics after the public images, a batch at a time."""
    module, found = task.build().train(), {name: tensor.clone() for name, tensor in buffers.items()}
    with torch.no_grad():
        for batch in public.chunk(BATCHES):
            functional_call(module, {**params, **found}, (batch,))
    return found


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: one update of ``batch`` images under the portfolio."""
    name, dataset, size = NETWORKS[settings["network"]].__name__, settings["dataset"], settings["batch"]
    plain = task_of({"model": f"{__name__}:{name}", "dataset": dataset}, data)
    task = FrozenNormTask(plain.model, plain.shape, plain.classes) if settings["norm"] == EVALUATION else plain
    public = first(client_images(dataset, data, Partition("iid", clients=1)), PUBLIC)
    params, buffers = initial(task, seed)
    buffers = warmed(plain, params, buffers, public.x[:WARM])
    shown = chosen_images(dataset, data, seed, size)
    truth = PrivateBatch(shown.x, shown.y)
    known = {"num_examples": size, "labels": truth.y, "steps": 1, "batch_size": size, "learning_rate": RATE}
    view = matched_view(task, ServerView(params, {}, buffers=buffers, received_buffers=buffers, **known), [truth]).on(
        device()
    )
    how = portfolio.Portfolio(passes=settings["passes"])
    found = portfolio.reconstruct(view, task, how, stream(seed, purpose="attack"))
    pictures = {"portfolio": found.x.cpu(), "class mean": class_means(public, task.classes)[truth.y]}
    pairs = {name: paired(truth.x, x, assign(truth.x, x)) for name, x in pictures.items()}
    return {
        name: each([{"psnr": p, "ssim": s} for p, s in zip(psnr(*both), ssim(*both), strict=True)])
        for name, both in pairs.items()
    }


CELLS = tuple(
    {"dataset": "cifar10", "network": name, "norm": norm, "batch": 4, "passes": PASSES}
    for name in NETWORKS
    for norm in (EVALUATION, TRAINING)
)
NORM_MODES: Claim = declared(
    f"""norm-modes | Prunella | docs/attacks.md | what batch norm's mode and the kind of network leave to rebuild
    small: CIFAR-10's test images at untrained weights, {WIDTH} channels at 16 x 16; an update of four images a
    seed; the portfolio with {PASSES} passes and no shadow.""",
    Measure("norm-modes", make),
    "network norm: attack",
    "psnr 1 PSNR in dB; ssim 2 SSIM",
    Plot(("psnr",), split=0),
    None,
    CELLS,
)
