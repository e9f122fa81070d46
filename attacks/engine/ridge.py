"""The best linear estimate of images from many measured numbers, learnt from few pairs: ridge regression.

With N pairs of D >> N numbers each, everything is done in the N x N Gram matrix (Saunders, Gammerman and Vovk 1998).
Blocks of numbers count equally, whatever their scale; a pair whose block is far longer than usual is shortened, since a
few outliers would otherwise be all that least squares sees. How much is shrunk is chosen by cross-validation in which
pairs of one image are never on both sides; its predictions are kept, as they err as those of unseen views will.

Shapes: a block [N, D], images [N, C, H, W], ``image`` [N] numbers the image of a pair.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from prunella.core.errors import AttackError

_SHRINK = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of a mean squared length of 1 a pair
_FOLDS = 5
_LONG = 3.0  # usual lengths from which on a block is shortened


class Ridge:
    """``error`` is the mean squared error of ``unseen``, the predictions [N, C, H, W] by the other folds' pairs."""

    def __init__(self, blocks: Sequence[Tensor], x: Tensor, image: Tensor) -> None:
        folds = torch.unique(image, return_inverse=True)[1] % _FOLDS
        if int(folds.max()) == 0:
            raise AttackError("to learn from public images needs at least two of them that the defense lets through")
        self.means = [block.mean(dim=0) for block in blocks]
        self.lengths = [_length(block - mean) for block, mean in zip(blocks, self.means, strict=True)]
        self.features, self.centre = self._scaled(blocks), x.mean(dim=0)
        wanted = (x - self.centre).flatten(1)
        gram = self.features @ self.features.T
        found = _cross_validated(gram, wanted, folds)
        errors = [float((each - wanted).square().mean()) for each in found]
        best = min(range(len(errors)), key=errors.__getitem__)
        self.error = errors[best]
        self.unseen = found[best].reshape(x.shape) + self.centre
        self.weights = torch.linalg.solve(gram + _SHRINK[best] * torch.eye(len(gram)), wanted)

    def _scaled(self, blocks: Sequence[Tensor]) -> Tensor:
        parts = []
        for block, mean, length in zip(blocks, self.means, self.lengths, strict=True):
            part = (block - mean) / length
            parts.append(part * (_LONG / part.norm(dim=1, keepdim=True).clamp_min(_LONG)))
        joined: Tensor = torch.cat(parts, dim=1) / len(parts) ** 0.5
        return joined

    def __call__(self, blocks: Sequence[Tensor]) -> Tensor:
        """Images [M, C, H, W] for blocks [M, D]."""
        found: Tensor = self._scaled(blocks) @ self.features.T @ self.weights
        return found.reshape(-1, *self.centre.shape) + self.centre


def _length(centred: Tensor) -> float:
    return max(float(centred.norm(dim=1).median()), float(torch.finfo(centred.dtype).tiny ** 0.5))


def _cross_validated(gram: Tensor, wanted: Tensor, folds: Tensor) -> list[Tensor]:
    """For every shrinkage, the rows of ``wanted`` as the pairs of other folds predict them."""
    found = [torch.zeros_like(wanted) for _ in _SHRINK]
    for fold in range(_FOLDS):
        rest, out = folds != fold, folds == fold
        if not bool(out.any()):
            continue
        values, vectors = torch.linalg.eigh(gram[rest][:, rest])
        left, right = gram[out][:, rest] @ vectors, vectors.T @ wanted[rest]
        for each, shrink in zip(found, _SHRINK, strict=True):
            each[out] = (left / (values.clamp_min(0) + shrink)) @ right
    return found
