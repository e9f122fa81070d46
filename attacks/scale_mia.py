"""Scale-MIA (Shi, Kotevska, Reshniak, Singh, Raskar 2023, arXiv 2311.05808): latent codes by an imprint, then images.

Threat model: an *active* server that leaves the model's structure as it is and plants weights only. The layers before
the first linear one are the encoder. That layer's rows all measure the mean of the encoder's output and have thresholds
of their own, the next linear layer's columns are alike, so that neighbouring rows' gradients differ by single images'
latent codes (``attacks.rob``). Each code is then decoded into its image. ``client.planted`` is the client's answer.

Use: ``model = "prunella.attacks.scale_mia:conv_2"``, which plants into a fresh model with noise in
place of images; ``plant`` takes public images and any weights. An update is a difference of float32 weights, and beside
weights as large as these codes lose digits in it. ``amplified_conv_2`` is the same function with the imprint 2^20 times
smaller (``attacks.rob``), which keeps the digits and outlasts noise of a fixed deviation.

Departures: the paper trains a decoder on public images. This one descends, for every code a alone, on

    |f(x) - a|^2 / |a|^2 + tv TV(x),  f the encoder,

by L-BFGS, which needs no public images and no training. On `conv-2`, seed 0, all of a batch of 16 images of MNIST came
back above 94 dB; of CIFAR-10, whose codes decode worse, ten above 15 dB, the best at 21.

Errors: ``AttackError`` for a model without two linear layers, or where no image left a trace.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from prunella.attacks.engine.image_priors import into_box, total_variation
from prunella.attacks.engine.matching import Target, target_gradient, target_of
from prunella.attacks.engine.outer_products import input_of
from prunella.attacks.rob import AMPLIFIED, BRIGHTNESS, bins_of
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models import MODELS, Builder
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

_CALIBRATION = 256  # images of noise that the thresholds are fitted to


@dataclass(frozen=True)
class ScaleMia:
    """An active server plants weights that copy latent codes, and decodes these."""

    least: Positive = 1e-4  #: a bin counts as filled when its share of the largest is at least this
    iterations: Count = 150  #: of the descent that decodes
    tv: Positive = 1e-5  #: weight of the images' total variation


def linear_layers(module: nn.Module) -> tuple[str, str]:
    """Names of the first two linear layers, between which the imprint stands."""
    names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if len(names) < 2:
        raise AttackError("scale-mia needs two linear layers: conv-2, for one")
    return names[0], names[1]


def _codes(module: nn.Module, params: Tree, buffers: Tree, layer: str, x: Tensor) -> Tensor:
    """The encoder's output [N, F]: what ``layer`` is given."""
    seen: list[Tensor] = []
    hook = module.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with hook, torch.no_grad():
        functional_call(module, ({n: p.detach() for n, p in params.items()}, dict(buffers)), (x,))
    return seen[0]


def plant(module: nn.Module, params: Tree, buffers: Tree, public: Tensor, gain: float = 1.0) -> Tree:
    """The params with an imprint in the first linear layer, its thresholds at quantiles of the codes of ``public``
    [N, C, H, W]. That layer is ``gain`` times as large and the next one as much smaller: the same function."""
    first, second = linear_layers(module)
    codes = _codes(module, params, buffers, first, public)
    bins, size = params[f"{first}.weight"].shape
    means = codes.double().mean(dim=1)
    cuts = torch.quantile(means, torch.arange(1, bins + 1, dtype=torch.float64) / (bins + 1))
    scale = gain / means.std()
    columns = params[f"{second}.weight"]
    like = columns[:, :1].sign() * columns.abs().mean() / bins * 16 / gain
    return {
        **params,
        f"{first}.weight": torch.full_like(params[f"{first}.weight"], float(scale) / size),
        f"{first}.bias": (-cuts * scale).to(params[f"{first}.bias"]),
        f"{second}.weight": like.expand_as(columns).clone(),
    }


def noise_images(shape: Shape, count: int, generator: Generator) -> Tensor:
    """[count, C, H, W]: noise about as bright as images are."""
    mean, deviation = BRIGHTNESS.get(shape[0], (0.5, 0.2))
    level = mean + deviation * torch.randn((count, 1, 1, 1), generator=generator)
    return (level + 0.25 * torch.randn((count, *shape), generator=generator)).clamp(0, 1)


def planted(base: str | Builder, gain: float = 1.0) -> Builder:
    """The builder of ``base`` with planted weights."""

    def build(shape: Shape, classes: int) -> nn.Module:
        module = MODELS[base](shape, classes) if isinstance(base, str) else base(shape, classes)
        params = {name: p.detach() for name, p in module.named_parameters()}
        public = noise_images(shape, _CALIBRATION, stream(0, purpose="scale-mia"))
        weights = plant(module, params, dict(module.named_buffers()), public, gain)
        module.load_state_dict(weights, strict=False)
        return module

    return build


conv_2, amplified_conv_2 = planted("conv-2"), planted("conv-2", AMPLIFIED)


def codes_of(view: ServerView, task: Task, attack: ScaleMia, images: int) -> Tensor:
    """The codes [N, F] of the best filled bins."""
    first, _ = linear_layers(task.build())
    gradient = target_gradient(view)
    order = view.params[f"{first}.bias"].argsort(descending=True)
    sums, deltas = bins_of(gradient[f"{first}.weight"], gradient[f"{first}.bias"], order)
    filled = (deltas.abs() >= attack.least * deltas.abs().max()) & (deltas != 0)
    if not bool(filled.any()):
        raise AttackError("no image left a trace in the first linear layer")
    best = torch.where(filled, deltas.abs(), 0).topk(min(int(filled.sum()), images)).indices
    return (sums[best] / deltas[best, None]).float()


def decode(encoder: Callable[[Tensor], Tensor], codes: Tensor, shape: Shape, attack: ScaleMia) -> Tensor:
    """The images [N, C, H, W] whose codes are ``codes``: all descend at once, each on its own distance."""
    x = torch.full((len(codes), *shape), 0.5, device=codes.device).requires_grad_()
    sizes = codes.pow(2).sum(dim=1).clamp_min(torch.finfo(codes.dtype).tiny)
    optimizer = torch.optim.LBFGS([x], max_iter=attack.iterations, line_search_fn="strong_wolfe", history_size=20)

    def distance() -> Tensor:
        optimizer.zero_grad()
        missed: Tensor = ((encoder(x) - codes).pow(2).sum(dim=1) / sizes).sum()
        loss = missed + attack.tv * len(x) * total_variation(x)[0]
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(distance)  # type: ignore[no-untyped-call]
    return into_box(x.detach())


def reconstruct(view: ServerView, task: Task, attack: ScaleMia, generator: Generator) -> Reconstruction:
    """The images [N, C, H, W] of the best filled bins, at most as many as were trained on, without labels."""
    target: Target = target_of(view, task.build(), False, view.images_used or 1)
    layer, _ = linear_layers(target.module)
    codes = codes_of(view, task, attack, target.plan.images)
    x = decode(lambda guess: input_of(target, layer, guess), codes, task.shape, attack)
    return Reconstruction(x, None, 0.0, attack.iterations, compared=False)
