"""ROG, reconstruction from obfuscated gradients (Yue, Jin, Wong, Baron, Dai 2023): few unknowns, then a learnt repair.

Threat model: an honest-but-curious server that knows the model, the masked update and which coordinates arrived, the
number of images and the training settings, and has public images of the same kind. A pruned or noised update tells too
little for every pixel, so that

1. an image of 1 / ``factor`` of the side is sought whose enlargement explains the update (ROG, Eq. 4), and
2. a network that has seen public images, and what this attack makes of them, repairs the result.

Departures: a convolutional residual network of three layers, for their U-Net; it is learnt from public images that were
reduced, enlarged and noised, at every level of noise up to ``_NOISE``, for pairs made by the attack itself, so that one
file serves every model and defense; z is found by signed Adam or L-BFGS.

Train one with ``train`` or ``prunella prior rog``; name its file in ``rog.prior``.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import interpolate

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.latent import Latent, LatentSearch, candidates, search_latent
from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.prior_file import filled, read_prior, save_prior
from prunella.attacks.engine.resume import ResumeStore
from prunella.core.errors import AttackError
from prunella.core.global_draws import draws_from
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task

NAME = "rog"
_BATCH = 32
_NOISE = 0.15  # deviation of the strongest noise, in z, a repair is learnt from


@dataclass(frozen=True)
class Rog(LatentSearch):
    """Looks for a small image, which a network learnt from public images then repairs.

    ``factor`` is that of the file, which is learnt for one.
    """

    prior: str = ""  #: file of the network that `prunella prior` learnt from public images


class Repair(nn.Module):
    """Enlarged images [N, C, H, W] to repaired ones in [0, 1]: a correction is added."""

    def __init__(self, shape: Shape, factor: int, width: int) -> None:
        super().__init__()
        self.shape, self.factor, self.width = shape, factor, width
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], width, 5, padding=2),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width, shape[0], 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return into_box(x + self.layers(x))

    def small(self) -> tuple[int, int]:
        """Height and width of z."""
        return -(-self.shape[1] // self.factor), -(-self.shape[2] // self.factor)

    def enlarge(self, z: Tensor) -> Tensor:
        return interpolate(z, self.shape[1:], mode="bilinear")


def train(public: Tensor, generator: Generator, *, epochs: int = 20, factor: int = 2, width: int = 32) -> Repair:
    """A repair of reduced and noised images, learnt from public ones [M, C, H, W] by Adam on the squared error."""
    if len(public) < 2:
        raise AttackError("a repair needs at least two public images")
    shape: Shape = tuple(public.shape[1:])  # type: ignore[assignment]
    with draws_from(int(torch.randint(2**31, (1,), generator=generator))):
        network = Repair(shape, factor, width)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * -(-len(public) // _BATCH))
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(public), generator=generator), _BATCH):
            x = public[rows]
            z = interpolate(x, network.small(), mode="area")
            level = torch.rand((len(z), 1, 1, 1), generator=generator) * _NOISE
            z = into_box(z + level * torch.randn(z.shape, generator=generator))
            loss = (network.enlarge(z) + network.layers(network.enlarge(z)) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval().requires_grad_(False)


def save(path: Path, network: Repair) -> None:
    save_prior(path, NAME, network, network.shape, {"factor": network.factor, "width": network.width})


def load(path: str, shape: Shape) -> Repair:
    """The repair for images of this shape. Raises ``AttackError``."""
    tree, sizes = read_prior(path, NAME, shape)
    if sizes.keys() != {"factor", "width"} or sizes["factor"] > min(shape[1:]):
        raise AttackError(f"{Path(path).name} does not name a factor and a width")
    return filled(lambda: Repair(shape, sizes["factor"], sizes["width"]), tree, path)


def ready(attack: Rog, task: Task) -> None:
    """Raise ``AttackError`` unless the attack has a repair for this task's images."""
    load(attack.prior, task.shape)


def reconstruct(
    view: ServerView, task: Task, attack: Rog, generator: Generator, resume: ResumeStore | None = None
) -> Reconstruction:
    """The repaired images [N, C, H, W] and their labels [N]."""
    network = load(attack.prior, task.shape)
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    network = network.to(target.flat.device)
    labels = candidates(view, target, task, attack, generator)
    z = into_box(0.5 + torch.randn((*labels.shape, task.shape[0], *network.small()), generator=generator) / 4)
    latent = Latent(lambda z, y: network.enlarge(z), box=True)
    found = search_latent(target, attack, latent, z.to(labels.device), labels, resume)
    return replace(found, x=network(into_box(found.x)))
