"""SEER (Garov, Dimitrov, Jovanovic, Vechev, ICLR 2024, arXiv 2306.03013): one image of a batch, by a secret decoder.

Threat model: an *active* server with public images of the same kind, which leaves the model's structure as it is and
sends weights that it trained for two ends at once: to classify, and so that a secret linear map of the gradient is
about zero for every image but those with a secret property. Of a batch that has one such image the map of the sum is
that of this image alone, and a secret network makes a picture of it. Only the weights are sent, and they classify,
too: ``client.planted`` notices nothing.

The property: ``statistic`` of the image (its mean brightness) is above ``Decoder.cut``, which one public image in
``batch`` is. Of random batches of that size about 38 % have one image above it; of the others, mixtures come out.

The map is A G, G [out, in] the gradient of the first linear layer's weight and A [rows, out]. For one example
G = slope input^T, so that the sum over a batch is a sum of A slope times the layer's inputs, and what is learnt is

    |decode(A sum G) - x|^2 + ``silence`` mean |A G_other|^2 / mean |A G_x|^2 + ``learning`` cross-entropy,

by Adam, over weights, A and the decoder, with the second derivatives of the loss. ``decode`` first divides by the size
of what it is given, so that neither the batch's size nor the learning rate matters.

Departures: the map's rank is small and it reads one layer (the paper: a random subset of all entries, a full matrix);
the other images are silenced by a ratio; classification is learnt beside it; models with batch norm are refused.

Use: ``plant`` gives the weights and the decoder; ``save`` writes the decoder, whose file ``seer.prior`` names. What it
reads on `lenet`, and what was not learnt: docs/attacks.md. Errors: ``AttackError``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, gelu

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.matching import check_view, target_gradient
from prunella.attacks.engine.prior_file import LARGEST, filled, read_prior, save_prior
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError
from prunella.core.global_draws import draws_from
from prunella.core.trees import Tree
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

NAME = "seer"
_MAKER = "prunella.attacks.seer.plant and save"
_CHOSEN, _OTHERS = 32, 4  # images with the property in a step, others of a batch for each image of it
_SMALL = 1e-12


@dataclass(frozen=True)
class Seer:
    """An active server plants weights that single an image out in a secret projection of the gradient."""

    prior: str = ""  #: file of the secret decoder that was learnt with the weights


@dataclass(frozen=True)
class Planting:
    """How weights and decoder are learnt."""

    batch: Count = 16  #: images in a client's batch, of which one is to have the property
    steps: Count = 1500
    rows: Count = 4  #: of the secret map
    width: Count = 768  #: of the decoder's hidden layer
    learning_rate: Positive = 2e-3
    silence: Positive = 0.01
    learning: Positive = 0.02


class Decoder(nn.Module):
    """The secret map of a gradient [out, in], and the network from there to an image. ``cut``: the least of the
    property's statistic."""

    cut: Tensor

    def __init__(self, shape: Shape, outputs: int, inputs: int, rows: int, width: int) -> None:
        super().__init__()
        self.shape, self.sizes = shape, {"outputs": outputs, "inputs": inputs, "rows": rows, "width": width}
        self.secret = nn.Parameter(torch.randn(rows, outputs) / outputs**0.5)
        self.hidden = nn.Linear(rows * inputs, width)
        self.picture = nn.Linear(width, math.prod(shape))
        self.register_buffer("cut", torch.zeros(()))

    def forward(self, mapped: Tensor) -> Tensor:
        """Images [N, C, H, W], not kept in [0, 1], of mapped gradients [N, rows, in] of any size."""
        flat = mapped.flatten(1)
        size = flat.square().mean(dim=1, keepdim=True).sqrt()
        made: Tensor = self.picture(gelu(self.hidden(flat / (size + _SMALL))))
        return made.view(-1, *self.shape)


def brightness(x: Tensor) -> Tensor:
    """The mean of all values of each image [N]."""
    return x.mean(dim=(1, 2, 3))


def layer_read(module: nn.Module) -> str:
    """The name of the layer whose gradient is read."""
    linear = ((name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear))
    for name, layer in linear:
        if any(each == "weight" for each, _ in layer.named_parameters(recurse=False)):  # under weight norm it is not
            return str(name)
    raise AttackError("seer needs a linear layer in the model: lenet, for one")


def mapped_gradients(module: nn.Module, params: Tree, decoder: Decoder, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The map of each example's gradient [N, rows, in] and the mean cross-entropy, differentiable in all."""
    seen: list[tuple[Tensor, Tensor]] = []
    layer = module.get_submodule(layer_read(module))
    with layer.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out))):
        loss = cross_entropy(functional_call(module, params, (x,)), y, reduction="sum")
    if len(seen) != 1 or seen[0][0].ndim != 2:
        raise AttackError("seer reads a linear layer that is given one row for an image")
    ((inputs, out),) = seen
    (slope,) = torch.autograd.grad(loss, [out], create_graph=True)
    return (slope @ decoder.secret.T)[:, :, None] * inputs[:, None, :], loss / len(x)


