"""The bounds against numpy and scipy, and against each other."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy, multivariate_normal, norm

from prunella.privacy.ledger.bounds import binary_entropy, dp_capacity, priprune_corrected, priprune_printed


@pytest.mark.parametrize("p", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_binary_entropy_is_scipys(p: float) -> None:
    assert binary_entropy(p) == pytest.approx(entropy([p, 1 - p], base=2))


@pytest.mark.parametrize("batch", [1, 4, 20])
def test_the_corrected_entropy_term_is_twice_that_of_the_mean_gradient(batch: int) -> None:
    """A mean of B Gaussian gradients is Gaussian with covariance Sigma / B: scipy knows its entropy."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    sigma = root @ root.T + np.eye(5)
    nats = multivariate_normal(cov=sigma / batch).entropy()
    log2_det = np.linalg.slogdet(sigma)[1] / math.log(2)
    assert priprune_corrected(1.0, batch, 5, log2_det) == pytest.approx(2 * nats / math.log(2))


def test_the_printed_form_is_eq_6() -> None:
    p, batch, rank = 0.3, 20, 7
    sigma = np.diag(np.linspace(0.5, 2.0, rank))
    delta = math.log2(abs(np.linalg.det(np.linalg.inv(np.sqrt(sigma)))))
    expected = 1 - (p - 1) / (2 * math.log(2)) + 2 * math.log2(1 / batch) + 2 * delta
    expected += rank * math.log2(2 * math.pi * math.e)
    assert priprune_printed(p, batch, rank, math.log2(np.linalg.det(sigma))) == pytest.approx(expected)


def test_rounds_multiply_pruning_and_batches_lower_variance_raises() -> None:
    assert priprune_corrected(0.3, 2, 9, 1.0, rounds=50) == pytest.approx(50 * priprune_corrected(0.3, 2, 9, 1.0))
    assert priprune_printed(0.3, 2, 9, 1.0, rounds=50) == pytest.approx(50 * priprune_printed(0.3, 2, 9, 1.0))
    for bound in (priprune_printed, priprune_corrected):
        assert bound(0.9, 1, 9, 0.0) < bound(0.5, 1, 9, 0.0) and bound(0.5, 8, 9, 0.0) < bound(0.5, 1, 9, 0.0)
    assert priprune_corrected(0.5, 1, 9, 3.0) > priprune_corrected(0.5, 1, 9, 0.0)
    # the printed sign of log det is the misprint
    assert priprune_printed(0.5, 1, 9, 3.0) < priprune_printed(0.5, 1, 9, 0.0)
    many = priprune_corrected(0.5, 1, 9, 0.0, mask_choices=100)
    assert many == pytest.approx(99 + priprune_corrected(0.5, 1, 9, 0.0))


def gaussian_information(eigenvalues: np.ndarray, clip: float, noise: float, batch: int) -> float:
    """Nats that a mean of ``batch`` Gaussian gradients tells under noise of deviation noise * clip on the sum."""
    variance = (noise * clip / batch) ** 2
    both = norm.entropy(scale=np.sqrt(eigenvalues / batch + variance)).sum()  # the dimensions are independent
    return float(both - 0.5 * len(eigenvalues) * math.log(2 * math.pi * math.e * variance))


@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("clip, noise", [(1.0, 0.8), (1.0, 0.2), (10.0, 1.4)])
def test_no_gradients_under_the_clip_tell_more_than_the_corrected_capacity(
    batch: int, clip: float, noise: float
) -> None:
    rng = np.random.default_rng(batch)
    for dimensions in (1, 3, 40):
        spread = rng.dirichlet(np.full(dimensions, 0.5)) * clip**2  # a variance of at most clip^2 in all
        told = gaussian_information(spread, clip, noise, batch)
        assert 0 < told <= dp_capacity(clip, (noise * clip) ** 2, batch)
        assert dp_capacity(clip, (noise * clip) ** 2, batch, as_printed=True) >= 2 * told


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_the_corrected_capacity_is_reached_and_the_printed_one_is_twice_that(noise: float) -> None:
    """By a variance of clip^2 spread over ever more dimensions: so the half belongs there, and nothing less will do."""
    many = 3000
    told = gaussian_information(np.full(many, 1.0 / many), 1.0, noise, 1)
    assert told == pytest.approx(dp_capacity(1.0, noise**2, 1), rel=2e-3)
    assert dp_capacity(1.0, noise**2, 1, as_printed=True) == 2 * dp_capacity(1.0, noise**2, 1)


def test_the_documentation_prints_the_capacities() -> None:
    text = " ".join((Path(__file__).parents[3] / "docs" / "defenses.md").read_text().split())
    assert f"a noise multiplier of 1 lets at most {dp_capacity(1.0, 1.0, 1):.2f} nats of an image" in text
    variance = 2 * math.log(1.25 / 1e-5)  # that the Gaussian mechanism takes for it, of a clip bound of 1
    assert f"for ε 1 at δ 1e-5 lets through at most {dp_capacity(1.0, variance, 1):.3f};" in text


def test_a_capacity_of_impossible_arguments_raises() -> None:
    for clip, variance, batch in ((0.0, 1.0, 1), (1.0, 0.0, 1), (1.0, 1.0, 0), (math.nan, 1.0, 1), (1.0, math.inf, 1)):
        with pytest.raises(ValueError):
            dp_capacity(clip, variance, batch)


@pytest.mark.parametrize("bad", [(-0.1, 1, 1), (0.5, 0, 1), (0.5, 1, -1)])
def test_impossible_arguments_raise(bad: tuple[float, int, int]) -> None:
    with pytest.raises(ValueError):
        priprune_corrected(*bad, 0.0)
    with pytest.raises(ValueError):
        priprune_printed(*bad, 0.0)
