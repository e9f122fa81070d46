"""Gaussian channels between a client's images and its training (CHN 5.2): noise on the data bounds what can leak.

Training sees D~ = D + xi, xi ~ N(0, Sigma_xi). Whatever the server gets is computed from D~, so by the data processing
inequality one local step leaks at most I(D; D~) <= f = 1/2 ln det(Sigma_D + Sigma_xi) / det Sigma_xi nats, n steps n f.
**Natural** (Eq. 18): Sigma_xi = sigma I, f(sigma) = 1/2 sum_i ln((lambda_i + sigma) / sigma) = kappa, with lambda_i the
eigenvalues of the covariance of the client's flattened images. f falls in sigma, so sigma is unique; it is a variance.

Images [N, C, H, W]; lambda and sigma in squared pixel units; kappa in nats per local step. Noise is drawn fresh for
every presented batch. D is one image: kappa bounds what a step tells about any one of them, and a step on B images
tells at most B kappa about all. The noisy image is not clamped to [0, 1]: the bound would survive (clamping is
processing too), but clamped noise has a mean that depends on the pixel, which biases training. The covariance is the
sample's (divisor N - 1), so with fewer images than dimensions the claim is about the span the images have; a constant
pixel has no eigenvalue, adds nothing to f, and still gets the noise.

``batch`` B > 1 solves for lambda / B, as Eq. 22 does for a mean over B examples with one noise on top. Here every image
has a noise of its own and the mean of B noises shrinks alike, so that the discount is not earned in data space: it is
there to reproduce settings. As ln(1 + B x) <= B ln(1 + x), what then holds per image is B kappa, and that is what
``nats_per_step`` says and the ledger adds. Default 1.

Noisy images lie on the grid of ``gaussian.add_noise``: the low bits of a float32 sum tell what the noise was added to,
and 250 unrounded answers of 0.02 nats each gave every pixel of a picture.

Errors: ``DefenseError`` for fewer than two images, identical images (no covariance: f would ask for no noise at all),
images that are not finite, a batch of another image size, or a saved channel solved for other settings.

>>> variance = solve_variance(torch.tensor([3.0, 0.0]), kappa=math.log(2))
>>> round(variance, 6), round(capacity(torch.tensor([3.0, 0.0]), variance), 6)
(1.0, 0.693147)
"""

import functools
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from prunella.core.config import Count, Positive
from prunella.core.errors import DefenseError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree
from prunella.privacy.defense import DataDefense, Smaller, State
from prunella.privacy.gaussian import to_grid


@runtime_checkable
class ChannelSettings(Protocol):
    """What the ledger reads from any channel: the bound in nats per local step and image, None where there is none."""

    @property
    def nats_per_step(self) -> float | None: ...


@dataclass(frozen=True)
class NaturalChannel:
    """The same Gaussian noise on every pixel, sized so that a step leaks at most `kappa` nats.

    The paper uses kappa 50, 100, 200 and 300 on 3072 pixels.
    """

    kappa: Smaller[Positive] = 50.0  #: most nats that one local step leaks about one image
    #: solves for eigenvalues divided by this, to reproduce settings; kappa times batch is what holds
    batch: Smaller[Count] = 1

    @property
    def nats_per_step(self) -> float:
        return self.kappa * self.batch


ZERO = torch.finfo(torch.float64).eps  # what decomposition leaves of a zero eigenvalue, per unit of the largest
KNOWN = 1000  # times that: from there on an eigenvalue of a product is right to a millionth


def few_images(images: Tensor) -> str:
    """What the owner of fewer images than pixels should know of a channel that is fitted on them, or "".

    >>> few_images(torch.zeros(64, 1, 28, 28))[:63], few_images(torch.zeros(65, 1, 8, 8))
    ('a channel fitted on 64 images knows 63 of 784 directions: it bo', '')
    """
    many, pixels = len(images), images[0].numel() if len(images) else 0
    if many > pixels:
        return ""
    return (
        f"a channel fitted on {many} images knows {max(many - 1, 0)} of {pixels} directions: it bounds what tells "
        "these images apart, and may be little noise beside what tells them from other people's"
    )


def centre(images: Tensor) -> Tensor:
    """Flattened images [N, d] minus their mean, float64 on the CPU."""
    flat = images.detach().flatten(1).double().cpu()
    if len(flat) < 2:
        raise DefenseError("a channel needs at least two images to know their covariance")
    if not bool(torch.isfinite(flat).all()):
        raise DefenseError(f"images of shape {tuple(images.shape[1:])} are not all finite")
    return flat - flat.mean(0)