def plant(
    module: nn.Module,
    params: Tree,
    public: Examples,
    generator: Generator,
    planting: Planting = Planting(),
    statistic: Callable[[Tensor], Tensor] = brightness,
) -> tuple[Tree, Decoder]:
    """Weights learnt from ``params`` on public images, and the decoder that belongs to them, on the CPU."""
    if any(True for _ in module.buffers()):
        raise AttackError("seer's weights are learnt without batch norm, and this model has buffers: lenet, for one")
    value = statistic(public.x)
    cut = value.quantile(1 - 1 / planting.batch)
    chosen, others = (value > cut).nonzero().flatten(), (value <= cut).nonzero().flatten()
    if len(chosen) < 2 or len(others) < planting.batch:
        raise AttackError(f"{len(public)} public images are too few for batches of {planting.batch}")
    outputs, inputs = params[f"{layer_read(module)}.weight"].shape
    if max(outputs, inputs) > LARGEST:
        raise AttackError(f"the first linear layer is {inputs} wide and gives {outputs}: seer reads up to {LARGEST}")
    shape: Shape = tuple(public.x.shape[1:])  # type: ignore[assignment]
    with draws_from(int(torch.randint(2**31, (1,), generator=generator))):
        decoder = Decoder(shape, outputs, inputs, planting.rows, planting.width)
    decoder.cut.fill_(cut)
    leaves = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    learnt = [*leaves.values(), *decoder.parameters()]
    optimizer = torch.optim.Adam(learnt, planting.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, planting.learning_rate, total_steps=planting.steps)
    for _ in range(planting.steps):
        one = chosen[torch.randint(len(chosen), (_CHOSEN,), generator=generator)]
        number = max(_OTHERS * _CHOSEN, planting.batch - 1)
        rest = others[torch.randint(len(others), (number,), generator=generator)]
        rows = torch.cat([one, rest])
        loss = _loss(module, leaves, decoder, public.take(rows), planting, generator)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        schedule.step()
    return {name: p.detach() for name, p in leaves.items()}, decoder.eval().requires_grad_(False)


def _loss(
    module: nn.Module, params: Tree, decoder: Decoder, shown: Examples, planting: Planting, generator: Generator
) -> Tensor:
    """What is learnt, of ``_CHOSEN`` images with the property and others behind them."""
    mapped, mistaken = mapped_gradients(module, params, decoder, shown.x, shown.y)
    own, other = mapped[:_CHOSEN], mapped[_CHOSEN:]
    beside = torch.rand((len(own), len(other)), generator=generator).argsort(dim=1)[:, : planting.batch - 1]
    found = decoder(own + other[beside].sum(dim=1))
    missed: Tensor = (found - shown.x[:_CHOSEN]).square().mean()
    loud = other.square().mean() / own.square().mean().clamp_min(_SMALL)
    return missed + planting.silence * loud + planting.learning * mistaken


def save(path: Path, decoder: Decoder) -> None:
    save_prior(path, NAME, decoder, decoder.shape, decoder.sizes)


def load(attack: Seer, task: Task) -> Decoder:
    """The decoder for this task's images and model. Raises ``AttackError``."""
    tree, sizes = read_prior(attack.prior, NAME, task.shape, _MAKER)
    module = task.structure()
    weight = dict(module.named_parameters())[f"{layer_read(module)}.weight"]
    fits = sizes.keys() == {"outputs", "inputs", "rows", "width"}
    if not fits or [sizes["outputs"], sizes["inputs"]] != list(weight.shape):
        raise AttackError(f"{Path(attack.prior).name} is a decoder for another model than {task.model}")
    return filled(lambda: Decoder(task.shape, **sizes), tree, attack.prior)


def ready(attack: Seer, task: Task) -> None:
    """Raise ``AttackError`` unless there is a decoder for this task."""
    load(attack, task)


def reconstruct(view: ServerView, task: Task, attack: Seer, generator: Generator) -> Reconstruction:
    """The image [1, C, H, W] with the property, without a label."""
    module = task.build()
    check_view(view, module)
    gradient = target_gradient(view)[f"{layer_read(module)}.weight"]
    decoder = load(attack, task).to(gradient.device)
    mapped = decoder.secret @ gradient
    if not bool(mapped.any()):
        raise AttackError("nothing arrived of the layer that seer reads")
    return Reconstruction(into_box(decoder(mapped[None])), None, 0.0, 1, compared=False)
