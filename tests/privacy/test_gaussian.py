"""Moments of the noise, that it is fresh, and that no bit of a result tells what the noise was added to."""

import math

import pytest
import torch
from scipy import stats

from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator, rehearsal
from prunella.privacy.gaussian import GRID_BITS, GaussianNoise, add_noise, gaussian, grid_of

ODD = [0.0, 1 / 3, -(2**-30) / 3, 1 + 2**-52, 1 - 2**-53, 0.1, -7.7, 5e-324, 1e-200, 12345.678901234567]


def test_the_noise_has_the_moments_it_says_and_is_fresh() -> None:
    tree = {"w": torch.full((400, 300), 2.0), "b": torch.tensor(1.0, dtype=torch.float64)}
    g, defense = rehearsal(0, purpose="test"), gaussian(GaussianNoise(0.05))
    noisy, state = defense.apply(tree, {}, g)
    noise = (noisy["w"] - 2.0).double()
    n = noise.numel()
    assert abs(float(noise.mean())) < 5 * 0.05 / n**0.5
    assert float(noise.var()) == pytest.approx(0.0025, rel=5 * (2 / n) ** 0.5)
    assert float((noise**4).mean()) / 0.0025**2 == pytest.approx(3.0, abs=5 * (96 / n) ** 0.5)
    assert noisy["b"].dtype == torch.float64 and float(noisy["b"]) != 1.0 and state == {}
    assert not torch.equal(defense.apply(tree, {}, g)[0]["w"], noisy["w"])


@pytest.mark.parametrize("deviation", [0.0, -1.0, float("nan")])
def test_no_noise_is_no_defense(deviation: float) -> None:
    with pytest.raises(ConfigError):
        GaussianNoise(deviation)


# ---- the grid


@pytest.mark.parametrize("deviation", [1e-300, 1e-30, 0.01, 0.9999, 1.0, 1.0001, 3.0, 1e30, 1e300])
def test_the_grid_is_a_power_of_two_that_is_fine_beside_the_deviation(deviation: float) -> None:
    grid = grid_of(deviation)
    assert math.frexp(grid)[0] == 0.5 and 2.0**GRID_BITS <= deviation / grid < 2.0 ** (GRID_BITS + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("deviation", [1e-30, 0.01, 1.5, 1e30])
def test_every_result_lies_on_the_grid_whatever_it_was_before(deviation: float, dtype: torch.dtype) -> None:
    """Inputs of every size with all their low bits in use, and of shapes that are drawn in one piece."""
    g = rehearsal(1, purpose="inputs")
    sizes = torch.logspace(-12, 6, 1000, dtype=torch.float64)
    spread = (sizes * g.normal(1000) * deviation).to(dtype)
    tree = {"wide": spread, "odd": torch.tensor(ODD, dtype=dtype) * deviation, "scalar": spread[7], "none": spread[:0]}
    for name, noisy in add_noise(tree, deviation, g).items():
        steps = noisy.double() / grid_of(deviation)
        assert noisy.dtype == dtype and noisy.shape == tree[name].shape
        assert torch.equal(steps, steps.round())
    before = spread.double() / grid_of(deviation)
    assert int((before != before.round()).sum()) > 500  # the inputs did not


@pytest.mark.parametrize("value", ODD)
def test_the_low_bits_are_as_likely_after_every_input(value: float) -> None:
    """The last six above the grid, whose 64 values a deviation of 2^20 steps makes equally likely."""
    noisy = add_noise({"w": torch.full((200_000,), value, dtype=torch.float64)}, 0.7, rehearsal(2, purpose="low"))["w"]
    low = (noisy / grid_of(0.7)).long() & 63
    assert stats.chisquare(torch.bincount(low, minlength=64).numpy()).pvalue > 1e-6


@pytest.mark.parametrize("deviation", [1e-30, 1e-3, 7e5, 1e30])
def test_noise_of_any_deviation_keeps_its_shape_and_the_mean_that_was_there(deviation: float) -> None:
    n, value = 100_000, deviation / 3
    tree = {"w": torch.full((n,), value, dtype=torch.float64)}
    noise = (add_noise(tree, deviation, rehearsal(3, purpose="sizes"))["w"] - value) / deviation
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-6
    assert noise.unique().numel() > n * 0.95  # rounding to 2^-20 makes few of them equal
    assert abs(float(noise.mean())) < 5 / n**0.5


# ---- Mironov's attack


class Given(PrivateGenerator):
    """Normals that were drawn already."""

    def __init__(self, drawn: torch.Tensor) -> None:
        self.drawn = drawn

    def normal(self, *shape: int) -> torch.Tensor:
        return self.drawn.clone()


def rounded(value: float, noise: torch.Tensor) -> torch.Tensor:
    return add_noise({"w": torch.full_like(noise, value)}, 1.0, Given(noise))["w"]


def unrounded(value: float, noise: torch.Tensor) -> torch.Tensor:
    return value + noise


def impossible(mechanism, value: float, results: torch.Tensor) -> int:  # noqa: ANN001
    """How many of ``results`` no float64 noise makes of ``value``: whoever sees one knows that it was not ``value``."""
    nearest = results - value
    up, down = (torch.full_like(nearest, sign * math.inf) for sign in (1, -1))
    candidates = [nearest]
    for far in (up, down):
        step = nearest
        for _ in range(4):
            step = torch.nextafter(step, far)
            candidates.append(step)
    return int((torch.stack([mechanism(value, noise) for noise in candidates]) != results).all(0).sum())


def test_unrounded_noise_tells_one_input_from_another_and_rounded_noise_does_not() -> None:
    """0 and 1/3: a sum with 1/3 has no bits below those of 1/3, and many a sum with 0 has (Mironov, 2012)."""
    noise = rehearsal(4, purpose="mironov").normal(50_000)
    for value, other in ((0.0, 1 / 3), (1 / 3, 0.0)):
        assert impossible(unrounded, value, unrounded(value, noise)) == 0  # the search finds the noise there was
        assert impossible(rounded, value, rounded(value, noise)) == 0
        assert impossible(rounded, other, rounded(value, noise)) == 0
    assert impossible(unrounded, 1 / 3, unrounded(0.0, noise)) > 5_000