def eigenvalues(images: Tensor) -> Tensor:
    """Eigenvalues of the sample covariance of flattened images [N, ...], float64, ascending, min(N, d) of them.

    The other eigenvalues are zero. The decomposition returns rounding errors for them, which must not count as
    information; but a small eigenvalue must count, since under little noise it tells as much as a large one. The
    smaller of the d x d covariance and the N x N Gram matrix is decomposed. Where its smallest eigenvalues lie below
    its accuracy, the images themselves are decomposed, which takes ten times as long and squares the accuracy.
    """
    centered = centre(images) / math.sqrt(len(images) - 1)
    count, pixels = centered.shape
    small = centered @ centered.T if count < pixels else centered.T @ centered
    values = torch.linalg.eigvalsh(small).clamp(min=0)
    rounding = values[-1] * len(values) * ZERO
    if bool((values[len(values) - min(count - 1, pixels) :] > KNOWN * rounding).all()):
        return torch.where(values > rounding, values, 0.0)
    singular = torch.linalg.svdvals(centered).flip(0)
    return torch.where(singular > singular[-1] * max(count, pixels) * ZERO, singular.square(), 0.0)


def capacity(spectrum: Tensor, variance: float) -> float:
    """f(sigma) of Eq. 18 in nats for noise of this variance in every direction."""
    positive = spectrum[spectrum > 0].double()
    return float(0.5 * torch.log1p(positive / variance).sum())


def log_capacity(log_spectrum: Tensor, log_variance: float) -> float:
    """``capacity`` from logarithms, so that neither a huge nor a tiny kappa overflows."""
    return float(0.5 * torch.nn.functional.softplus(log_spectrum - log_variance, threshold=700.0).sum())


def solve_variance(spectrum: Tensor, kappa: float) -> float:
    """The sigma with f(sigma) = kappa. Brackets: ln(1 + x) <= x from above, ln(1 + x) >= ln x from below."""
    from scipy.optimize import brentq  # slow to import, and every message a client answers is a new process

    positive = spectrum[spectrum > 0].double()
    if positive.numel() == 0:
        raise DefenseError("the images do not differ from each other: their covariance is zero and no channel fits it")
    logs = positive.log()
    low = float(logs.mean()) - 2 * kappa / positive.numel() - 1e-9
    high = math.log(float(positive.sum()) / (2 * kappa)) + 1e-9
    root = brentq(lambda s: log_capacity(logs, s) - kappa, low - 1.0, max(high, low) + 1.0, xtol=1e-12, rtol=1e-14)
    return math.exp(root)


def describe(kappa: float, batch: int, images: Tensor, *, as_printed: bool = False) -> Tree:
    """What a channel was solved for, kept with it."""
    pixels = images[0].numel() if len(images) else 0
    described = {"kappa": kappa, "batch": batch, "pixels": pixels, "as_printed": as_printed}
    return {name: torch.tensor(float(value), dtype=torch.float64) for name, value in described.items()}


def check_fitted(batch: Tensor, fitted: Tree, wanted: Tree) -> None:
    """Refuse a saved channel that belongs to other settings or images than these."""
    if any(float(fitted[name]) != float(wanted[name]) for name in ("kappa", "batch", "as_printed")):
        raise DefenseError("the saved channel was solved for another kappa or batch: remove this client's state")
    if len(batch) and float(fitted["pixels"]) != float(wanted["pixels"]):
        raise DefenseError(
            f"batch of shape {tuple(batch.shape[1:])} does not have the {int(fitted['pixels'])} pixels fitted"
        )


def _fit_natural(images: Tensor, generator: PrivateGenerator, settings: NaturalChannel) -> State:
    variance = solve_variance(eigenvalues(images) / settings.batch, settings.kappa)
    described = describe(settings.kappa, settings.batch, images)
    return {"channel": {"variance": torch.tensor(variance, dtype=torch.float64), **described}}


def _apply_natural(batch: Tensor, state: State, generator: PrivateGenerator, settings: NaturalChannel) -> Tensor:
    check_fitted(batch, state["channel"], describe(settings.kappa, settings.batch, batch))
    deviation = math.sqrt(float(state["channel"]["variance"]))
    noisy = generator.normal(*batch.shape).to(batch.device).mul_(deviation).add_(batch)
    return to_grid(noisy, deviation).to(batch.dtype)


def natural_channel(settings: NaturalChannel) -> DataDefense:
    return DataDefense(
        fit=functools.partial(_fit_natural, settings=settings),
        apply=functools.partial(_apply_natural, settings=settings),
    )
