"""Denoising under a known covariance: the attack adapted to the channel defenses (CHN 5.2).

A channel trains on D~ = D + xi, xi ~ N(0, Sigma_xi), and what it claims is a bound on what D~ tells about D, not that
D~ stays hidden. Threat model: an honest-but-curious server that knows the channel's covariance (it follows from public
settings and the data's spread) and has public images of the same kind. First the noisy image is rebuilt in closed form
(``attacks.r_gap``: so a model R-GAP can invert, one image, one step), outside [0, 1] as it is; then

    E[D | D~] = mu + Sigma_D (Sigma_D + Sigma_xi)^-1 (D~ - mu)

with mean and covariance of the public images: the best linear estimate, and the best of all for Gaussian images (Wiener
1949). The same image in T rounds, its noise drawn anew each time, is the mean of T noisy ones: Sigma_xi / T.

Not from a paper: ours. Errors: ``AttackError`` without what it has to know.

>>> one, two = torch.eye(2, dtype=torch.float64), 3 * torch.eye(2, dtype=torch.float64)
>>> posterior_mean(torch.tensor([[4.0, 0.0]]).double(), torch.zeros(2).double(), one, two).round(decimals=6).tolist()
[[1.0, 0.0]]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.r_gap import RGap, solve_image
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task


@dataclass(frozen=True)
class Denoise(RGap):
    """Against the channels: R-GAP, then the best linear denoiser for the noise's covariance."""


@dataclass(frozen=True)
class Channel:
    """What the server knows: public images [M, C, H, W] and the noise's covariance [d, d] or variance (0-d)."""

    public: Tensor
    noise: Tensor


def moments(public: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d] of flattened images, float64."""
    flat = public.flatten(1).double()
    if len(flat) < 2:
        raise AttackError("denoising needs at least two public images")
    return flat.mean(dim=0), torch.cov(flat.T)


def posterior_mean(noisy: Tensor, mean: Tensor, signal: Tensor, noise: Tensor) -> Tensor:
    """E[D | D~] of rows [N, d] under D ~ N(mean, signal) and D~ = D + N(0, noise).

    A direction with neither signal nor noise is left at the mean.
    """
    both = signal + noise
    smallest = torch.finfo(both.dtype)
    ridge = (smallest.eps * len(both) * both.diagonal().mean()).clamp_min(smallest.tiny)
    weights: Tensor = torch.linalg.solve(both + ridge * torch.eye(len(both), dtype=both.dtype), signal)
    return mean + (noisy - mean) @ weights


def reconstruct(
    view: ServerView,
    task: Task,
    attack: Denoise,
    generator: Generator,
    known: Channel | None = None,
    earlier: Sequence[ServerView] = (),
) -> Reconstruction:
    """The image [1, C, H, W] behind the noise, from this view and ``earlier`` ones of the same image."""
    if known is None:
        raise AttackError("denoise must be told public images and the channel's covariance: it cannot replay a trace")
    solved = [solve_image(each, task, attack) for each in (*earlier, view)]
    noisy = torch.stack([image.cpu() for image, _, _ in solved]).double().mean(dim=0).flatten(1)
    mean, signal = moments(known.public.cpu())
    noise = known.noise.double().cpu() / len(solved)
    noise = noise if noise.dim() else noise * torch.eye(len(mean), dtype=torch.float64)
    x = into_box(posterior_mean(noisy, mean, signal, noise)).reshape(1, *task.shape)
    return Reconstruction(x.float(), solved[-1][1], solved[-1][2], len(solved))
