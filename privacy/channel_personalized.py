"""Personalized channel (CHN 5.2, Eq. 20): more noise where a map of importances says that pixels tell more.

Sigma_xi = sigma diag(beta), beta > 0 per pixel, the same for every colour channel. sigma solves
f = 1/2 [ln det(Sigma_D + sigma diag beta) - sum_i ln(sigma beta_i)] = kappa. Divided by diag(beta) on both sides of
the determinant this is the natural channel of images scaled by beta^(-1/2), so one eigendecomposition gives the
exact determinant for every sigma, and Theorem 3's bound is not needed; beta = 1 is the natural channel.

[erratum] Eq. 20 prints the quotient ln det(Sigma_D + sigma diag beta) / (2 sum_i ln(sigma beta_i)) = kappa; B.3 derives
the difference. With L = ln det(I + diag(beta)^-1 Sigma_D / sigma) and D = sum_i ln(sigma beta_i) the quotient is
(D + L) / 2D, so ``as_printed`` solves L = (2 kappa - 1) D. That puts sigma just above the reciprocal geometric mean of
beta whatever the images are, usually far more noise than kappa asks for; it bounds nothing, so the ledger adds none.

``importance`` is the map: ``box:top,bottom,left,right`` in shares of height and width (the paper's: rows 12 to 19 and
columns 8 to 23 of 32, beta 50 ``inside`` and 1 ``outside``), a ``.npy`` array [H, W] of beta, or an image file, whose
grey value goes from ``outside`` (black) to ``inside`` (white). A run says ``site`` for the file that each client's
owner names (``own_map``), and cannot name another: errors and the noise itself would tell what is in it.
``ConfigError`` names the setting, never what a file holds. Everything else as in ``channel.py``.

>>> importance_map(PersonalizedChannel(importance="box:0,0.5,0,1", inside=3.0), 2, 2).tolist()
[[3.0, 3.0], [1.0, 1.0]]
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from prunella.core.config import Count, Positive, Raw
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.extras import require
from prunella.core.randomness import PrivateGenerator
from prunella.privacy.channel import check_fitted, describe, eigenvalues, log_capacity, solve_variance
from prunella.privacy.defense import DataDefense, Equal, Smaller, State
from prunella.privacy.gaussian import to_grid

KEY, SITE = "channel-personalized.importance", "site"


@dataclass(frozen=True)
class PersonalizedChannel:
    """More noise at the pixels that a map calls important, and so less at the others.

    The paper uses kappa 500 to 1500 and beta 1 : 50.
    """

    kappa: Smaller[Positive] = 500.0  #: most nats that one local step leaks about one image
    batch: Smaller[Count] = 1  #: as in channel-natural
    #: the map: `box:top,bottom,left,right` in shares of the image, or `site`: the file of each client's owner
    importance: Equal[str] = "box:0.375,0.625,0.25,0.75"
    inside: Equal[Positive] = 50.0  #: weight of the noise inside the box, or where the image file is white
    outside: Equal[Positive] = 1.0  #: weight of the noise elsewhere
    as_printed: Equal[bool] = False  #: solve Eq. 20 as the paper prints it, which bounds nothing

    def __post_init__(self) -> None:
        if self.importance.startswith("box:"):
            _box(self.importance)
        if self.as_printed and self.kappa <= 0.5:
            raise ConfigError("channel-personalized.as-printed: the quotient is above 1/2, and so must kappa be")

    @property
    def nats_per_step(self) -> float | None:
        return None if self.as_printed else self.kappa * self.batch


def own_map(raw: Raw, own: object) -> Raw:
    """The settings of a run with the map that this client uses: the run's box, or, where the run says ``SITE`` or names
    the very file, the one that the owner named in the node configuration, ``own``. Raises ``ConfigError``.

    >>> own_map({KEY: "site"}, "mine.npy")
    {'channel-personalized.importance': 'mine.npy'}
    """
    asked = str(raw.get(KEY, "box:"))
    if asked.startswith("box:"):
        return raw
    if not isinstance(own, str) or asked not in (SITE, own):
        raise ConfigError(
            f"{KEY}: a run names a box, or `{SITE}` for the file that a client's owner names (--importance)"
        )
    return {**raw, KEY: own}


def _box(text: str) -> list[float]:
    """The four shares of ``box:top,bottom,left,right``."""
    try:
        edges = [float(part) for part in text.removeprefix("box:").split(",")]
        top, bottom, left, right = edges
    except ValueError:
        raise ConfigError("channel-personalized.importance: write box:top,bottom,left,right as shares of 1") from None
    if not (0 <= top < bottom <= 1 and 0 <= left < right <= 1):
        raise ConfigError("channel-personalized.importance: a box needs 0 <= top < bottom <= 1, and so left, right")
    return edges


def _from_box(settings: PersonalizedChannel, height: int, width: int) -> Tensor:
    top, bottom, left, right = _box(settings.importance)
    beta = torch.full((height, width), settings.outside, dtype=torch.float64)
    beta[round(top * height) : round(bottom * height), round(left * width) : round(right * width)] = settings.inside
    return beta


def _from_file(settings: PersonalizedChannel, height: int, width: int) -> Tensor:
    try:
        if settings.importance.endswith(".npy"):
            return torch.from_numpy(np.load(settings.importance, allow_pickle=False).astype(np.float64))
        require("vision", "PIL")
        from PIL import Image

        with Image.open(settings.importance) as picture:
            grey = np.asarray(picture.convert("L").resize((width, height)), dtype=np.float64) / 255
    except (OSError, ValueError, TypeError):
        raise ConfigError(
            "channel-personalized.importance names no .npy array or image that can be read on this machine"
        ) from None
    return torch.from_numpy(settings.outside + (settings.inside - settings.outside) * grey)


def importance_map(settings: PersonalizedChannel, height: int, width: int) -> Tensor:
    """beta [H, W], float64, positive and finite."""
    read = _from_box if settings.importance.startswith("box:") else _from_file
    beta = read(settings, height, width)
    if tuple(beta.shape) != (height, width):
        raise ConfigError(f"{KEY}: the map has another shape than the images, {height} x {width}")
    if not bool((torch.isfinite(beta) & (beta > 0)).all()):
        raise ConfigError("channel-personalized.importance must be positive and finite at every pixel")
    return beta


def solve_printed(spectrum: Tensor, beta: Tensor, kappa: float) -> float:
    """The sigma of Eq. 20's quotient; ``spectrum`` that of diag(beta)^-1 Sigma_D, ``beta`` flattened with channels."""
    from scipy.optimize import brentq

    positive = spectrum[spectrum > 0].double()
    if positive.numel() == 0:
        raise DefenseError("the images do not differ from each other: their covariance is zero and no channel fits it")
    logs, pole = positive.log(), -float(beta.log().mean())

    def gap(s: float) -> float:
        return 2 * log_capacity(logs, s) - (2 * kappa - 1) * beta.numel() * (s - pole)

    high = pole + 2 * log_capacity(logs, pole) / ((2 * kappa - 1) * beta.numel())
    return math.exp(brentq(gap, pole, high, xtol=1e-15, rtol=1e-14))


