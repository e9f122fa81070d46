"""Extraction: images that stand alone in a row of the first linear layer's gradient (Boenisch et al. 2021).

"When the Curious Abandon Honesty" (arXiv 2112.02918), its passive case: z = W a + b gives dW = sum_i d_i a_i^T and
db = sum_i d_i. Under a ReLU d_ik is zero unless image i activates unit k, so the row dW_k over db_k of a unit that one
image activates is that image, whatever the size of the batch. Where several do, it is a mixture of them, which may lie
between 0 and 1 as well. Departure from the paper, which looks at the pictures: a row is kept only where the model
confirms it. Fed the row, it gives for some label the loss gradient d at the layer; that of unit k, over the number of
images, must be the db_k that arrived. The ratio that was read says nothing of that number. A mixture, noise, or an
update of other weights fails there. All rows of one image are asked together, and each image is given
once. What a confirmed image adds to every row is then taken away, which leaves others alone in theirs, until no row
tells more.

Threat model: an honest-but-curious server that knows the model, the update, the learning rate and the number of images
of its one step. ``objective`` is how far the confirmed rows' bias gradients are from the model's own, relative and
squared, which compares with a part of the update only; where every image of the batch was found, it is one minus the
cosine of the whole update. ``explained`` is never said of a part.

Shapes: rows [R, F], images [N, C, H, W]. Errors: ``AttackError`` where layers lie before the linear one, it has no
bias, several steps were taken, the number of images is not known, or no row holds an image alone.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import Target, of_images, target_of
from prunella.attacks.engine.objectives import cosine, split
from prunella.attacks.engine.outer_products import first_linear
from prunella.attacks.spear import begins_with, slopes_behind
from prunella.core.config import Count
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

_ROUNDING = 2.0**-24  # of a float32 weight, relative: what an update is off at least
_DEVIATIONS = 5.0  # of the rounding: what is above it was sent
_BOX = 1e-3  # how far beyond [0, 1] a pixel may lie
_FLAT = 0.02  # deviation of the pixels: a flat row is no image
_ALIKE = 0.01  # root mean squared difference up to which two rows are one image
# Relative error of a bias gradient that confirms a row, beside that of rounding. At 1e-3 two of 420 were mixtures.
_CONFIRMED = 1e-4
_SUMMED = 2.0**-22  # of the largest figure of a row: what its float32 sum over images may be off


@dataclass(frozen=True)
class Extraction:
    """Reads images off single rows of the first linear layer's gradient, and asks the model whether they are."""

    mask_aware: bool = True  #: read only rows that arrived in full
    max_images: Count = 256  #: most images that are read


class Confirmed(NamedTuple):
    """Images as ``rows`` [M, F], their ``labels`` [M], what each adds to db as ``slopes`` [M, K], and how far ``wrong``
    [M] these are where the image was read, relative and squared."""

    rows: Tensor
    labels: Tensor
    slopes: Tensor
    wrong: Tensor


@dataclass(frozen=True)
class SlopesOf:
    """Each image's share of the mean bias gradient of ``layer``, [N, K], at its outputs z [N, K] and labels [N]."""

    target: Target
    layer: str
    task: Task
    images: int

    @property
    def classes(self) -> int:
        return self.task.classes

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        return slopes_behind(self.target, self.layer, z, y, self.task).double() / self.images


def used_by(view: ServerView) -> int:
    """How many images the client's one step used. Raises ``AttackError`` where that or its rate is not known."""
    if view.steps not in (None, 1) or view.learning_rate is None:
        raise AttackError("extraction reads one step of a known learning rate")
    known = [] if view.images_used is None else [view.images_used]
    known += [len(view.labels)] if view.labels is not None else []
    if not known:
        raise AttackError("extraction needs the number of images: the view tells none")
    return min(known)


