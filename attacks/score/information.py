"""Mutual information of two labellings, normalised (NMI) and corrected for chance (AMI; Vinh, Epps, Bailey 2010).

Equal to scikit-learn's ``normalized_mutual_info_score`` and ``adjusted_mutual_info_score`` with arithmetic means, which
the tests compare with. Here because a client scores audits, and need not install scikit-learn for two numbers.
"""

import numpy as np


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


def _entropy(probabilities: np.ndarray) -> float:
    seen = probabilities[probabilities > 0]
    return float(-(seen * np.log(seen)).sum())


def _by_chance(rows: np.ndarray, columns: np.ndarray) -> float:
    """The mean mutual information of tables with these sums (Vinh et al. 2010, Eq. 24a), nats."""
    from scipy.special import gammaln  # slow to import, and every message that a client answers is a new process

    total, found = rows.sum(), 0.0
    fixed = gammaln(columns + 1) + gammaln(total - columns + 1) - gammaln(total + 1)
    for row in rows:
        cell = np.arange(1, int(min(row, columns.max())) + 1)[:, None]
        possible = (cell <= columns) & (cell >= row + columns - total)
        held, beside, rest = columns - cell, row - cell, total - row - columns + cell
        with np.errstate(invalid="ignore"):
            log = fixed + gammaln(row + 1) + gammaln(total - row + 1) - gammaln(cell + 1)
            log = log - gammaln(np.maximum(held, 0) + 1) - gammaln(beside + 1) - gammaln(np.maximum(rest, 0) + 1)
        told = cell / total * np.log(total * cell / (row * columns)) * np.exp(log)
        found += float(told[possible].sum())
    return found
