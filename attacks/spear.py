"""SPEAR, exact inversion of batches (Dimitrov, Baader, Mueller, Vechev 2024; SPEAR++: Bakarsky et al. 2025).

Threat model: an honest-but-curious server that knows the model and the update. Where the first linear layer of a model,
z = W a + c, is followed by a ReLU, its gradient tells the input ``a`` of every image of the batch, without a descent:
dW = sum_i d_i a_i^T has the rank of the batch, and d_i is zero wherever the ReLU is off for image i.
``attacks.engine.sparse_factors`` takes dW apart; db = sum_i d_i gives each column its size; the class whose loss
gradient at the layer is most like d_i is the image's label. Where nothing lies before the layer, ``a`` is the image.
Otherwise all inputs are matched at once as ``attacks.representation`` matches one: a descent for each image, not one
for their mixture.

Several local steps of plain SGD on a network that begins with the layer are one such sum, over all the images used, and
are taken apart just as well; a ReLU that flips on the way costs little. ``objective`` is one minus SPEAR's score, the
share of units and images for which "d is zero" and "W a + c is at most zero" agree, of the image that agrees least.
Coordinates that did not arrive (masks, DGP, top-k) are filled from the low rank of the rest.

Errors: ``AttackError`` where no ReLU follows the layer, it has no bias, more images were used than the layer's gradient
can tell apart, weight decay or layers before moved over several steps, or too few sparse directions were found.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.objectives import split
from prunella.attacks.engine.outer_products import Reading, first_linear, input_of
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.engine.sparse_factors import candidates, chosen, completed, unmixed, zeros_of
from prunella.attacks.representation import Representation, adapted, match, settings_for
from prunella.core.config import Count
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

_ROUNDING = 2.0**-24  # of a float32 weight, relative: what an update is off at least
_AGREES = 0.98  # score of an image from which on its direction counts as found
_DEVIATIONS = 5.0  # of the rounding: what is above it was sent
_PROBES = 64  # drawn outputs of the layer on which a ReLU behind it is looked for
_FEW = 2.0  # coordinates that must have arrived for each unknown of the two factors


@dataclass(frozen=True)
class Spear(Representation):
    """Takes the gradient of the first linear layer apart, image by image, where a ReLU follows it."""

    rounds: Count = 6  #: most rounds of the search for the directions of the images, each of two starts for an image
    completion_rounds: Count = 100  #: of filling what did not arrive, at most
    max_images: Count = 64  #: images that an update is taken apart into, at most


@dataclass(frozen=True)
class Apart:
    """What the layer was given, ``inputs`` [B, F], the loss gradient behind it, ``slopes`` [B, K], both float64, and
    the ``agreement`` [B] of each image's zeros with the ReLU."""

    inputs: Tensor
    slopes: Tensor
    agreement: Tensor


def slopes_behind(target: Target, layer: str, z: Tensor, y: Tensor, task: Task) -> Tensor:
    """The gradient [N, K] of each loss at the output z [N, K] of ``layer``, for labels y [N]."""
    z = z.detach().to(target.flat.dtype).requires_grad_()
    with target.module.get_submodule(layer).register_forward_hook(lambda *_: z):
        logits = target.logits(z.new_zeros(len(z), *task.shape))
    return torch.autograd.grad(cross_entropy(logits, y, reduction="sum"), z)[0]


def check_relu(target: Target, layer: str, task: Task, generator: Generator) -> None:
    """Raise ``AttackError`` unless the loss gradient at the layer's output is zero exactly where the output is below
    zero, for outputs drawn at random."""
    width = target.params[f"{layer}.weight" if layer else "weight"].shape[0]
    z = torch.randn((_PROBES, width), generator=generator).to(target.flat.device)
    slope = slopes_behind(target, layer, z, torch.zeros(_PROBES, dtype=torch.int64, device=z.device), task)
    if bool(slope[z < 0].any()) or not bool(slope[z > 0].any()):
        raise AttackError(f"spear needs a ReLU right behind the first linear layer, {layer}: nothing else has zeros")


def rank_of(gradient: Tensor, sizes: Tensor, images: int, noise: float) -> int:
    """How many images ``gradient`` [m, n] of these singular values is a sum of: what is above rounding, at most
    ``images``. Units that are off for all and pixels that are black in all tell nothing apart."""
    floor = max(4 * noise * (gradient.shape[0] ** 0.5 + gradient.shape[1] ** 0.5), 1e-6 * float(sizes.max()))
    rank, seen = min(int((sizes > floor).sum()), images), gradient.abs() > _DEVIATIONS * noise
    if not 0 < rank < min(int(seen.any(dim=1).sum()), int(seen.any(dim=0).sum())):
        raise AttackError(f"{rank} images cannot be told apart in a gradient of {tuple(gradient.shape)}")
    return rank


def agreement(weight: Tensor, bias: Tensor, inputs: Tensor, zeros: Tensor) -> Tensor:
    """SPEAR's score of each image, [B]: the share of units that are off, or on, in its slope as in its output; units
    that are off in all slopes are left out."""
    off, live = weight @ inputs.T + bias[:, None] <= 0, ~zeros.all(dim=1)
    return (off == zeros)[live].double().mean(dim=0)


