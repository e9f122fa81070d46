"""What an update tells of each of its images, as arrays that a network can learn from.

The weight gradient of a linear layer is a sum of outer products, G = sum_i r_i h_i^T, with h_i the layer's input for
image i and r_i the slope of its loss on the outputs. Where the r_i are known, least squares over the values that
arrived gives the h_i back: at batch 1 and r = the bias gradient, exactly, as the quotient of weight and bias gradient
(Phong et al. 2018). Behind a convolution h has places, so that it is a picture itself.

``maps`` are of the first linear layer: h by the bias gradient, and the share of each coordinate's weight that arrived.
Where it makes the logits, also, before these: its rows, the image's own class first and then by the bias gradient; h by
r = p - [y], with p the model's mean answer to public images of the class; and the median of what the rows say h is.
``flat`` is in blocks: the labels, h, and each other tensor of the update, one of more than ``SKETCH`` numbers as random
signed sums (Charikar, Chen and Farach-Colton 2002), the same ones for every view.

Shapes: maps [N, C, H, W, M] for N images, a block of flat [N, D]; both on the CPU. Errors: ``AttackError``.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.functional import one_hot, softmax

from prunella.attacks.engine.label_inference import label_candidates, last_linear
from prunella.attacks.engine.matching import in_training_mode, recovered_support, target_gradient, target_of
from prunella.attacks.engine.outer_products import first_linear
from prunella.core.errors import AttackError
from prunella.core.trees import Tree
from prunella.core.types import ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

SKETCH = 4096  # numbers kept of a tensor
_ROWS = 10  # of the last layer's gradient
_RIDGE = 1e-4  # of |r|^2: where nothing arrived, h is zero
_ANSWERS = 512  # public images that the model's answers are taken from, at most
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class LinearSite:
    """A linear layer: the names of its weight and bias, its input's shape [C, H, W], whether it makes the logits."""

    weight: str
    bias: str
    grid: Shape
    last: bool


def site_of(module: nn.Module, shape: Shape, classes: int) -> LinearSite:
    """The first linear layer that is called for an image."""
    name, grid = first_linear(module, shape)
    prefix = f"{name}." if name else ""
    return LinearSite(f"{prefix}weight", f"{prefix}bias", grid, name == last_linear(module, classes))


class SignalReader:
    """Reads the views of one round: what is found or drawn once for all of them."""

    def __init__(self, view: ServerView, task: Task, public: Examples, generator: Generator) -> None:
        module = task.build()
        self.classes, self.site = task.classes, site_of(module, task.shape, task.classes)
        self.answers = class_answers(module, view.on(_CPU), public, task.classes)
        self.places: dict[str, tuple[Tensor, Tensor]] = {}
        for name, like in view.update.items():
            if like.numel() > SKETCH and not (self.site.last and name == self.site.weight):
                place = torch.randint(SKETCH, (like.numel(),), generator=generator)
                self.places[name] = place, torch.randint(2, place.shape, generator=generator).mul_(2).sub_(1).float()

    def read(self, view: ServerView, y: Tensor, first: int | None = None) -> tuple[Tensor, list[Tensor]]:
        """``maps`` and ``flat`` of the view's images, whose labels y [N] are known or inferred; of the ``first`` ones
        only, in memory of their own, where that is asked."""
        view, y = view.on(_CPU), y.cpu()
        kept, gradient = len(y) if first is None else min(first, len(y)), target_gradient(view)
        maps, h = self._maps(view, gradient, y, kept)
        flat = [one_hot(y[:kept], self.classes).float(), h]
        for name, tensor in gradient.items():
            if not (self.site.last and name == self.site.weight):
                flat.append(self._sketch(name, tensor.flatten()).expand(kept, -1))
        return maps, flat

    def _maps(self, view: ServerView, gradient: Tree, y: Tensor, kept: int) -> tuple[Tensor, Tensor]:
        """Maps, and of those the h [kept, F] that is most to be trusted."""
        weight, last = gradient[self.site.weight], self.site.last
        arrived = recovered_support(view)[self.site.weight].to(weight.dtype)
        r = (self.answers[y] - one_hot(y, self.classes)) / len(y)
        own = gradient.get(self.site.bias, weight.new_zeros(len(weight)))
        if not bool(own.any()):
            own = r.sum(dim=0) if last else torch.ones_like(own)
        by_bias = inputs_of(weight, arrived, own[None]).expand(kept, -1)
        parts = [by_bias[:, None], (own.square() @ arrived / own.square().sum()).expand(kept, 1, -1)]
        h = by_bias
        if last:
            first = own.expand(kept, -1).scatter(1, y[:kept, None], torch.inf)
            rows = weight[first.argsort(dim=1, descending=True, stable=True)[:, :_ROWS]] * len(y)
            h = inputs_of(weight, arrived, r)[:kept].clone()
            parts = [rows, h[:, None], usual_input(weight, arrived, len(y) * r[:kept])[:, None], *parts]
        maps = torch.cat(parts, dim=1).transpose(1, 2).reshape(kept, *self.site.grid, -1)
        return maps, h

    def _sketch(self, name: str, flat: Tensor) -> Tensor:
        if name not in self.places:
            return flat
        place, sign = self.places[name]
        return torch.zeros(SKETCH).index_add_(0, place, flat * sign)


