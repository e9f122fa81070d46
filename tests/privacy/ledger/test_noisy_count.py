"""Laplace noise on a count: its moments and its law, and that a result tells no count from another."""

import math

import pytest
import torch
from scipy import stats

from prunella.core.errors import DefenseError
from prunella.core.randomness import rehearsal
from prunella.privacy.ledger.noisy_count import noisy_count


def drawn(scale: float, count: int = 7, size: int = 4000) -> torch.Tensor:
    generator = rehearsal(0, purpose="test")
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
            noisy_count(3, scale, rehearsal(0, purpose="test"))


def law(scale: float, value: int) -> float:
    """The probability that Laplace noise of this scale rounds to ``value``."""
    return float(stats.laplace.cdf(value + 0.5, scale=scale) - stats.laplace.cdf(value - 0.5, scale=scale))


@pytest.mark.parametrize("scale", [0.5, 2.0, 11.0])
def test_every_whole_number_is_as_likely_as_laplace_s_law_says(scale: float) -> None:
    size, reach = 40_000, round(5 * scale)
    noise = drawn(scale, 0, size)
    values = range(-reach, reach + 1)
    seen = [int((noise == value).sum()) for value in values] + [int((noise.abs() > reach).sum())]
    expected = [law(scale, value) * size for value in values]
    expected.append(size - sum(expected))
    assert stats.chisquare(seen, expected).pvalue > 1e-6


@pytest.mark.parametrize("scale", [1e-6, 0.3, 7.7, 1e12, 1e30])
def test_the_noise_does_not_know_the_count_and_an_answer_is_a_whole_number(scale: float) -> None:
    """So what can come out of one count can come out of every other, whatever a float would have kept of it."""
    counts = (0, 1, 7, 10**6, 2**53 + 1)
    for number in range(200):
        answers = [noisy_count(count, scale, rehearsal(number, purpose="count")) for count in counts]
        assert all(type(answer) is int for answer in answers)
        assert len({answer - count for answer, count in zip(answers, counts, strict=True)}) == 1


def test_a_sum_that_is_not_rounded_tells_one_count_from_another() -> None:
    """The control: noise that takes 7 below 1 is a float between 4 and 8, a multiple of 2^-50, and so is the sum."""
    up, down = rehearsal(0, purpose="control").exponential(2, 20_000)
    steps = {}
    for count in (0, 7):
        total = count + 20.0 * (up - down)
        steps[count] = total[total.abs() < 1] * 2.0**50
    assert len(steps[7]) > 100 and torch.equal(steps[7], steps[7].round())
    assert int((steps[0] != steps[0].round()).sum()) > len(steps[0]) / 4  # 7 can have been behind none of these


def test_fresh_answers_differ() -> None:
    generator = rehearsal(0, purpose="fresh")
    assert len({noisy_count(5, 1e9, generator) for _ in range(100)}) == 100
