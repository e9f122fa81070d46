"""The white channel has the covariance of the data, scaled, and the capacity asked for."""

import math

import numpy as np
import pytest
import torch

from prunella.core.errors import DefenseError
from prunella.core.randomness import rehearsal
from prunella.privacy.channel import capacity, eigenvalues
from prunella.privacy.channel_white import WhiteChannel, white_channel

FIT = rehearsal(0, purpose="fit")  # nothing that is fitted in this file draws


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
    factor = white_channel(WhiteChannel(kappa)).fit(x, FIT)["channel"]["factor"].double().numpy()
    assert exact_capacity(x, factor.T @ factor) == pytest.approx(kappa, rel=1e-6)


def test_every_eigendirection_gets_the_same_multiple_of_its_variance() -> None:
    x = images(60, 4)
    factor = white_channel(WhiteChannel(10.0)).fit(x, FIT)["channel"]["factor"].double().numpy()
    cov = np.cov(x.reshape(60, -1).double().numpy(), rowvar=False)
    np.testing.assert_allclose(factor.T @ factor, cov / math.expm1(2 * 10.0 / 16), rtol=1e-4, atol=1e-8)


def test_the_noise_drawn_has_that_covariance() -> None:
    x = images(30, 3)
    channel = white_channel(WhiteChannel(5.0))
    state = channel.fit(x, FIT)
    batch = torch.zeros(60_000, 1, 3, 3)
    noise = channel.apply(batch, state, rehearsal(1, purpose="test")).reshape(-1, 9).double()
    wanted = (state["channel"]["factor"].T @ state["channel"]["factor"]).double()
    scale = float(wanted.diagonal().max())
    assert float(noise.mean(0).abs().max()) < 5 * math.sqrt(scale / 60_000)
    assert float((noise.T @ noise / 60_000 - wanted).abs().max()) < 8 * scale / math.sqrt(60_000)


def test_on_white_data_it_is_the_natural_channel() -> None:
    """Equal eigenvalues: both channels must choose the same variance."""
    x = torch.cat([torch.eye(9), -torch.eye(9)]).reshape(18, 1, 3, 3) + 0.5
    factor = white_channel(WhiteChannel(6.0)).fit(x, FIT)["channel"]["factor"].double()
    variance = float((factor.T @ factor).diagonal().mean())
    assert capacity(eigenvalues(x), variance) == pytest.approx(6.0, rel=1e-6)


def test_as_printed_counts_pixels_without_variance_and_gives_more_noise() -> None:
    x = torch.nn.functional.pad(images(40, 3), (1, 1, 1, 1), value=0.5)
    printed = white_channel(WhiteChannel(4.0, as_printed=True)).fit(x, FIT)["channel"]["factor"].double()
    assert exact_capacity(x, (printed.T @ printed).numpy()) == pytest.approx(4.0 * 9 / 25, rel=1e-6)
    channel = white_channel(WhiteChannel(4.0))
    shown = channel.apply(x, channel.fit(x, FIT), rehearsal(0, purpose="test"))
    assert torch.allclose(shown[:, :, 0], torch.tensor(0.5), atol=1e-6)  # constant pixels tell nothing


def test_a_huge_kappa_is_no_noise_and_a_batch_is_charged_in_full() -> None:
    x = images(20, 3)
    huge = white_channel(WhiteChannel(1e6))
    assert torch.equal(huge.apply(x, huge.fit(x, FIT), rehearsal(0, purpose="test")), x)
    assert WhiteChannel(10.0, batch=4).nats_per_step == 40.0


@pytest.mark.parametrize("x", [images(1, 4), torch.full((5, 1, 4, 4), 0.3), images(3, 4).fill_(torch.nan)])
def test_what_has_no_covariance_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(DefenseError):
        white_channel(WhiteChannel()).fit(x, FIT)


def test_a_channel_of_other_settings_is_refused() -> None:
    x = images(6, 4)
    state = white_channel(WhiteChannel(50.0)).fit(x, FIT)
    for other in (WhiteChannel(60.0), WhiteChannel(50.0, as_printed=True)):
        with pytest.raises(DefenseError, match="another kappa"):
            white_channel(other).apply(x, state, rehearsal(0, purpose="test"))


