"""GGL, generative gradient leakage (Li, Zhang, Liu, Liu 2022): the image is sought among those a generator can make.

Threat model: an honest-but-curious server that knows the model, the masked update and which coordinates arrived, the
number of images and the training settings, and has public images of the same kind with their classes. From these it
learns a generator x = G(z, y), and then looks for the z whose image explains the update:

    minimise over z:  distance(gradient(G(z, y), y), target) + weight |z|^2 / dim z

(GGL, Eqs. 4 to 7: labels from the last layer first, the defense's own transform, here the mask, applied to the guess,
and a penalty that keeps z where the generator was trained). A generator knows what the update does not tell, so that
this attack stands up to strong defenses. It never finds an image that the generator cannot make, so that ``ig`` is
better at undefended images.

Departures: the generator is the decoder of a small conditional variational autoencoder (Kingma and Welling 2014,
divergence weighted as Higgins et al. 2017), learnt in a minute from public images of the task's own size, for a BigGAN
of ImageNet; z is found by Adam or L-BFGS through the generator, for CMA-ES. ``weight`` counts the penalty.

Train one with ``train`` or ``prunella prior ggl``; name its file in ``ggl.prior``.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy, one_hot

from prunella.attacks.engine.latent import Latent, LatentSearch, candidates, search_latent
from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.prior_file import filled, read_prior, save_prior
from prunella.attacks.engine.resume import ResumeStore
from prunella.core.config import Weight
from prunella.core.errors import AttackError
from prunella.core.global_draws import draws_from
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

NAME = "ggl"
_BATCH = 64
_DIVERGENCE = 0.1  # weight of the divergence: what the decoder can reach counts for more than how likely it is


@dataclass(frozen=True)
class Ggl(LatentSearch):
    """Looks for images that a generator, learnt from public images, can make."""

    prior: str = ""  #: file of the network that `prunella prior` learnt from public images
    weight: Weight = 1e-3  #: of the penalty that keeps the search where the generator was trained


class Autoencoder(nn.Module):
    """Images [N, C, H, W] in [0, 1] and labels [N]; ``encode`` to mean and log variance of z [N, latent]."""

    def __init__(self, shape: Shape, classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.shape, self.classes, self.latent, self.width = shape, classes, latent, width
        pixels = shape[0] * shape[1] * shape[2]
        self.encoder = nn.Sequential(
            nn.Linear(pixels + classes, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent + classes, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, pixels)
        )

    def encode(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(torch.cat([x.flatten(1), self.told(y, x)], dim=1)).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        made: Tensor = torch.sigmoid(self.decoder(torch.cat([z, self.told(y, z)], dim=1)))
        return made.view(len(z), *self.shape)

    def told(self, y: Tensor, like: Tensor) -> Tensor:
        return one_hot(y, self.classes).to(like)


def train(
    public: PrivateBatch, classes: int, generator: Generator, *, epochs: int = 30, latent: int = 32, width: int = 256
) -> Autoencoder:
    """A conditional variational autoencoder of the public images, by Adam on the weighted evidence bound."""
    shape: Shape = tuple(public.x.shape[1:])  # type: ignore[assignment]
    if len(public.y) < 2 or int(public.y.max()) >= classes:
        raise AttackError(f"a generator needs public images of {classes} classes, at least two of them")
    with draws_from(int(torch.randint(2**31, (1,), generator=generator))):
        network = Autoencoder(shape, classes, latent, width)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    steps = epochs * -(-len(public.y) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(public.y), generator=generator), _BATCH):
            x, y = public.x[rows], public.y[rows]
            mean, log_variance = network.encode(x, y)
            z = mean + (log_variance / 2).exp() * torch.randn(mean.shape, generator=generator)
            told = binary_cross_entropy(network.decode(z, y), x, reduction="sum")
            apart = (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2
            optimizer.zero_grad()
            ((told + _DIVERGENCE * apart) / len(rows)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return network.eval().requires_grad_(False)


def save(path: Path, network: Autoencoder) -> None:
    sizes = {"classes": network.classes, "latent": network.latent, "width": network.width}
    save_prior(path, NAME, network, network.shape, sizes)


def load(path: str, shape: Shape, classes: int) -> Autoencoder:
    """The generator for this task. Raises ``AttackError``."""
    tree, sizes = read_prior(path, NAME, shape)
    if sizes.keys() != {"classes", "latent", "width"} or sizes["classes"] != classes:
        raise AttackError(f"{Path(path).name} is a generator of {sizes.get('classes')} classes, not of {classes}")
    return filled(lambda: Autoencoder(shape, classes, sizes["latent"], sizes["width"]), tree, path)


def ready(attack: Ggl, task: Task) -> None:
    """Raise ``AttackError`` unless the attack has a generator for this task."""
    load(attack.prior, task.shape, task.classes)


def reconstruct(
    view: ServerView, task: Task, attack: Ggl, generator: Generator, resume: ResumeStore | None = None
) -> Reconstruction:
    """The images [N, C, H, W] the generator can make that explain the view best, and their labels [N]."""
    network = load(attack.prior, task.shape, task.classes)
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    network = network.to(target.flat.device)
    labels = candidates(view, target, task, attack, generator)
    z = torch.randn((*labels.shape, network.latent), generator=generator).to(labels.device)
    return search_latent(target, attack, Latent(network.decode, attack.weight), z, labels, resume)
