"""APRIL, the closed form for vision transformers (Lu, Zhang, Zhao, Zhang, Liao, CVPR 2022, arXiv 2112.14087).

Threat model: an honest-but-curious server that knows the model and the update of one step on one image. A learnt
position embedding is added to the tokens, so its gradient is the loss gradient D [n, d] at the n tokens themselves. The
patch embedding makes the tokens of the patches X [n, p] and has the weight gradient W [d, p]. Therefore

    D^T X = W,    d equations for the n unknowns of each of the p pixels of a patch

whatever the blocks behind it are. Least squares by the singular values of D; small ones are left out. How small is said
without the truth: of the images of all ``_CUTOFFS``, the one whose own update is nearest to the update is the answer.
The image follows from its patches where every pixel is copied into patches, scaled and shifted at most.

Departure: the paper solves for the tokens in the query, key and value gradients of the first attention, and for the
patches in the tokens; the patch embedding's own gradient has no condition on the first block and needs one solution.

Nothing is taken on trust of names: a parameter is the position embedding if its gradient, for an image drawn at random,
is that of the patch embedding's output. Of several images only a sum of such products is known.

Errors: ``AttackError`` for more than one image or step, without such a pair of layers, and where fewer units than
patches arrived.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, unfold

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.inversion import EXPLAINED, Inversion, labels_to_try
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, recovered_support, show_zeros, target_of
from prunella.attacks.engine.objectives import cosine, split
from prunella.core.config import Count
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

_CUTOFFS = tuple(10 ** (-exponent / 2) for exponent in range(16, 0, -1))  # of singular values, of the largest
_MORE = 8  # tokens that stand beside the patches at most: for the class, registers
_SAME = 1e-3  # relative distance up to which two gradients, or two images, are one


@dataclass(frozen=True)
class April:
    """Solves for the patches of one image with the gradient of the position embedding."""

    mask_aware: ClassVar[bool] = True
    labels_tried: Count = 10  #: classes that are tried, the likeliest first, until one explains the update


class Embedding(NamedTuple):
    """The names of the patch embedding and of the position embedding, the number of patches, and the ``first`` row of
    the position embedding that belongs to a patch."""

    layer: str
    positions: str
    patches: int
    first: int = 0


def _embeds(layer: nn.Module) -> bool:
    """Whether it is a layer that could embed patches."""
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def learnt_positions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Parameters that have the shape of a position embedding, with their rows and columns.

    >>> learnt_positions(nn.Sequential(nn.Linear(4, 8), nn.Embedding(16, 8), nn.Linear(8, 10)))
    {'1.weight': (16, 8)}
    """
    widths = {len(layer.weight) for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    found: dict[str, tuple[int, int]] = {}
    for prefix, owner in module.named_modules():
        if isinstance(owner, nn.Linear | nn.Conv2d):
            continue
        for name, tensor in owner.named_parameters(prefix, recurse=False):
            rows = tensor.numel() // tensor.shape[-1] if tensor.dim() in (2, 3) else 0
            if rows > 1 and rows == tensor.shape[-2] and tensor.shape[-1] in widths:
                found[name] = (rows, tensor.shape[-1])
    return found


def embeddings(module: nn.Module, shape: Shape) -> list[Embedding]:
    """Pairs of a layer and a parameter that have the shapes, in the order in which layers are called."""
    names = {layer: name for name, layer in module.named_modules() if _embeds(layer)}
    order: list[tuple[str, int, int]] = []

    def after(layer: nn.Module, _: object, output: Tensor) -> None:
        width = len(cast(Tensor, layer.weight))
        order.append((names[layer], output.numel() // width, width))

    with ExitStack() as hooks:
        for layer in names:
            hooks.enter_context(layer.register_forward_hook(after))
        show_zeros(module, shape)
    rows = learnt_positions(module)
    return [
        Embedding(layer, name, patches)
        for layer, patches, width in order
        for name, (tokens, columns) in rows.items()
        if columns == width and patches > 1 and 0 <= tokens - patches <= _MORE
    ]


def rows_of(layer: nn.Module, x: Tensor) -> Tensor:
    """The patches [n, p] in the input of the patch embedding."""
    if not isinstance(layer, nn.Conv2d):
        return x.reshape(-1, x.shape[-1])
    padding = layer.padding if not isinstance(layer.padding, str) else 0
    return unfold(x, layer.kernel_size, layer.dilation, padding, layer.stride)[0].T


def called(target: Target, layer: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For the image x [1, C, H, W]: input and output of ``layer``, and the logits."""
    seen: list[tuple[Tensor, Tensor]] = []
    watched = target.module.get_submodule(layer)
    with watched.register_forward_hook(lambda _, given, made: seen.append((given[0], made))):
        logits = target.logits(x)
    if len(seen) != 1:
        raise AttackError(f"{layer} is called {len(seen)} times: its gradient is not that of one set of patches")
    return *seen[0], logits


def slopes_of(layer: nn.Module, slope: Tensor) -> Tensor:
    """The gradient [n, d] at the tokens, from that at the output of the patch embedding."""
    return slope[0].flatten(1).T if isinstance(layer, nn.Conv2d) else slope.reshape(-1, slope.shape[-1])


def joined(target: Target, at: Embedding, x: Tensor) -> Embedding | None:
    """The pair with its first row, if the parameter's gradient for x [1, C, H, W] is that at the tokens."""
    try:
        _, made, logits = called(target, at.layer, x)
    except AttackError:  # not once
        return None
    if not made.requires_grad:
        return None
    loss = cross_entropy(logits, torch.zeros(1, dtype=torch.int64, device=x.device))
    wanted = [made, target.params[at.positions]]
    slope, own = torch.autograd.grad(loss, wanted, allow_unused=True)
    if slope is None or own is None or not bool(slope.any()):
        return None
    slopes, own = slopes_of(target.module.get_submodule(at.layer), slope), own.reshape(-1, own.shape[-1])
    for first in range(len(own) - at.patches + 1):
        if bool((own[first : first + at.patches] - slopes).norm() <= _SAME * slopes.norm()):
            return at._replace(first=first)
    return None


def embedding_of(target: Target, shape: Shape, x: Tensor) -> Embedding:
    """The first pair for which the image x [1, C, H, W] shows that positions are added to the tokens of its patches."""
    for each in embeddings(target.module, shape):
        if each.positions in target.params and (found := joined(target, each, x)) is not None:
            return found
    raise AttackError("the model adds no learnt position embedding to the tokens of a patch embedding")


def solutions(slopes: Tensor, gradient: Tensor, seen: Tensor, cutoffs: Sequence[float]) -> list[Tensor]:
    """X [n, p] with D^T X = W by least squares for each cutoff, from D [n, d], W [d, p] and which equations [d, p]
    there are.

    >>> slopes, patches = torch.eye(2, 3), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> solutions(slopes, slopes.T @ patches, torch.ones(3, 2, dtype=torch.bool), [1e-6])[0].tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    patterns, which = torch.unique(seen, dim=1, return_inverse=True)
    if int(patterns.sum(dim=0).max()) < len(slopes):
        raise AttackError(f"fewer equations arrived than the {len(slopes)} patches need")
    found = [gradient.new_zeros(len(slopes), gradient.shape[1]) for _ in cutoffs]
    for number, pattern in enumerate(patterns.T):
        columns = which == number
        left, sizes, right = torch.linalg.svd(slopes.T[pattern], full_matrices=False)
        told = left.T @ gradient[pattern][:, columns]
        for x, cutoff in zip(found, cutoffs, strict=True):
            kept = sizes > cutoff * sizes.max() if len(sizes) else sizes > 0
            x[:, columns] = right[kept].T @ (told[kept] / sizes[kept, None])
    return found


def patches_in(view: ServerView, target: Target, at: Embedding) -> list[Tensor]:
    """The patches [n, p], float64, for each of ``_CUTOFFS``, by the equations that arrived as a whole."""
    name, rows = f"{at.layer}.weight" if at.layer else "weight", slice(at.first, at.first + at.patches)
    if name not in target.params:
        raise AttackError(f"the weight of {at.layer} is made of other parameters: no patch is read")
    gradient, support = split(target.flat, target.params), recovered_support(view)
    weight, arrived = gradient[name].flatten(1).double(), support[name].flatten(1)
    slopes = gradient[at.positions].reshape(-1, len(weight))[rows].double()
    told = support[at.positions].reshape(-1, len(weight))[rows]
    if view.shared is None:  # a black pixel's column and the row of a token that nothing uses are zero, and arrived
        arrived, told = arrived | (weight == 0).all(dim=0), told | (slopes == 0).all(dim=1, keepdim=True)
    return solutions(slopes, weight, arrived & told.all(dim=0)[:, None], _CUTOFFS)


class Patching:
    """What the model makes patches of an image by, and the way back: both linear, up to a shift."""

    def __init__(self, target: Target, at: Embedding, shape: Shape) -> None:
        self.target, self.at, self.layer = target, at, target.module.get_submodule(at.layer)
        self.blank = torch.zeros(1, *shape, device=target.flat.device, requires_grad=True)
        self.shift = self.patches(self.blank)
        self.scale = self.back(self.patches(torch.ones_like(self.blank)) - self.shift)

    def patches(self, x: Tensor) -> Tensor:
        return rows_of(self.layer, called(self.target, self.at.layer, x)[0])

    def back(self, rows: Tensor) -> Tensor:
        return torch.autograd.grad(self.shift, self.blank, rows.detach(), retain_graph=True)[0]

    def image(self, rows: Tensor) -> Tensor:
        """The image [1, C, H, W] whose patches these [n, p] are, where each patch's number is one pixel's."""
        own = self.back(rows.to(self.blank.dtype) - self.shift) / self.scale
        return torch.where(self.scale == 0, torch.zeros_like(own), own)


def best_of(
    target: Target, images: Sequence[Tensor], labels: Sequence[Tensor], found: Reconstruction | None = None
) -> Reconstruction:
    """The image [1, C, H, W] and label [1] that miss the update's direction least."""
    for x in images:
        for y in labels:
            missed = float(cosine(linearised(target, x, y)[0], target.flat, target.support)[0])
            if found is None or missed < found.objective:
                found = Reconstruction(x, y, missed, 1)
    if found is None:
        raise AttackError("there is no image and no label to compare")
    return found


def labels_in(view: ServerView, target: Target, task: Task, generator: Generator) -> list[Tensor]:
    """Labels [1] to try, likeliest first; all of them where the last layer does not tell."""
    try:
        told = [y for y in labels_to_try(view, target, task, Inversion(), generator) if y is not None]
    except AttackError:
        told = [torch.tensor([label]) for label in range(task.classes)]
    return [y.to(target.flat.device) for y in told]


def reconstruct(view: ServerView, task: Task, attack: April, generator: Generator) -> Reconstruction:
    """The image [1, C, H, W] and its label [1]; a random image from ``generator`` shows how the model is wired."""
    target = target_of(view, task.build(), True, 1)
    if (view.steps or 1) > 1 or (view.images_used or 1) > 1:
        raise AttackError("april solves for one image in one step")
    drawn = torch.rand((1, *task.shape), generator=generator).to(target.flat.device)
    at = embedding_of(target, task.shape, drawn)
    patching = Patching(target, at, task.shape)
    again = patching.image(patching.patches(drawn))
    if not bool((again - drawn).norm() <= _SAME * drawn.norm()):
        raise AttackError(f"the input of {at.layer} is no copy of the image's pixels")
    images = [into_box(patching.image(rows)) for rows in patches_in(view, target, at)]
    labels = labels_in(view, target, task, generator)[: attack.labels_tried]
    found = best_of(target, images, labels[:1])
    if found.objective > EXPLAINED:
        told = best_of(target, [found.x], labels[1:], found)
        found = told if told is found or told.y is None else best_of(target, images, [told.y], told)
    return found