def pictures(weight: Tensor, bias: Tensor, arrived: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The rows [R, F] of dW [K, F] over db [K] that could be images, and their units [R], those with the largest bias
    gradient, and so the least rounding, first. ``noise`` [K] is that of a row's coordinates, ``arrived`` [K] marks rows
    that arrived in full."""
    units = torch.nonzero(arrived & (bias.abs() > _DEVIATIONS * noise / _BOX)).flatten()
    units = units[bias[units].abs().argsort(descending=True)]
    rows = weight[units] / bias[units, None]
    if not len(rows):  # a deviation of nothing is a warning of PyTorch's
        return rows, units
    fit = (rows >= -_BOX).all(1) & (rows <= 1 + _BOX).all(1) & (rows.std(dim=1) > _FLAT)
    return rows[fit], units[fit]


def grouped(rows: Tensor) -> Tensor:
    """For each row [R, F] the first one that is the same image: [R].

    >>> grouped(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])).tolist()
    [0, 1, 0]
    """
    first = torch.arange(len(rows), device=rows.device)
    for place in range(len(rows)):
        if int(first[place]) == place:
            same = (rows[place:] - rows[place]).square().mean(1).sqrt() <= _ALIKE
            own = first[place:] == torch.arange(place, len(rows), device=rows.device)
            first[place:] = torch.where(same & own, place, first[place:])
    return first


def heads(first: Tensor) -> Tensor:
    """The rows that ``first`` [R] names, each once, in ascending order."""
    return torch.nonzero(first == torch.arange(len(first), device=first.device)).flatten()


def confirmed(
    slopes: Tensor, seen: Tensor, first: Tensor, units: Tensor, noise: Tensor
) -> list[tuple[int, int, float]]:
    """(group, label, error) of each image whose ``slopes`` [L, G, K], for every label and the images that ``first``
    names, are the bias gradients ``seen`` [K] at the units it was read from, but for the ``noise`` [K]."""
    found = list[tuple[int, int, float]]()
    for group, row in enumerate(heads(first).tolist()):
        own = units[first == row]
        size = seen[own].square().sum()
        wrong = (slopes[:, group, own] - seen[own]).square().sum(1) / size
        label = int(wrong.argmin())
        if float(wrong[label]) <= _CONFIRMED**2 + float((_DEVIATIONS * noise[own]).square().sum() / size):
            found.append((group, label, float(wrong[label])))
    return found


def missed_by(target: Target, x: Tensor, y: Tensor) -> float:
    """One minus the cosine of the update and that of all its images."""
    return float(cosine(linearised(of_images(target, len(x)), x, y)[0], target.flat, target.support)[0])


def read_rows(
    layer: tuple[Tensor, Tensor], at: tuple[Tensor, Tensor], arrived: Tensor, noise: Tensor, slopes_of: SlopesOf
) -> Confirmed:
    """What is confirmed in the rows of (dW, db) ``at`` the ``layer`` (weight, bias). ``slopes_of`` maps
    outputs z [N, K] and labels [N] to each image's share of db, [N, K]."""
    rows, units = pictures(*at, arrived, noise)
    first = grouped(rows)
    z = rows[heads(first)] @ layer[0].T + layer[1]
    if not len(z):
        return Confirmed(rows, units, z, rows[:0, 0])
    classes = range(slopes_of.classes)
    slopes = torch.stack([slopes_of(z, torch.full((len(z),), label, device=z.device)) for label in classes])
    kept = confirmed(slopes, at[1], first, units, noise)
    groups, labels = (torch.tensor([each[i] for each in kept], dtype=torch.int64, device=z.device) for i in (0, 1))
    wrong = torch.tensor([each[2] for each in kept], dtype=z.dtype, device=z.device)
    return Confirmed(rows[heads(first)][groups], labels, slopes[labels, groups], wrong)


def peeled(
    layer: tuple[Tensor, Tensor],
    at: tuple[Tensor, Tensor],
    arrived: Tensor,
    noise: float,
    slopes_of: SlopesOf,
    most: int,
) -> Confirmed:
    """All that is confirmed, at most ``most``, in turns: what an image adds to each row is known once it is, and is
    taken away, which leaves others alone in theirs. ``noise`` is that of a coordinate, ``arrived`` [K] marks rows."""
    (weight, bias), turns = at, list[Confirmed]()
    floor = noise + _SUMMED * weight.abs().amax(dim=1)  # what rounding leaves of a row whose images are all known
    while sum(len(turn.rows) for turn in turns) < most:
        turn = read_rows(layer, (weight, bias), arrived, floor, slopes_of)
        if not len(turn.rows):
            break
        weight, bias = weight - turn.slopes.T @ turn.rows, bias - turn.slopes.sum(0)
        turns.append(turn)
    if not turns:
        raise AttackError("no row of the first linear layer holds one image alone")
    return Confirmed(*(torch.cat(parts)[:most] for parts in zip(*turns, strict=True)))


def reconstruct(view: ServerView, task: Task, attack: Extraction, generator: Generator) -> Reconstruction:
    """The images [M, C, H, W] that stand alone in a row and their labels [M], at most as many as were used."""
    images = used_by(view)
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    layer, _ = first_linear(target.module, task.shape)
    names = [f"{layer}.{part}" if layer else part for part in ("weight", "bias")]
    if names[1] not in target.params or not begins_with(target, layer, task, generator):
        raise AttackError(f"extraction needs a bias at {layer}, and no layer before it")
    gradient = split(target.flat, target.params)
    at_weight, at_bias = (gradient[name].double() for name in names)
    arrived = torch.ones_like(at_bias, dtype=torch.bool)
    if view.shared is not None and attack.mask_aware:
        arrived = view.shared[names[0]].all(1) & view.shared[names[1]]
    weight, bias = (target.params[name].detach().double() for name in names)
    noise = _ROUNDING * float(weight.square().mean().sqrt()) / (view.learning_rate or 1.0)
    slopes_of = SlopesOf(target, layer, task, images)
    found = peeled((weight, bias), (at_weight, at_bias), arrived, noise, slopes_of, min(images, attack.max_images))
    x = into_box(found.rows.reshape(-1, *task.shape).to(target.flat.dtype))
    if len(x) < images:
        return Reconstruction(x, found.labels, float(found.wrong.max()), 1, explained=False, compared=False)
    off = missed_by(target, x, found.labels)
    return Reconstruction(x, found.labels, off, 1, explained=off <= EXPLAINED)
