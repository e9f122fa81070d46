"""NMI and AMI are scikit-learn's, constant and unrelated arrays included."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from prunella.attacks.score.information import information


@pytest.mark.parametrize("levels", [1, 2, 16, 256])
@pytest.mark.parametrize("size", [1, 2, 64, 3072])
def test_both_are_scikit_learn_s(levels: int, size: int) -> None:
    random = np.random.default_rng(levels * size)
    for kept in (0.0, 0.3, 0.9, 1.0):
        one = random.integers(0, levels, size)
        other = np.where(random.random(size) < kept, one, random.integers(0, levels, size))
        for pair in ((one, other), (other, one), (one, np.zeros_like(one)), (np.full(size, 3), np.full(size, 2))):
            expected = normalized_mutual_info_score(*pair), adjusted_mutual_info_score(*pair)
            assert information(*pair) == pytest.approx(expected, abs=1e-9)
