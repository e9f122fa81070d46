"""White channel (CHN 5.2, Eq. 19): noise shaped like the data, so that every eigendirection tells equally much.

Sigma_xi = Q Psi Q^T in the eigenbasis of the data's covariance with sigma_i = lambda_i / (e^(2 kappa / r) - 1), r the
number of eigenvalues above zero: 1/2 sum_i ln((lambda_i + sigma_i) / sigma_i) = kappa exactly. Since every sigma_i is
the same multiple of lambda_i, xi is a draw from the data's own covariance, scaled: factor^T z with the factor [r, d]
whose rows are sqrt(sigma_i) q_i. With at most as many images as pixels the centred images themselves are such a factor,
and no eigenvector is needed.

[erratum] The paper divides 2 kappa by d, the number of pixels. Where the covariance has rank r < d that solves for
kappa r / d, with more noise than asked: ``as_printed``. A direction in which the images do not differ gets no noise and
adds nothing. ``batch``, what is claimed, units and errors are those of ``channel.py``.

State: the factor as float32, at most d x d values (38 MB on 3 x 32 x 32 pixels with more images than pixels).

>>> x = torch.rand(30, 1, 2, 2, generator=torch.Generator().manual_seed(0))
>>> defense = white_channel(WhiteChannel(kappa=4.0))
>>> defense.apply(x, defense.fit(x), torch.Generator().manual_seed(1)).shape
torch.Size([30, 1, 2, 2])
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from core.config import Count, Positive
from core.errors import DefenseError
from privacy.channel import ZERO, centre, check_fitted, describe
from privacy.defense import DataDefense, State


@dataclass(frozen=True)
class WhiteChannel:
    """``kappa`` nats per local step; the paper uses 500, 800, 1000 and 1500 on 3072 pixels."""

    kappa: Positive = 500.0
    batch: Count = 1
    as_printed: bool = False

    @property
    def nats_per_step(self) -> float:
        return self.kappa * self.batch


def directions(images: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues above zero [r] and a factor F [m, d] with F^T F = the sample covariance, float64."""
    centered = centre(images) / math.sqrt(len(images) - 1)
    if centered.shape[0] <= centered.shape[1]:
        values = torch.linalg.eigvalsh(centered @ centered.T)
        return _positive(values)[1], centered
    spectrum, vectors = torch.linalg.eigh(centered.T @ centered)
    positive, values = _positive(spectrum)
    return values, (vectors[:, positive] * values.sqrt()).T


def _positive(values: Tensor) -> tuple[Tensor, Tensor]:
    """Which eigenvalues, ascending, are more than rounding, and those."""
    positive = values > values[-1].clamp(min=0) * len(values) * ZERO
    return positive, values[positive]


def _fit(images: Tensor, settings: WhiteChannel) -> State:
    values, factor = directions(images)
    if not values.numel():
        raise DefenseError("the images do not differ from each other: their covariance is zero and no channel fits it")
    dimensions = images[0].numel() if settings.as_printed else values.numel()
    multiple = 1 / (settings.batch * math.expm1(min(2 * settings.kappa / dimensions, 700.0)))
    described = describe(settings.kappa, settings.batch, images, as_printed=settings.as_printed)
    return {"channel": described | {"factor": (factor * math.sqrt(multiple)).float()}}


def _apply(batch: Tensor, state: State, generator: Generator, settings: WhiteChannel) -> Tensor:
    fitted = state["channel"]
    check_fitted(batch, fitted, describe(settings.kappa, settings.batch, batch, as_printed=settings.as_printed))
    factor = fitted["factor"].to(batch.device)
    z = torch.randn(len(batch), len(factor), generator=generator).to(batch.device)
    return batch + (z @ factor).reshape(batch.shape).to(batch.dtype)


def white_channel(settings: WhiteChannel) -> DataDefense:
    return DataDefense(
        fit=functools.partial(_fit, settings=settings), apply=functools.partial(_apply, settings=settings)
    )