def take_apart(
    gradient: Tensor,
    at_bias: Tensor,
    layer: tuple[Tensor, Tensor],
    images: int,
    rounds: int,
    noise: float,
    g: Generator,
) -> Apart:
    """dW [K, F] and db [K], NaN where it did not arrive, of the ``layer`` (weight, bias), as at most ``images``."""
    sizes, right = torch.linalg.svd(gradient, full_matrices=False)[1:]
    rank = rank_of(gradient, sizes, images, noise)
    left, right = gradient @ right[:rank].T, right[:rank]
    told, q, best = torch.isfinite(at_bias), left.new_zeros((0, rank)), None
    for _ in range(rounds):
        q = chosen(left, torch.cat([q, candidates(left, q, 2 * rank, noise, g)]), noise)
        q = unmixed(left, q, noise)
        if len(q) < rank:
            continue
        sizes = torch.linalg.lstsq((left @ q.T)[told], at_bias[told, None]).solution
        if not bool(sizes.all()):
            continue
        scaled = q * sizes
        inputs, slopes = torch.linalg.solve(scaled.T, right), left @ scaled.T
        zeros = zeros_of(slopes, scaled, noise)
        found = Apart(inputs, slopes.T, agreement(*layer, inputs, zeros))
        if best is None or found.agreement.mean() > best.agreement.mean():
            best = found
        if best.agreement.min() >= _AGREES:
            break
    if best is None:
        raise AttackError(f"{len(q)} of {rank} sparse directions were found: raise spear.rounds")
    return best


def apart_of(view: ServerView, target: Target, layer: str, attack: Spear, generator: Generator) -> Apart:
    """The inputs of ``layer`` in the view, one for each image that left a trace."""
    prefix = f"{layer}." if layer else ""
    names = f"{prefix}weight", f"{prefix}bias"
    if names[1] not in target.params:
        raise AttackError(f"spear needs a bias at {layer}: its gradient is what sizes the images")
    gradient = split(target.flat, target.params)
    weight, bias = (target.params[name].detach().double() for name in names)
    at_weight, at_bias = (gradient[name].double() for name in names)
    arrived = at_weight != 0 if view.shared is None else view.shared[names[0]]
    told = at_bias != 0 if view.shared is None else view.shared[names[1]]
    noise = _ROUNDING * float(weight.square().mean().sqrt()) / ((view.learning_rate or 1.0) * (view.steps or 1))
    gaps = (arrived.any(dim=1)[:, None] & arrived.any(dim=0)) & ~arrived  # where the rest tells of them
    if bool(gaps.any()):
        rank = target.plan.images
        if int(arrived.sum()) < _FEW * rank * sum(at_weight.shape):
            raise AttackError(f"too little of {layer} arrived to fill the rest in for {rank} images")
        at_weight = completed(at_weight, ~gaps, rank, attack.completion_rounds)
    at_bias = torch.where(told, at_bias, torch.nan)
    return take_apart(at_weight, at_bias, (weight, bias), target.plan.images, attack.rounds, noise, generator)


def labels_of(target: Target, layer: str, apart: Apart, task: Task) -> Tensor:
    """For each image the class [B] whose loss gradient at the layer's output is most like its own."""
    weight, bias = (
        target.params[f"{layer}.{part}" if layer else part].detach().double() for part in ("weight", "bias")
    )
    z, alike = apart.inputs @ weight.T + bias, list[Tensor]()
    for label in range(task.classes):
        slope = slopes_behind(target, layer, z, torch.full((len(z),), label, device=z.device), task)
        alike.append(cosine_similarity(slope.double(), apart.slopes, dim=1))
    return torch.stack(alike).argmax(dim=0)


def begins_with(target: Target, layer: str, task: Task, generator: Generator) -> bool:
    """Whether the layer is given the image itself."""
    x = torch.rand((2, *task.shape), generator=generator).to(target.flat.device)
    given = input_of(target, layer, x).detach()
    return given.shape == x.flatten(1).shape and torch.equal(given, x.flatten(1))


def target_for(view: ServerView, module: nn.Module, attack: Spear) -> Target:
    """The view as a problem. Where it tells no number of images, the rank of the gradient does."""
    if view.batch_size is None and view.num_examples is None and view.labels is None:
        view = dataclasses.replace(view, batch_size=attack.max_images)
    if (view.steps or 1) > 1 and view.weight_decay:
        raise AttackError("weight decay over several steps adds to the gradient what no image has")
    return target_of(view, module, attack.mask_aware, attack.max_images)


def reconstruct(
    view: ServerView, task: Task, attack: Spear, generator: Generator, resume: ResumeStore | None = None
) -> Reconstruction:
    """The images [B, C, H, W] and labels [B] of all that left a trace in the first linear layer."""
    module = task.build()
    layer, _ = first_linear(module, task.shape)
    target = target_for(view, module, attack)
    check_relu(target, layer, task, generator)
    first = begins_with(target, layer, task, generator)
    if not first and (view.steps or 1) > 1:
        raise AttackError("spear reads one step where layers lie before the linear one: several steps move them")
    apart = apart_of(view, target, layer, attack, generator)
    labels = labels_of(target, layer, apart, task)
    off = 1 - float(apart.agreement.min())
    if first:
        x = into_box(apart.inputs.reshape(-1, *task.shape).to(target.flat.dtype))
        return Reconstruction(x, labels, off, attack.rounds, explained=off <= 1 - _AGREES)
    dtype = target.flat.dtype
    rows = apart.inputs.to(dtype)
    reading = Reading(rows, torch.ones_like(rows[0]), True, False, apart.slopes.to(dtype))
    plan = dataclasses.replace(target.plan, images=len(rows), batches=(tuple(range(len(rows))),))
    target = dataclasses.replace(target, plan=plan)
    return match(
        adapted(target, layer, reading, task),
        task,
        settings_for(reading, attack),
        labels,
        generator,
        resume or ResumeStore(),
    )