def _spread(beta: Tensor, images: Tensor) -> Tensor:
    return beta.expand(images.shape[1:]).contiguous()


def _fit(images: Tensor, generator: PrivateGenerator, settings: PersonalizedChannel) -> State:
    beta = _spread(importance_map(settings, images.shape[-2], images.shape[-1]), images)
    spectrum = eigenvalues(images.double().cpu() / beta.sqrt()) / settings.batch
    if settings.as_printed:
        variance = solve_printed(spectrum, beta.flatten(), settings.kappa)
    else:
        variance = solve_variance(spectrum, settings.kappa)
    described = describe(settings.kappa, settings.batch, images, as_printed=settings.as_printed)
    deviation = (variance * beta).sqrt()
    return {"channel": described | {"variance": torch.tensor(variance, dtype=torch.float64), "deviation": deviation}}


def _apply(batch: Tensor, state: State, generator: PrivateGenerator, settings: PersonalizedChannel) -> Tensor:
    fitted = state["channel"]
    check_fitted(batch, fitted, describe(settings.kappa, settings.batch, batch, as_printed=settings.as_printed))
    deviation = fitted["deviation"].to(batch.device)
    noisy = generator.normal(*batch.shape).to(batch.device).mul_(deviation).add_(batch)
    return to_grid(noisy, deviation).to(batch.dtype)


def personalized_channel(settings: PersonalizedChannel) -> DataDefense:
    return DataDefense(
        fit=functools.partial(_fit, settings=settings), apply=functools.partial(_apply, settings=settings)
    )
