"""A matrix G = D X of low rank whose factor D has many exact zeros, taken apart (SPEAR, Dimitrov et al. 2024).

G [m, n] is the weight gradient of a linear layer under a ReLU; a column of D [m, b] is one image's loss gradient at the
layer's output, zero wherever the ReLU is off for that image, and a row of X [b, n] the image's input of the layer.
With G = L R of rank b there is one invertible Q for which D = L Q and X = Q^-1 R, and a column of Q is a direction q in
which L q has far more zeros than chance gives.

SPEAR draws b - 1 rows of L until their kernel is such a q, which takes about 2^b draws. The same kernels are only
starts here: from each one the l1 norm of L q is minimised (sparsely-used dictionary learning, SPEAR++, Bakarsky et al.
2025), by reweighted least squares with falling smoothing. Rows are put into the metric in which they lie evenly on the
sphere (Tyler 1987), since images that switch on the same units make columns of D alike.

A direction that mixes columns is taken apart by the most frequent ratio of its entries to another's (``unmixed``,
ours).

Where G has gaps, they are filled by what the rest tells of them (alternating least squares).

>>> D = torch.tensor([[1., 0.], [0., 2.], [3., 0.], [0., 1.], [2., 2.]])
>>> unmixed(D, torch.tensor([[1., 0.5], [0., 1.]]), 0.0).abs()
tensor([[1., 0.],
        [0., 1.]])
"""

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.outer_products import most_frequent

_ROUNDS, _SMOOTH, _FALL = 150, 0.3, 0.95  # of the reweighting: 60 rounds find half as many directions, 30 a tenth
_EVEN = 30  # rounds of Tyler's fixed point
_LIVE = 1e-3  # share of the largest row that a row must have to be looked at
_SAME = 0.9999  # cosine from which on two directions are one
_ZERO = 1e-4  # of a column's root mean square: what counts as zero, at the least
_DEVIATIONS = 5.0  # of the noise: what counts as zero under noise


def completed(gradient: Tensor, arrived: Tensor, rank: int, rounds: int) -> Tensor:
    """``gradient`` [m, n] with what did not arrive taken from the matrix of this rank that is nearest where it did."""
    seen = arrived.to(gradient.dtype)
    if bool(arrived.all()):
        return gradient
    share = seen.mean().clamp_min(torch.finfo(seen.dtype).tiny)
    right = torch.linalg.svd(gradient / share, full_matrices=False)[2][:rank]
    left = gradient
    for _ in range(rounds):
        left = _least_squares(gradient, seen, right)
        right = torch.linalg.qr(_least_squares(gradient.T, seen.T, left.T))[0].T
    left = _least_squares(gradient, seen, right)
    return torch.where(arrived, gradient, left @ right)


def _least_squares(gradient: Tensor, seen: Tensor, right: Tensor) -> Tensor:
    """The rows l [m, b] for which l ``right`` is nearest to each row of ``gradient`` where it was seen."""
    moments = torch.einsum("bf,kf,cf->kbc", right, seen, right)
    scale = moments.diagonal(dim1=1, dim2=2).mean(dim=1).clamp_min(torch.finfo(seen.dtype).tiny)
    ridge = 1e-10 * scale[:, None, None] * torch.eye(len(right), dtype=seen.dtype, device=seen.device)
    solved: Tensor = torch.linalg.solve(moments + ridge, ((gradient * seen) @ right.T)[..., None])
    return solved[..., 0]


