"""Mutual information of two labellings, normalised (NMI) and corrected for chance (AMI; Vinh, Epps, Bailey 2010).

Equal to scikit-learn's ``normalized_mutual_info_score`` and ``adjusted_mutual_info_score`` with arithmetic means, which
the tests compare with. Here because a client scores audits, and need not install scikit-learn for two numbers.
"""

import numpy as np

_TOGETHER = 64  # tables at a time: 32 MB of 256 levels


def information(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """NMI and AMI of two arrays of whole numbers from 0 on, of one length. Two constant arrays agree: 1 and 1.

    >>> x = np.array([0, 0, 1, 1])
    >>> information(x, 1 - x), information(x, np.array([0, 1, 0, 1]))[0]
    ((1.0, 1.0), 0.0)
    """
    counts = np.zeros((int(one.max()) + 1, int(other.max()) + 1))
    np.add.at(counts, (one, other), 1)
    counts = counts[counts.any(1)][:, counts.any(0)]
    if counts.size == 1 or counts.shape[0] == counts.shape[1] == len(one):
        return 1.0, 1.0
    joint = counts / len(one)
    mean = (_entropy(joint.sum(1)) + _entropy(joint.sum(0))) / 2
    mutual = max(0.0, 2 * mean - _entropy(joint))
    expected = _by_chance(counts.sum(1), counts.sum(0))
    spread = mean - expected
    least = float(np.finfo(float).eps)
    spread = min(spread, -least) if spread < 0 else max(spread, least)
    return (mutual / mean if mutual else 0.0), (mutual - expected) / spread


def normalised(one: np.ndarray, other: np.ndarray, levels: int) -> np.ndarray:
    """NMI of each row of ``one`` [P, D] with its row of ``other``, whole numbers below ``levels``: [P].

    >>> x = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])
    >>> normalised(x, np.array([[1, 1, 0, 0], [0, 1, 0, 1]]), 2).tolist()
    [1.0, 0.0]
    """
    found = np.ones(len(one))
    for start in range(0, len(one), _TOGETHER):
        rows = slice(start, start + _TOGETHER)
        cells = (one[rows] * levels + other[rows]) + levels**2 * np.arange(len(one[rows]))[:, None]
        joint = np.bincount(cells.ravel(), minlength=len(cells) * levels**2).reshape(-1, levels, levels)
        joint = joint / one.shape[1]
        mean = (_entropies(joint.sum(2)) + _entropies(joint.sum(1))) / 2
        mutual = np.maximum(0.0, 2 * mean - _entropies(joint.reshape(len(cells), -1)))
        found[rows] = np.divide(mutual, mean, out=np.ones(len(cells)), where=mean > 0)
    return found


def _entropies(probabilities: np.ndarray) -> np.ndarray:
    logs = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    return np.asarray(-(probabilities * logs).sum(1))


def _entropy(probabilities: np.ndarray) -> float:
    return float(_entropies(probabilities.reshape(1, -1))[0])


def _by_chance(rows: np.ndarray, columns: np.ndarray) -> float:
    """The mean mutual information of tables with these sums (Vinh et al. 2010, Eq. 24a), nats."""
    total, found = int(rows.sum()), 0.0
    (rows, alike), (columns, across) = (np.unique(sums.astype(int), return_counts=True) for sums in (rows, columns))
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])  # logarithms
    fixed = factorial[columns] + factorial[total - columns] - factorial[total]
    for row, times in zip(rows, alike, strict=True):
        cell = np.arange(1, min(row, columns.max()) + 1)[:, None]
        possible = (cell <= columns) & (cell >= row + columns - total)
        held, beside, rest = columns - cell, row - cell, total - row - columns + cell
        log = fixed + factorial[row] + factorial[total - row] - factorial[cell]
        log = log - factorial[held.clip(0)] - factorial[beside] - factorial[rest.clip(0)]
        told = cell / total * np.log(total * cell / (row * columns)) * np.exp(np.where(possible, log, -np.inf))
        found += float(times * (told @ across).sum())
    return found