def low_rank(n: int, side: int, rank: int, scales: float = 1.0) -> torch.Tensor:
    """float32 images of this rank about their mean but for rounding; the last direction is ``scales`` of the others."""
    draw = torch.Generator().manual_seed(n + rank)
    weights = torch.rand(n, rank, generator=draw)
    weights[:, -1] *= scales
    return (0.2 + weights @ torch.rand(rank, side * side, generator=draw) / rank).reshape(n, 1, side, side)


def delivered(x: torch.Tensor, state: dict[str, torch.Tensor]) -> float:
    """1/2 ln det(A Sigma A^T + Sigma_xi) / det Sigma_xi of x~ = A x + xi, where numpy finds images that differ by more
    than float32 rounds them; infinite where some of that has no noise."""
    cov = np.cov(x.reshape(len(x), -1).double().numpy(), rowvar=False)
    if "basis" in state:
        basis = state["basis"].double().numpy()
        cov = basis.T @ basis @ cov @ basis.T @ basis
    flat = x.flatten(1).double().numpy()
    _, singular, q = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    q = q[singular > np.finfo(np.float32).eps * max(flat.shape) * singular[0]]
    factor = state["factor"].double().numpy()
    noise = q @ factor.T @ factor @ q.T
    return float(0.5 * np.linalg.slogdet(np.eye(len(q)) + q @ cov @ q.T @ np.linalg.inv(noise))[1])


LOW = {
    "fewer images than pixels": low_rank(10, 6, 4),
    "more images than pixels": low_rank(90, 6, 5),
    "as many": low_rank(36, 6, 7),
    "one direction": low_rank(12, 5, 1),
    "a faint direction": low_rank(30, 5, 3, scales=1e-3),
    "two images": images(2, 5),
    "every image three times": images(5, 6).repeat(3, 1, 1, 1),
    "the same image but once": torch.cat([images(1, 5, 1).repeat(9, 1, 1, 1), images(1, 5, 2)]),
    "constant pixels": torch.nn.functional.pad(images(60, 4), (1, 1, 1, 1), value=0.3),
    "a pattern of bytes in steps": (torch.arange(1, 16).view(-1, 1, 1, 1) * torch.arange(1, 17).view(4, 4)).float()
    / 255,
    "bytes": (images(40, 5) * 255).round() / 255,
    "far from zero": low_rank(20, 5, 3) + 7,
}


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("kappa", [3.0, 25.0])
def test_the_rank_is_that_of_the_images_and_not_of_their_rounding(name: str, kappa: float) -> None:
    """kappa 3 delivered 1.87 where float32's rounding was counted as directions of its own."""
    state = white_channel(WhiteChannel(kappa)).fit(LOW[name], FIT)["channel"]
    assert delivered(LOW[name], state) == pytest.approx(kappa, rel=1e-6)


def test_a_step_of_one_byte_in_one_image_is_no_rounding() -> None:
    """The least that stored pictures can differ by keeps its direction and its noise."""
    x = torch.cat([images(1, 6).repeat(400, 1, 1, 1).mul(255).round().div(255), images(20, 6)])
    x[0, 0, 0, 0] += 1 / 255
    state = white_channel(WhiteChannel(5.0)).fit(x, FIT)["channel"]
    assert "basis" not in state and delivered(x, state) == pytest.approx(5.0, rel=1e-6)


def test_what_only_rounding_tells_of_an_image_is_taken_out() -> None:
    """Without noise of its own it would leave bare: which bits were rounded is as good as a fingerprint."""
    x = low_rank(10, 6, 4)
    channel = white_channel(WhiteChannel(3.0))
    state = channel.fit(x, FIT)
    flat = x.flatten(1).double()
    basis, mean = state["channel"]["basis"], state["channel"]["mean"]
    bare = (mean + (flat - mean) @ basis.T @ basis).reshape(x.shape)
    assert float((flat.reshape(x.shape) - bare).abs().max()) > 1e-9
    shown = [channel.apply(images, state, rehearsal(1, purpose="x")) for images in (x.double(), bare)]
    assert float((shown[0] == shown[1]).double().mean()) > 0.999
    quiet = white_channel(WhiteChannel(1e6))
    torch.testing.assert_close(quiet.apply(x, quiet.fit(x, FIT), rehearsal(0, purpose="x")), x)
