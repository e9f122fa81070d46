import math

import pytest
import torch

from core.errors import DefenseError
from core.randomness import stream
from privacy.noisy_count import noisy_count


def drawn(scale: float, count: int = 7, size: int = 4000) -> torch.Tensor:
    generator = stream(0, purpose="test")
    return torch.tensor([noisy_count(count, scale, generator) for _ in range(size)], dtype=torch.float64)


@pytest.mark.parametrize("scale", [3.0, 20.0])
def test_moments_are_those_of_laplace_noise_rounded(scale: float) -> None:
    noise = drawn(scale) - 7
    deviation = math.sqrt(2 * scale**2 + 1 / 12)
    assert abs(noise.mean()) < 4 * deviation / math.sqrt(len(noise))
    assert noise.abs().mean() == pytest.approx(
        scale, rel=0.06
    )  # of a Laplace, and not of a Gaussian with that variance
    assert noise.std() == pytest.approx(deviation, rel=0.08)


def test_neighbouring_counts_are_as_likely_up_to_the_factor_that_is_claimed() -> None:
    scale, size = 2.0, 20_000
    a, b = drawn(scale, 7, size), drawn(scale, 8, size)
    for value in range(3, 13):
        p, q = ((x == value).double().mean() for x in (a, b))
        slack = 5 * math.sqrt(max(p, q) / size)
        assert p <= math.exp(1 / scale) * q + slack and q <= math.exp(1 / scale) * p + slack
    assert (a == 7).double().mean() > 1.2 * (b == 7).double().mean()  # and it is told apart at all


def test_no_noise_is_an_error() -> None:
    for scale in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(DefenseError, match="above 0"):
            noisy_count(3, scale, stream(0, purpose="test"))
