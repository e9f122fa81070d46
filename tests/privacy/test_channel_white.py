"""The white channel has the covariance of the data, scaled, and the capacity asked for."""

import math

import numpy as np
import pytest
import torch

from core.errors import DefenseError
from privacy.channel import capacity, eigenvalues
from privacy.channel_white import WhiteChannel, white_channel


def images(n: int, side: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(seed))


def exact_capacity(x: torch.Tensor, noise: np.ndarray) -> float:
    """1/2 ln det(I + Sigma_D Sigma_xi^-1) on the span of the data, from full matrices."""
    cov = np.cov(x.reshape(len(x), -1).double().numpy(), rowvar=False)
    values, q = np.linalg.eigh(cov)
    q = q[:, values > values[-1] * 1e-10]
    return float(0.5 * np.linalg.slogdet(np.eye(q.shape[1]) + (q.T @ cov @ q) @ np.linalg.inv(q.T @ noise @ q))[1])


@pytest.mark.parametrize("n, side", [(12, 5), (25, 5), (26, 5), (200, 5)])
@pytest.mark.parametrize("kappa", [2.0, 40.0])
def test_the_noise_covariance_gives_kappa(n: int, side: int, kappa: float) -> None:
    x = images(n, side, seed=n)
    factor = white_channel(WhiteChannel(kappa)).fit(x)["channel"]["factor"].double().numpy()
    assert exact_capacity(x, factor.T @ factor) == pytest.approx(kappa, rel=1e-6)


def test_every_eigendirection_gets_the_same_multiple_of_its_variance() -> None:
    x = images(60, 4)
    factor = white_channel(WhiteChannel(10.0)).fit(x)["channel"]["factor"].double().numpy()
    cov = np.cov(x.reshape(60, -1).double().numpy(), rowvar=False)
    np.testing.assert_allclose(factor.T @ factor, cov / math.expm1(2 * 10.0 / 16), rtol=1e-4, atol=1e-8)


def test_the_noise_drawn_has_that_covariance() -> None:
    x = images(30, 3)
    channel = white_channel(WhiteChannel(5.0))
    state = channel.fit(x)
    batch = torch.zeros(60_000, 1, 3, 3)
    noise = channel.apply(batch, state, torch.Generator().manual_seed(1)).reshape(-1, 9).double()
    wanted = (state["channel"]["factor"].T @ state["channel"]["factor"]).double()
    scale = float(wanted.diagonal().max())
    assert float(noise.mean(0).abs().max()) < 5 * math.sqrt(scale / 60_000)
    assert float((noise.T @ noise / 60_000 - wanted).abs().max()) < 8 * scale / math.sqrt(60_000)


def test_on_white_data_it_is_the_natural_channel() -> None:
    """Equal eigenvalues: both channels must choose the same variance."""
    x = torch.cat([torch.eye(9), -torch.eye(9)]).reshape(18, 1, 3, 3) + 0.5
    factor = white_channel(WhiteChannel(6.0)).fit(x)["channel"]["factor"].double()
    variance = float((factor.T @ factor).diagonal().mean())
    assert capacity(eigenvalues(x), variance) == pytest.approx(6.0, rel=1e-6)


def test_as_printed_counts_pixels_without_variance_and_gives_more_noise() -> None:
    x = torch.nn.functional.pad(images(40, 3), (1, 1, 1, 1), value=0.5)
    printed = white_channel(WhiteChannel(4.0, as_printed=True)).fit(x)["channel"]["factor"].double()
    assert exact_capacity(x, (printed.T @ printed).numpy()) == pytest.approx(4.0 * 9 / 25, rel=1e-6)
    shown = white_channel(WhiteChannel(4.0)).apply(x, white_channel(WhiteChannel(4.0)).fit(x), torch.Generator())
    assert torch.allclose(shown[:, :, 0], torch.tensor(0.5), atol=1e-6)  # constant pixels tell nothing


def test_a_huge_kappa_is_no_noise_and_a_batch_is_charged_in_full() -> None:
    x = images(20, 3)
    huge = white_channel(WhiteChannel(1e6))
    assert torch.equal(huge.apply(x, huge.fit(x), torch.Generator()), x)
    assert WhiteChannel(10.0, batch=4).nats_per_step == 40.0


@pytest.mark.parametrize("x", [images(1, 4), torch.full((5, 1, 4, 4), 0.3), images(3, 4).fill_(torch.nan)])
def test_what_has_no_covariance_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(DefenseError):
        white_channel(WhiteChannel()).fit(x)


def test_a_channel_of_other_settings_is_refused() -> None:
    x = images(6, 4)
    state = white_channel(WhiteChannel(50.0)).fit(x)
    for other in (WhiteChannel(60.0), WhiteChannel(50.0, as_printed=True)):
        with pytest.raises(DefenseError, match="another kappa"):
            white_channel(other).apply(x, state, torch.Generator())
