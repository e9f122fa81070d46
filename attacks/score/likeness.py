"""How like each other images are, every one of one batch with every one of another, and who is paired with whom.

Images [N, C, H, W]. Pixel error is plain; correlation ignores brightness and contrast, as eyes nearly do, so that a
pale copy, or a negative, counts as the picture that it is. Alignment also ignores where the picture lies, how it is
turned and whether it is mirrored, as eyes do.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, affine_grid, grid_sample

Pairs = tuple[tuple[int, int], ...]
_TURNS = (0, 15, -15, 30, -30, 45, -45)  # degrees
_CROPS = 0.99  # correlation from which a moved picture is the same: ``attacks.score.gallery.TWIN``
_SMALL = 12  # pixels a side: smaller images may be alike by chance
_ALIGNED = 16  # pixels a side at which images are aligned: what is left of a picture that can be told from another


def squared_errors(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared error of every image of ``a`` to every image of ``b``, [len(a), len(b)] float64; equal ones: 0."""
    flat_a, flat_b = a.flatten(1).double(), b.flatten(1).double()
    return torch.cdist(flat_a, flat_b, compute_mode="donot_use_mm_for_euclid_dist").square() / flat_a.shape[1]


def rough_errors(a: Tensor, b: Tensor) -> Tensor:
    """As ``squared_errors``, faster, and right to 1e-12 only: for choosing pairs, not for scoring them."""
    a, b = a.flatten(1).double(), b.flatten(1).double()
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min(0) / a.shape[1]


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


def _turned(x: Tensor, degrees: float, mirrored: bool) -> Tensor:
    """Images of mean 0 about their middle; what comes in from outside is 0."""
    turn, side = math.radians(degrees), -1.0 if mirrored else 1.0
    row = [[side * math.cos(turn), -math.sin(turn), 0.0], [side * math.sin(turn), math.cos(turn), 0.0]]
    grid = affine_grid(x.new_tensor(row).expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)


def alignments(a: Tensor, b: Tensor) -> Tensor:
    """The most correlation, without its sign, of every image of ``a`` with every image of ``b``, shifted in a circle by
    any number of pixels, turned by up to 45 degrees and mirrored or not: [len(a), len(b)] float32, in [0, 1]. Images
    are averaged down to 16 pixels a side first.

    >>> x = torch.rand(3, 1, 8, 8)
    >>> alignments(x, x.roll(3, dims=2).flip(3)).diagonal().round(decimals=4).tolist()
    [1.0, 1.0, 1.0]
    """
    size = (min(_ALIGNED, a.shape[2]), min(_ALIGNED, a.shape[3]))
    small = [adaptive_avg_pool2d(x.float(), size) for x in (a, b)]
    small = [x - x.mean(dim=(1, 2, 3), keepdim=True) for x in small]
    spectra, best = torch.fft.rfft2(_unit(small[0])), torch.zeros(len(a), len(b))
    for degrees in _TURNS:
        for mirrored in (False, True):
            for column, one in enumerate(torch.fft.rfft2(_unit(_turned(small[1], degrees, mirrored)))):
                shifted = torch.fft.irfft2((spectra * one.conj()).sum(1), s=size)
                best[:, column] = torch.maximum(best[:, column], shifted.flatten(1).abs().max(1).values)
    return best.clamp_max(1)


def moved_pictures(x: Tensor) -> Tensor:
    """Whether two images of a batch are crops of one picture, [N, N]: a shift makes them correlate above ``_CROPS``.
    Images are averaged down to 32 pixels a side first; smaller ones than ``_SMALL`` are not asked.

    >>> x = torch.rand(2, 1, 14, 14)
    >>> moved_pictures(torch.cat([x, x[:1].roll((2, 1), (2, 3))])).int().tolist()
    [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    """
    if min(x.shape[2:]) < _SMALL:
        return torch.eye(len(x), dtype=torch.bool)
    small = adaptive_avg_pool2d(x.float(), (min(2 * _ALIGNED, x.shape[2]), min(2 * _ALIGNED, x.shape[3])))
    spectra, best = torch.fft.rfft2(_unit(small)), torch.eye(len(x))
    for column, one in enumerate(spectra):
        shifted = torch.fft.irfft2((spectra * one.conj()).sum(1), s=small.shape[2:]).flatten(1)
        best[:, column] = torch.maximum(best[:, column], shifted.abs().max(1).values.cpu())
    return best > _CROPS


def _unit(x: Tensor) -> Tensor:
    return contrast_free(x).float().view_as(x)


def least(costs: Tensor) -> Pairs:
    """The pairs (row, column) of least total cost; the shorter side is paired completely."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(costs.numpy())
    return tuple((int(r), int(c)) for r, c in zip(rows, columns, strict=True))
