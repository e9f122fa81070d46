"""Matching in the principal components of public images: the same descent, in coordinates in which images are round.

Threat model: an honest-but-curious server that knows the model, the masked update, the number of images and the
training settings, and has public images of the same kind with their classes.

    x = m_y + S^(1/2) z,    minimise over z:  distance(gradient(x, y), target) + weight |z|^2 / dim z

``m_y`` is the mean image of a class; S is the covariance of the public images about these means, with ``floor`` squared
added to every direction, so that no image is out of reach. An image of this kind has a z of size about 1 in every
coordinate, whereas its pixels hang together: neighbours move alike, and what distinguishes digits from noise is a few
hundred of 784 directions. So L-BFGS, which starts out with the steps of a round problem, goes along what images differ
in first. The penalty is the Gaussian prior (the maximum a posteriori estimate of z); it hardly counts beside the
coordinates. GGL searches in the same way among what a network can draw, and cannot leave it; here every image can be
reached, so that what the update tells is not lost. Where the labels of several images are open, they are searched in
the same coordinates (``attacks.engine.label_search``), which takes as many evaluations.

Not from a paper: ours. The mean and covariance of images as a prior are Hotelling's principal components and the
eigenfaces of Turk and Pentland 1991. Pixels are not kept in [0, 1] on the way (L-BFGS takes clipped steps badly), only
at the end. It learns nothing about a defense. Errors: ``AttackError`` without public images.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.descent import OptimizerSetting
from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.label_search import Budget, search
from prunella.attacks.engine.latent import Latent, LatentSearch, candidates, search_latent
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.engine.shadow import Shadow
from prunella.core.config import Count, Positive, Weight
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task

_MOST = 4000  # public images that are looked at
_START = 0.1  # deviation of the first z
_FEWEST = 2


@dataclass(frozen=True)
class Components(LatentSearch):
    """Matches gradients in the principal components of public images of the same kind."""

    optimizer: OptimizerSetting = "lbfgs"  #: auto is L-BFGS for a network with sigmoids and Adam for any other
    iterations: Count = 600  #: most iterations of a start
    restarts: Count = 1  #: random starts; the lowest objective is kept
    tolerance: Weight = 1e-9  #: objective at which an update counts as explained
    weight: Weight = 1e-5  #: of the penalty that keeps images near what public images are like
    floor: Positive = 0.01  #: deviation that every direction has, also one in which public images do not differ


def decoder(public: Examples, classes: int, floor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """(z [M, C, H, W], labels [M]) -> images [M, C, H, W], as the module says, of public images [N, C, H, W].

    A class that has no public image has the mean of all.
    """
    if len(public) < _FEWEST:
        raise AttackError("components needs public images of the same kind, at least two of them")
    flat = public.x.flatten(1)
    means = flat.mean(0).repeat(classes, 1)
    for label in sorted(set(public.y.tolist())):
        means[label] = flat[public.y == label].mean(0)
    # The root of the covariance, in thin factors: floor along all directions, and more along those of the images.
    apart = (flat - means[public.y]) / len(flat) ** 0.5
    if len(apart) > apart.shape[1]:  # a third of the time, and exact enough above the floor
        spread, across = torch.linalg.eigh(apart.T @ apart)
        spread, along = spread.clamp_min(0), across.T
    else:
        _, size, along = torch.linalg.svd(apart, full_matrices=False)
        spread = size.square()
    more = (spread + floor**2).sqrt() - floor

    def decode(z: Tensor, labels: Tensor) -> Tensor:
        rows = z.flatten(1)
        images: Tensor = means[labels] + floor * rows + (rows @ along.T * more) @ along
        return images.reshape(z.shape)

    return decode


def coordinates(public: Examples, task: Task, attack: Components, generator: Generator, device: torch.device) -> Latent:
    """The components of ``public``, or of some of them where they are many. Raises ``AttackError`` for too few."""
    some = public.take(torch.randperm(len(public), generator=generator)[:_MOST])
    decode = decoder(Examples(some.x.to(device), some.y.to(device)), task.classes, attack.floor)
    return Latent(decode, attack.weight, deviation=_START)


def matched(
    target: Target, attack: Components, latent: Latent, z: Tensor, labels: Tensor, resume: ResumeStore | None = None
) -> Reconstruction:
    """What a descent from each of z [S, N, C, H, W] with labels [S, N] comes to; the best, in [0, 1]."""
    found = search_latent(target, attack, latent, z.to(target.flat.device), labels, resume)
    return replace(found, x=into_box(found.x))


def drawn(latent: Latent, starts: int, images: int, task: Task, generator: Generator) -> Tensor:
    """z [S, N, C, H, W] of images near the mean of their class."""
    return latent.deviation * torch.randn((starts, images, *task.shape), generator=generator)


def reconstruct(
    view: ServerView,
    task: Task,
    attack: Components,
    generator: Generator,
    resume: ResumeStore | None = None,
    shadow: Shadow | None = None,
) -> Reconstruction:
    """The images [N, C, H, W] that explain the view best, from starts near the mean of their class; labels [N]."""
    if shadow is None:
        raise AttackError("components needs public images like the client's: a run's audit has them, for a trace name "
                          "a run beside it")  # fmt: skip
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    latent = coordinates(shadow.public, task, attack, generator, target.flat.device)
    if view.labels is None and target.plan.images > 1:
        store = resume or ResumeStore()
        paid = Budget(attack.iterations * attack.restarts, store.out_of_time)
        found = search(target, task, generator, paid, latent).best
        return matched(target, attack, latent, found.z[None], found.y[None], store)
    labels = candidates(view, target, task, attack, generator)
    return matched(
        target, attack, latent, drawn(latent, len(labels), target.plan.images, task, generator), labels, resume
    )
