"""Moments of the noise, and that it is fresh."""

import pytest
import torch

from core.errors import ConfigError
from privacy.gaussian import GaussianNoise, gaussian


def test_the_noise_has_the_moments_it_says_and_is_fresh() -> None:
    tree = {"w": torch.full((400, 300), 2.0), "b": torch.tensor(1.0, dtype=torch.float64)}
    g, defense = torch.Generator().manual_seed(0), gaussian(GaussianNoise(0.05))
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
