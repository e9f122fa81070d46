"""IIP: the share of pairs whose reconstruction is nearer (MSE) to its own image than to any other of the truth.

The own image is the one that an assignment of least error chose, so that without any leak far more than one in N are
nearest: of 16 handwritten digits noise gets 40 %, and the reconstruction of other people's digits 50 %. What chance
gets is therefore measured, with the same assignment, over ``DRAWS`` batches.

Images [N, C, H, W] of the truth and [B, C, H, W] of a reconstruction. One image alone is held against a flat one of its
mean brightness. An image that occurs twice is no other image than its twin.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from prunella.attacks.score.likeness import Pairs, least, rough_errors, squared_errors
from prunella.core.randomness import stream

DRAWS = 32


def identifiable(
    truth: Tensor, pairs: Pairs, guess: Tensor, errors: Callable[[Tensor, Tensor], Tensor] = squared_errors
) -> float:
    """IIP, over the pairs (truth, guess)."""
    candidates = truth if len(truth) > 1 else torch.cat([truth, truth.mean().expand_as(truth)])
    picture = torch.unique(candidates.flatten(1), dim=0, return_inverse=True)[1]
    rows, columns = (torch.tensor(each) for each in zip(*pairs, strict=True))
    distances = errors(candidates, guess)
    own = picture[:, None] == picture[rows]
    others = distances[:, columns].masked_fill(own, torch.inf).min(0).values
    return float((distances[rows, columns] < others).double().mean())


def by_chance(batches: Iterable[tuple[Tensor, Tensor]]) -> float | None:
    """The mean IIP of batches of a truth and a reconstruction that know nothing of each other; None of no batch."""
    shares = [identifiable(t, least(rough_errors(t, guess)), guess, rough_errors) for t, guess in batches]
    return sum(shares) / len(shares) if shares else None


def noise_beside(truth: Tensor, guess: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The truth beside uniform noise in place of the reconstruction, ``DRAWS`` times."""
    generator = stream(0, purpose="iip baseline")
    for _ in range(DRAWS):
        yield truth, torch.rand(guess.shape, generator=generator)
