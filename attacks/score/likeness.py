"""How like each other images are, every one of one batch with every one of another, and who is paired with whom.

Images [N, C, H, W]. Pixel error is plain; correlation ignores brightness and contrast, as eyes nearly do, so that a
pale copy, or a negative, counts as the picture that it is.
"""

import torch
from torch import Tensor

Pairs = tuple[tuple[int, int], ...]


def squared_errors(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared error of every image of ``a`` to every image of ``b``, [len(a), len(b)] float64; equal ones: 0."""
    flat_a, flat_b = a.flatten(1).double(), b.flatten(1).double()
    return torch.cdist(flat_a, flat_b, compute_mode="donot_use_mm_for_euclid_dist").square() / flat_a.shape[1]


def contrast_free(x: Tensor) -> Tensor:
    """Each image as a vector [N, C*H*W] float64 of mean 0 and length 1; 0 for a flat image, which is like nothing."""
    flat = x.flatten(1).double()
    centred = flat - flat.mean(1, keepdim=True)
    length = centred.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-6 * flat.shape[1] ** 0.5, centred / length.clamp_min(1e-12), 0.0)


def correlations(a: Tensor, b: Tensor) -> Tensor:
    """Pearson correlation of the pixels of every image of ``a`` with every image of ``b``, in [-1, 1].

    >>> x = torch.rand(1, 1, 4, 4)
    >>> correlations(x, torch.cat([0.1 * x + 0.5, 1 - x])).round(decimals=6).tolist()
    [[1.0, -1.0]]
    """
    return (contrast_free(a) @ contrast_free(b).T).clamp(-1, 1)


def least(costs: Tensor) -> Pairs:
    """The pairs (row, column) of least total cost; the shorter side is paired completely."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(costs.numpy())
    return tuple((int(r), int(c)) for r, c in zip(rows, columns, strict=True))