def inputs_of(weight: Tensor, arrived: Tensor, r: Tensor) -> Tensor:
    """The h [N, F] for which sum_i r_i h_i^T is nearest to ``weight`` [K, F] where ``arrived`` [K, F] is 1; r [N, K].

    >>> r, h = torch.tensor([[1.0, -2.0], [3.0, 1.0]]), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> inputs_of(r.T @ h, torch.ones(2, 3), r).round(decimals=2).tolist()
    [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    """
    right = r @ (weight * arrived)
    ridge = float(r.square().sum(dim=1).max()) * _RIDGE + torch.finfo(r.dtype).tiny
    if len(r) == 1:
        return right / (r.square() @ arrived + ridge)
    some = ridge * torch.eye(len(r))
    if bool(arrived.all()):
        solved: Tensor = torch.linalg.solve(r @ r.T + some, right)
        return solved
    if len(r) <= r.shape[1]:
        left = torch.einsum("nk,kf,mk->fnm", r, arrived, r) + some
        solved = torch.linalg.solve(left, right.T[..., None])
        return solved[..., 0].T
    # More images than rows: with D the diagonal of what arrived, (r D rᵀ + c)⁻¹ r D = r D (D rᵀ r D + c)⁻¹.
    there = arrived.T
    left = there[:, :, None] * (r.T @ r) * there[:, None, :] + ridge * torch.eye(r.shape[1])
    solved = torch.linalg.solve(left, (weight * arrived).T[..., None])[..., 0] * there
    return r @ solved.T


def usual_input(weight: Tensor, arrived: Tensor, r: Tensor) -> Tensor:
    """The medians [N, F] of what each row that arrived says h is, as if it were of the one image with the slopes r_i:
    outliers, such as noise that fills a coordinate or what an earlier image left there, change least squares as much as
    they like. 0 where nothing arrived."""
    said = [torch.where(arrived > 0, weight / each.reshape(-1, 1), torch.nan) for each in r]
    return torch.stack([each.nanmedian(dim=0).values for each in said]).nan_to_num(0.0, 0.0, 0.0)


def class_answers(module: nn.Module, view: ServerView, public: Examples, classes: int) -> Tensor:
    """Mean probabilities [K, K] that the model gives public images of each class, of all where it has none."""
    in_training_mode(module)
    x, y = public.x[:_ANSWERS].cpu(), public.y[:_ANSWERS].cpu()
    buffers = {name: buffer.clone() for name, buffer in view.buffers.items()}  # batch norm writes into them
    with torch.no_grad():
        said = softmax(functional_call(module, (view.params, buffers), (x,)), dim=1)
    if not bool(torch.isfinite(said).all()):
        raise AttackError("the model's answers to public images are not finite")
    of_class = [said[y == label] if bool((y == label).any()) else said for label in range(classes)]
    return torch.stack([each.mean(dim=0) for each in of_class])


def likely_labels(view: ServerView, task: Task, max_images: int, generator: Generator) -> Tensor:
    """The labels [N] of the view, or the likeliest, on the CPU."""
    if view.labels is not None:
        return view.labels.detach().cpu()
    target = target_of(view, task.build(), True, max_images)
    found = label_candidates(target, task, view.learning_rate is not None, generator)
    return next(labels for labels in found if labels is not None).cpu()
