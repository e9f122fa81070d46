"""IIP beside chance: the baseline knows that the assignment chose the pairs."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from prunella.attacks.score.gallery import Gallery
from prunella.attacks.score.leakage import assign, score
from prunella.attacks.score.likeness import squared_errors
from prunella.attacks.score.nearest import by_chance, identifiable, noise_beside
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.tasks.examples import Examples


def digits(seed: int) -> Examples:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(seed))
    return Examples(
        torch.tensor(found.images / 16, dtype=torch.float32)[:, None][order], torch.tensor(found.target)[order]
    )


def naive(truth: Tensor, pairs: tuple[tuple[int, int], ...], guess: Tensor) -> float:
    errors, twins = squared_errors(guess, truth), squared_errors(truth, truth) == 0
    return sum(bool((errors[g, t] < errors[g, ~twins[t]]).all()) for t, g in pairs) / len(pairs)


def test_it_is_the_slow_obvious_loop_with_twins_too() -> None:
    x = digits(0).x
    truth, guess = x[[0, 1, 2, 3, 3, 4]], x[[5, 1, 6, 3, 3]]
    pairs = assign(truth, guess)
    assert 0 < identifiable(truth, pairs, guess) == naive(truth, pairs, guess) < 1


@pytest.mark.parametrize("count", [2, 16])
def test_without_a_leak_it_is_chance_which_is_far_more_than_one_in_n(count: int) -> None:
    """A null: other people's digits in place of a reconstruction, over 40 batches."""
    shares, noise, others = [], [], []
    for seed in range(40):
        found = digits(seed)
        truth, guess, rest = found.x[:count], found.x[count : 2 * count], slice(2 * count, 2 * count + 300)
        result = score(
            Reconstruction(guess, None, 0.0, 1), PrivateBatch(truth, found.y[:count]),
            gallery=Examples(found.x[rest], found.y[rest]),
        )  # fmt: skip
        shares.append(result.iip)
        noise.append(result.iip_random)
        others.append(result.iip_other)
    mean, low, high = (float(torch.tensor(each).mean()) for each in (shares, noise, others))
    assert mean > 1.3 / count and high == pytest.approx(mean, abs=0.08) and 1.3 / count < low < high + 0.08


def test_a_copy_is_above_its_chance() -> None:
    found = digits(1)
    truth = PrivateBatch(found.x[:16], found.y[:16])
    result = score(Reconstruction(truth.x, None, 0.0, 1), truth, gallery=Examples(found.x[16:316], found.y[16:316]))
    assert result.iip == 1 and result.iip_random < 0.7 and result.iip_other < 0.7


def test_the_batches_have_the_twins_of_the_truth_and_a_small_gallery_has_none() -> None:
    found = digits(2)
    rows = [0, 1, 1, 2, 0, 1]
    truth = PrivateBatch(found.x[rows], found.y[rows])
    for rest, count in ((found.x[10:210], 32), (found.x[10:12], 0)):
        batches = list(Gallery(Examples(rest, found.y[10 : 10 + len(rest)]), truth, found.x[300:306]).batches())
        assert len(batches) == count
        for x, guess in batches:
            assert x.shape == truth.x.shape and guess is batches[0][1]
            same = squared_errors(x, x) == 0
            assert torch.equal(same, squared_errors(truth.x, truth.x) == 0)
    assert by_chance(batches) is None


def test_of_one_image_chance_is_against_a_flat_one() -> None:
    truth = digits(3).x[:1]
    assert identifiable(truth, ((0, 0),), truth) == 1
    assert by_chance(noise_beside(truth, truth)) == 0, "noise is nearer to grey than to a digit"
