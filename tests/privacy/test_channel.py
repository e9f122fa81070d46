"""The natural channel hits its capacity, draws the noise it says, and fails closed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prunella.core.errors import DefenseError
from prunella.core.randomness import rehearsal
from prunella.privacy.channel import (
    ChannelSettings,
    NaturalChannel,
    capacity,
    eigenvalues,
    few_images,
    natural_channel,
    solve_variance,
)
from prunella.privacy.channel_personalized import PersonalizedChannel, personalized_channel
from prunella.privacy.channel_white import WhiteChannel, white_channel
from prunella.privacy.gaussian import grid_of

FIT = rehearsal(0, purpose="fit")  # nothing that is fitted in this file draws


def images(n: int, side: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30), st.floats(0.01, 1500), st.integers(0, 5))
def test_the_solution_has_the_capacity_asked_for(spectrum: list[float], kappa: float, zeros: int) -> None:
    values = torch.tensor(spectrum + [0.0] * zeros, dtype=torch.float64)
    variance = solve_variance(values, kappa)
    if kappa / len(spectrum) < 100:  # beyond, the variance itself underflows what ``capacity`` can divide by
        assert capacity(values, variance) == pytest.approx(kappa, rel=1e-6)


@pytest.mark.parametrize("kappa", [50.0, 100.0, 200.0, 300.0])
@pytest.mark.parametrize("n", [40, 400])
def test_on_images_eq_18_holds_by_determinants(kappa: float, n: int) -> None:
    """Against numpy: half the log-determinant of covariance plus noise over noise."""
    x = images(n, 8)
    variance = float(natural_channel(NaturalChannel(kappa)).fit(x, FIT)["channel"]["variance"])
    cov = np.cov(x.reshape(n, -1).double().numpy(), rowvar=False)
    logdet = np.linalg.slogdet(np.eye(64) + cov / variance)[1]
    assert 0.5 * logdet == pytest.approx(kappa, rel=1e-6)


@pytest.mark.parametrize("n, side", [(5, 6), (36, 6), (37, 6), (200, 3)])
def test_the_gram_trick_gives_the_covariance_spectrum(n: int, side: int) -> None:
    x = images(n, side, seed=n)
    ours = eigenvalues(x).numpy()
    theirs = np.linalg.eigvalsh(np.cov(x.reshape(n, -1).double().numpy(), rowvar=False))
    np.testing.assert_allclose(ours, np.clip(theirs, 0, None)[-len(ours) :], atol=1e-10)
    assert len(ours) == min(n, side * side)


def test_less_capacity_means_more_noise_and_units_scale_with_the_pixels() -> None:
    spectrum = eigenvalues(images(50, 4))
    variances = [solve_variance(spectrum, kappa) for kappa in (1, 10, 100)]
    assert variances[0] > variances[1] > variances[2] > 0
    assert solve_variance(spectrum * 9, 10) == pytest.approx(9 * variances[1])


def test_the_noise_has_the_moments_of_the_channel_and_is_fresh_and_unclamped() -> None:
    x = images(40, 8)
    channel = natural_channel(NaturalChannel(20.0))
    state, g = channel.fit(x, FIT), rehearsal(1, purpose="test")
    batch = x.repeat(40, 1, 1, 1)
    noisy = channel.apply(batch, state, g)
    noise, sigma = (noisy - batch).double(), float(state["channel"]["variance"])
    n = noise.numel()
    assert abs(float(noise.mean())) < 5 * math.sqrt(sigma / n)
    assert float(noise.var()) == pytest.approx(sigma, rel=5 * math.sqrt(2 / n))
    assert float((noise**4).mean()) / sigma**2 == pytest.approx(3.0, abs=5 * math.sqrt(96 / n))
    assert abs(float((noise.flatten()[1:] * noise.flatten()[:-1]).mean())) < 5 * sigma / math.sqrt(n)
    assert bool((noisy < 0).any()) and bool((noisy > 1).any())
    assert not torch.equal(channel.apply(batch, state, g), noisy)


def test_a_huge_kappa_is_no_noise() -> None:
    x = images(30, 4)
    channel = natural_channel(NaturalChannel(5000.0))
    assert torch.equal(channel.apply(x, channel.fit(x, FIT), rehearsal(0, purpose="test")), x)


def test_constant_pixels_add_nothing_and_still_get_noise() -> None:
    x = images(30, 4)
    framed = torch.nn.functional.pad(x, (2, 2, 2, 2), value=0.5)
    channel = natural_channel(NaturalChannel(10.0))
    state = channel.fit(framed, FIT)
    assert float(state["channel"]["variance"]) == pytest.approx(solve_variance(eigenvalues(x), 10.0), rel=1e-6)
    assert bool((channel.apply(framed, state, rehearsal(0, purpose="test"))[:, :, 0] != 0.5).all())


@pytest.mark.parametrize(
    "x", [images(1, 4), torch.full((5, 1, 4, 4), 0.3), torch.zeros(0, 1, 4, 4), images(3, 4).fill_(torch.nan)]
)
def test_what_has_no_covariance_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(DefenseError):
        natural_channel(NaturalChannel()).fit(x, FIT)


def test_a_channel_for_other_settings_or_images_is_refused() -> None:
    x = images(6, 4)
    state = natural_channel(NaturalChannel(50.0)).fit(x, FIT)
    with pytest.raises(DefenseError, match="another kappa"):
        natural_channel(NaturalChannel(60.0)).apply(x, state, rehearsal(0, purpose="test"))
    with pytest.raises(DefenseError, match="pixels"):
        natural_channel(NaturalChannel(50.0)).apply(images(2, 5), state, rehearsal(0, purpose="test"))


@pytest.mark.parametrize("batch", [2, 20])
def test_the_batch_discount_is_not_claimed(batch: int) -> None:
    """lambda / B gives less noise; what holds for one image is then bounded by what the ledger adds, B kappa."""
    x = images(60, 4)
    setting = NaturalChannel(10.0, batch=batch)
    variance = float(natural_channel(setting).fit(x, FIT)["channel"]["variance"])
    assert variance == pytest.approx(solve_variance(eigenvalues(x) / batch, 10.0))
    assert 10.0 < capacity(eigenvalues(x), variance) <= setting.nats_per_step == 10.0 * batch
    assert isinstance(setting, ChannelSettings)


def two_scales(faint: float) -> torch.Tensor:
    """Five images of a strong and a faint pixel: the variances are apart by the square of ``faint``, and exact."""
    x = torch.zeros(5, 1, 3, 3)
    x[:, 0, 0, 0], x[:, 0, 1, 1] = torch.arange(5.0), faint * torch.tensor([1.0, 3.0, 2.0, 0.0, 4.0])
    return x


def by_singular_values(x: torch.Tensor) -> np.ndarray:
    flat = x.flatten(1).double().numpy()
    return np.linalg.svd(flat - flat.mean(0), compute_uv=False) ** 2 / (len(x) - 1)


@pytest.mark.parametrize("faint", [1e-3, 1e-7, 1e-8, 1e-12])
def test_a_faint_direction_counts_where_the_noise_is_fainter(faint: float) -> None:
    """A product of images knows eigenvalues to 1e-16 of the largest; kappa was delivered twice where one was less."""
    x = two_scales(faint)
    variance = float(natural_channel(NaturalChannel(60.0)).fit(x, FIT)["channel"]["variance"])
    found = by_singular_values(x)
    told = 0.5 * np.log1p(found[found > 1e-30 * found[0]] / variance).sum()
    assert told == pytest.approx(60.0, rel=1e-6)


@pytest.mark.parametrize("kappa", [3.0, 90.0])
@pytest.mark.parametrize("copies, constant", [(1, 0), (3, 0), (1, 2), (2, 3)])
def test_duplicates_and_constant_pixels_are_no_directions(kappa: float, copies: int, constant: int) -> None:
    x = torch.nn.functional.pad(images(5, 4).repeat(copies, 1, 1, 1), (constant,) * 4, value=0.3)
    variance = float(natural_channel(NaturalChannel(kappa)).fit(x, FIT)["channel"]["variance"])
    assert 0.5 * np.log1p(by_singular_values(x)[:4] / variance).sum() == pytest.approx(kappa, rel=1e-6)
    assert int((eigenvalues(x) > 0).sum()) == 4


CHANNELS = {"natural": (natural_channel, NaturalChannel(2.0)), "white": (white_channel, WhiteChannel(2.0))}
CHANNELS["personalized"] = (personalized_channel, PersonalizedChannel(2.0))


@pytest.mark.parametrize("kind", CHANNELS)
def test_a_noisy_image_lies_on_one_grid_whatever_the_image(kind: str) -> None:
    """Unrounded, the low bits of x + n told which grey level x was: 250 answers of 0.02 nats gave every pixel."""
    build, settings = CHANNELS[kind]
    channel, x = build(settings), images(30, 4)
    state = channel.fit(x, FIT)
    if kind == "natural":
        deviation = state["channel"]["variance"].sqrt().expand(16)
    else:
        kept = state["channel"]
        deviation = kept["factor"].norm(dim=0) if kind == "white" else kept["deviation"].flatten()[:16]
    grid = torch.tensor([grid_of(float(d)) for d in deviation], dtype=torch.float64)
    for grey in (0.0, 1 / 3, 37 / 255):
        shown = channel.apply(torch.full((50, 1, 4, 4), grey), state, rehearsal(3, purpose="x")).flatten(1).double()
        steps = shown / grid
        assert torch.equal(steps, steps.round())
    plain = torch.full((50, 16), 1 / 3).double() + rehearsal(3, purpose="x").normal(50, 16) * deviation
    assert not torch.equal(plain / grid, (plain / grid).round()), "the control: without rounding they do not"


def test_with_few_images_the_noise_beside_other_peoples_pictures_is_little() -> None:
    """Why their owner is warned: the same kappa asks a few images for much less noise than it asks many for."""
    images = torch.rand(400, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    few, many = (solve_variance(eigenvalues(part), 20.0) for part in (images[:16], images))
    assert many > 2 * few
    assert "15 of 64 directions" in few_images(images[:16]) and few_images(images) == ""
