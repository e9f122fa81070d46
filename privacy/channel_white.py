"""White channel (CHN 5.2, Eq. 19): noise shaped like the data, so that every eigendirection tells equally much.

Sigma_xi = Q Psi Q^T in the eigenbasis of the data's covariance with sigma_i = lambda_i / (e^(2 kappa / r) - 1), r the
number of eigenvalues above zero: 1/2 sum_i ln((lambda_i + sigma_i) / sigma_i) = kappa exactly. Since every sigma_i is
the same multiple of lambda_i, xi is a draw from the data's own covariance, scaled: factor^T z with any factor [m, d] of
that. The centred images themselves are one where they are no more than the pixels, else R of their QR decomposition; no
eigenvector is needed.

What counts as zero. Images of rank r that were stored as float32 have full rank: rounding adds a direction each, with
1e-15 of the variance. Counted, each would be granted its part of kappa, and the images get too much noise; not counted
and left in, each would tell of the image what was rounded, which is as good as a fingerprint. A singular value of the
images' matrix X that rounding alone can explain, up to 2 eps |X|_F (eps of the images' type; a step of one byte in one
of 10 000 images of 3072 pixels is ten times that), is no direction of the data, and where there are such, images are
projected on the others before the noise: x~ = mean + V^T V (x - mean) + xi.

[erratum] The paper divides 2 kappa by d, the number of pixels. Where the covariance has rank r < d that solves for
kappa r / d, with more noise than asked: ``as_printed``. A direction in which the images do not differ gets no noise and
adds nothing. ``batch``, what is claimed, units and errors are those of ``channel.py``.

State: the factor as float64, at most d x d values (75 MB on 3 x 32 x 32 pixels with more images than pixels), and
where images are projected the basis V, as large again, and their mean.

>>> draw = PrivateGenerator(bytes(32))
>>> x = draw.uniform(30, 1, 2, 2).float()
>>> defense = white_channel(WhiteChannel(kappa=4.0))
>>> defense.apply(x, defense.fit(x, draw), draw).shape
torch.Size([30, 1, 2, 2])
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Count, Positive
from prunella.core.errors import DefenseError
from prunella.core.randomness import PrivateGenerator
from prunella.privacy.channel import centre, check_fitted, describe, eigenvalues
from prunella.privacy.defense import DataDefense, Equal, Smaller, State
from prunella.privacy.gaussian import to_grid


@dataclass(frozen=True)
class WhiteChannel:
    """Noise with the covariance of the client's own images.

    The paper uses kappa 500, 800, 1000 and 1500 on 3072 pixels.
    """

    kappa: Smaller[Positive] = 500.0  #: most nats that one local step leaks about one image
    batch: Smaller[Count] = 1  #: as in channel-natural
    #: divide by the number of pixels, as the paper prints it, and not by the rank of the images
    as_printed: Equal[bool] = False

    @property
    def nats_per_step(self) -> float:
        return self.kappa * self.batch


def rounding(images: Tensor) -> float:
    """The largest eigenvalue of the covariance that rounding of the images to their type can explain."""
    singular = 2 * torch.finfo(images.dtype).eps * float(images.detach().double().norm())
    return singular**2 / (len(images) - 1)


def directions(images: Tensor) -> tuple[int, Tensor, Tensor | None]:
    """Rank r, a factor F [m, d] with F^T F = the sample covariance of rank r, float64, and a basis [r, d] of its
    directions where the images have others, too, by rounding."""
    values = eigenvalues(images)
    kept = values > rounding(images)
    rank, centered = int(kept.sum()), centre(images) / math.sqrt(len(images) - 1)
    rows = centered if len(centered) <= centered.shape[1] else torch.linalg.qr(centered, mode="r").R
    if not bool((values[~kept] > 0).any()):
        return rank, rows, None
    _, singular, basis = torch.linalg.svd(rows, full_matrices=False)
    return rank, singular[:rank, None] * basis[:rank], basis[:rank]


def _fit(images: Tensor, generator: PrivateGenerator, settings: WhiteChannel) -> State:
    rank, factor, basis = directions(images)
    if not rank:
        raise DefenseError("the images do not differ from each other: their covariance is zero and no channel fits it")
    dimensions = images[0].numel() if settings.as_printed else rank
    multiple = 1 / (settings.batch * math.expm1(min(2 * settings.kappa / dimensions, 700.0)))
    fitted = describe(settings.kappa, settings.batch, images, as_printed=settings.as_printed)
    fitted |= {"factor": factor * math.sqrt(multiple)}
    if basis is not None:
        fitted |= {"basis": basis, "mean": images.detach().flatten(1).double().mean(0).cpu()}
    return {"channel": fitted}


def _apply(batch: Tensor, state: State, generator: PrivateGenerator, settings: WhiteChannel) -> Tensor:
    fitted = state["channel"]
    check_fitted(batch, fitted, describe(settings.kappa, settings.batch, batch, as_printed=settings.as_printed))
    factor = fitted["factor"].to(batch.device)
    z = generator.normal(len(batch), len(factor)).to(batch.device)
    if "basis" in fitted:
        basis, mean = (fitted[name].to(batch.device) for name in ("basis", "mean"))
        # The noise in coordinates of the very basis that images are projected on: nothing lies beside it.
        inside = (batch.flatten(1).double() - mean) @ basis.T + z * factor.norm(dim=1)
        noisy = mean + inside @ basis
    else:
        noisy = (z @ factor).add_(batch.flatten(1))
    return to_grid(noisy, factor.norm(dim=0)).reshape(batch.shape).to(batch.dtype)


def white_channel(settings: WhiteChannel) -> DataDefense:
    return DataDefense(
        fit=functools.partial(_fit, settings=settings), apply=functools.partial(_apply, settings=settings)
    )