def evened(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows [m, b] that lie evenly on the sphere, and the map [b, b] that takes ``rows`` there, up to size."""
    total, found = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device), rows
    for _ in range(_EVEN):
        found = found / found.norm(dim=1, keepdim=True)
        sizes, axes = torch.linalg.eigh(found.T @ found * (rows.shape[1] / len(rows)))
        step = (axes * sizes.clamp_min(1e-12).rsqrt()) @ axes.T
        found, total = found @ step, total @ step
    return found / found.norm(dim=1, keepdim=True), total


def kernels(rows: Tensor, count: int, generator: Generator) -> Tensor:
    """Unit directions [count, b], each orthogonal to b - 1 of the rows [m, b], drawn at random: SPEAR's candidates."""
    few = min(rows.shape[1] - 1, len(rows))
    picked = torch.rand((count, len(rows)), generator=generator).topk(few, dim=1).indices.to(rows.device)
    right: Tensor = torch.linalg.svd(rows[picked], full_matrices=True)[2]
    return right[:, -1]


def sparsest(rows: Tensor, starts: Tensor, held: Tensor | None = None) -> Tensor:
    """Unit directions q [S, b] with a small l1 norm of ``rows`` q: local minima near ``starts`` [S, b] or, with
    ``held`` [S, b], the minimum over all q of a given product with ``held``, of which there is only one."""
    q, smooth = starts, _SMOOTH / rows.shape[1] ** 0.5
    for _ in range(_ROUNDS):
        weights = ((q @ rows.T).square() + smooth**2).rsqrt()
        q = torch.linalg.solve(_moments(weights, rows), (q if held is None else held)[..., None])[..., 0]
        q, smooth = q / q.norm(dim=1, keepdim=True), smooth * _FALL
    return q


def _moments(weights: Tensor, rows: Tensor) -> Tensor:
    return torch.bmm((weights[:, :, None] * rows).transpose(1, 2), rows.expand(len(weights), -1, -1))


def zeros_of(columns: Tensor, q: Tensor, noise: float) -> Tensor:
    """Which entries of ``columns`` [m, S] = L q^T are zero, as far as ``noise`` on L lets one tell."""
    least = _ZERO * columns.square().mean(dim=0).sqrt()
    return columns.abs() <= torch.maximum(least, _DEVIATIONS * noise * q.norm(dim=1))


def sharpened(left: Tensor, q: Tensor, noise: float) -> Tensor:
    """Each direction [S, b] again, as the kernel of the rows of L on which it is zero."""
    zeros, found = zeros_of(left @ q.T, q, noise), []
    for each, zero in zip(q, zeros.T, strict=True):
        enough = int(zero.sum()) >= left.shape[1] - 1
        found.append(torch.linalg.svd(left[zero], full_matrices=True)[2][-1] if enough else each)
    return torch.stack(found)


def candidates(left: Tensor, found: Tensor, starts: int, noise: float, generator: Generator) -> Tensor:
    """Directions q [S, b] of unit length in which L q has many zeros: from ``starts`` random kernels and, where
    ``found`` [b, b] is a basis, one in place of each of them that takes from the others what makes it sparse."""
    if left.shape[1] == 1:
        return left.new_ones((1, 1))
    sizes = left.norm(dim=1)
    rows, metric = evened(left[sizes > max(_LIVE * float(sizes.max()), _DEVIATIONS * noise)])
    even = [sparsest(rows, kernels(rows, starts, generator))]
    if len(found) == left.shape[1]:
        starts_at = torch.linalg.solve(metric, found.T).T
        even.append(sparsest(rows, starts_at / starts_at.norm(dim=1, keepdim=True), torch.linalg.inv(found).T @ metric))
    q = torch.cat(even) @ metric.T
    return sharpened(left, q / q.norm(dim=1, keepdim=True), noise)


def chosen(left: Tensor, q: Tensor, noise: float) -> Tensor:
    """At most b directions [B, b] of ``q`` [S, b]: the one with the most zeros, then the next that differs, and so on,
    of those that are independent of the ones before."""
    columns = left @ q.T
    order = zeros_of(columns, q, noise).sum(dim=0).argsort(descending=True, stable=True)
    units, taken = (columns / columns.norm(dim=0)).T, list[int]()
    basis = units[:0]
    for place in order.tolist():
        rest = units[place] - basis.T @ (basis @ units[place])
        if float(rest.norm()) > (1 - _SAME**2) ** 0.5:
            taken.append(place)
            basis = torch.cat([basis, (rest / rest.norm())[None]])
        if len(taken) == left.shape[1]:
            break
    return q[taken]


def unmixed(left: Tensor, q: Tensor, noise: float) -> Tensor:
    """Directions [B, b] with more zeros: where L q_i is one column of D and a share of another one, which is L q_j,
    that share is the most frequent ratio of the two, since one column is zero where the other is not."""
    q = q.clone()
    columns, better = left @ q.T, True
    while better:
        better = False
        for i in range(len(q)):
            zeros = zeros_of(columns, q, noise)
            for j in range(len(q)):
                both = ~zeros[:, i] & ~zeros[:, j]
                if i == j or not bool(both.any()):
                    continue
                share, count = most_frequent(columns[both, i] / columns[both, j])
                if count > int((zeros[:, i] & ~zeros[:, j]).sum()) + 1:
                    q[i] = q[i] - share * q[j]
                    q[i] = q[i] / q[i].norm()
                    better, columns[:, i] = True, left @ q[i]
                    zeros = zeros_of(columns, q, noise)
    return sharpened(left, q, noise)
