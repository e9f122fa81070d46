"""How much of a private batch a reconstruction gives away; the only reader of the truth (PRI 4.2.1, DGP 6.1).

Reconstructions [B, C, H, W] and truth [N, C, H, W], pixels in [0, 1], are paired by the assignment of least total
squared error; with B != N the smaller side is paired completely. Over the pairs, mean and worst (most leaking) of:

NMI and AMI   of pixels cut into ``levels`` equal bins of 8 bits: scikit-learn's, arithmetic mean. NMI of few pixels and
              256 levels (``AS_PRINTED_LEVELS``) is strongly biased upwards; AMI is corrected for chance.
PSNR          in dB, at most 100 (an error of 1e-10), so that a perfect copy stays a number.
SSIM          torchmetrics': the usual Gaussian window of 11 (sigma 1.5) from 16 pixels a side on; below, a uniform
              window of the largest odd side up to 7, since 11 leaves nothing of an 8x8 image.
MSE           lower leaks more.
NCC           the correlation of the pixels, without its sign: the same for a pale copy, a dark one and a negative,
              which are as legible as the picture. Its pairs are those of most correlation.

IIP is the share of pairs whose reconstruction is nearer (MSE) to its own image than to any other of the truth, beside
what noise gets and what the same reconstruction gets of the gallery (``attacks.score.nearest``).
Label accuracy is the share of reconstructed labels that are in the batch, counted with multiplicity; ``label_chance``
is that of labels drawn as often as the gallery has them.

Each score stands beside what scores without a leak:

random   the mean of uniform noise, paired in the same way.
other    the same reconstruction, in place of the truth paired in the same way with as many images of a *gallery* of
         other people's, of the same classes (``attacks.score.gallery``): the worst pair of 32 draws, so that without a
         leak the worst pair of the truth is above it in one of 33 audits. AMI, which is slow, of the pairs of highest
         NMI only. Beside it, and without a gallery alone: the worst pair where no reconstruction may be paired with its
         own image again, nor with a twin of it or another crop of the same picture. One image without a gallery has
         none (None): what another image would have scored is not known.
blind    the worst pair of the best picture that needs no update: the mean of each image's class in the gallery, that of
         all classes, or ``prior``, such as a mean of public images. None without any of these.

``recognition`` (with a gallery) counts the originals that are told from their look-alikes. RDLV, of a similarity, is
how far the reconstruction is ahead of what the attacker had before: (score - blind) / blind.
LPIPS needs weights from elsewhere: ``attacks.score.lpips``.

Errors: ``AttackError`` on shapes that do not fit and on NaN or infinity: a failed evaluation is never zero leakage.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunella.attacks.score.gallery import Gallery, Recognition, same_pictures
from prunella.attacks.score.information import information, normalised
from prunella.attacks.score.likeness import (
    Pairs,
    contrast_free,
    correlations,
    least,
    moved_pictures,
    rough_errors,
    squared_errors,
)
from prunella.attacks.score.nearest import by_chance, identifiable, noise_beside
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.tasks.examples import Examples

LEVELS = 16
AS_PRINTED_LEVELS = 256
_MSE_FLOOR = 1e-10
_GAUSSIAN_FROM = 16
_TOGETHER = 256  # pairs whose SSIM is taken at once
_APART = 10**0.1  # a decibel
_SLOW = 32  # pairs of a baseline whose AMI is taken
Score = Callable[[Tensor, Tensor], list[float]]
Cost = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Stat:
    """One score over the pairs, and what scores without a leak; ``blind`` None where nothing is known of others."""

    mean: float
    worst: float
    random: float
    other: float | None
    blind: float | None = None

    @property
    def null(self) -> float:
        """``other``, of which there is one with a gallery. Raises ``AttackError`` where there is none."""
        if self.other is None:
            raise AttackError("there are no other images to compare with")
        return self.other


@dataclass(frozen=True)
class Leakage:
    """Scores of one reconstruction. ``assignment`` has one (truth, reconstruction) pair per scored image, by truth."""

    psnr: Stat
    nmi: Stat
    ami: Stat
    ssim: Stat
    mse: Stat
    ncc: Stat
    iip: float
    iip_random: float | None
    iip_other: float | None
    label_accuracy: float | None
    label_chance: float | None
    recognition: Recognition | None
    images: int
    assignment: Pairs

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; nothing but aggregates, so no assignment."""
        plain = asdict(self)
        del plain["assignment"]
        return plain


def assign(truth: Tensor, guess: Tensor) -> Pairs:
    """The pairs (truth, guess) of least total squared error.

    >>> x = torch.rand(3, 1, 2, 2)
    >>> assign(x, x[[2, 0]])
    ((0, 1), (2, 0))
    """
    return least(squared_errors(truth, guess))


def discretise(images: Tensor, levels: int) -> np.ndarray:
    """Pixels in [0, 1] of images [N, C, H, W] as 8-bit values, cut into ``levels`` equal bins: [N, C*H*W]."""
    eight = (images.clamp(0, 1) * 255).round().long()
    found: np.ndarray = (eight * levels // 256).flatten(1).numpy()
    return found


def nmi(truth: Tensor, guess: Tensor, levels: int) -> list[float]:
    found: list[float] = normalised(discretise(truth, levels), discretise(guess, levels), levels).tolist()
    return found


def ami(truth: Tensor, guess: Tensor, levels: int) -> list[float]:
    pairs = zip(discretise(truth, levels), discretise(guess, levels), strict=True)
    return [information(t, g)[1] for t, g in pairs]


def ncc(truth: Tensor, guess: Tensor) -> list[float]:
    """Of pairs, with its sign, in [-1, 1]; 0 where an image is flat."""
    found: list[float] = (contrast_free(truth) * contrast_free(guess)).sum(1).clamp(-1, 1).tolist()
    return found


def mse(truth: Tensor, guess: Tensor) -> list[float]:
    return [float((t.double() - g.double()).square().mean()) for t, g in zip(truth, guess, strict=True)]


def psnr(truth: Tensor, guess: Tensor) -> list[float]:
    return [float(-10 * np.log10(max(error, _MSE_FLOOR))) for error in mse(truth, guess)]


def _blur(length: int, smallest: int) -> Tensor:
    """The window of SSIM along one side as a matrix [length, length]; beyond its edges the image is reflected."""
    if smallest < _GAUSSIAN_FROM:
        window = torch.ones(min(7, smallest - 1 + smallest % 2))
    else:
        window = torch.exp(-((torch.arange(11) - 5) ** 2) / (2 * 1.5**2))
    half, places = len(window) // 2, torch.arange(length)
    matrix = torch.zeros(length, length)
    for offset, weight in zip(range(-half, half + 1), window / window.sum(), strict=True):
        inside = (places + offset).abs()
        matrix[places, torch.minimum(inside, 2 * (length - 1) - inside)] += weight
    return matrix


def ssim(truth: Tensor, guess: Tensor) -> list[float]:
    """As ``torchmetrics`` has it, whose two-dimensional windows take fifty times as long."""
    height, width = truth.shape[-2:]
    rows, columns = _blur(height, min(height, width)), _blur(width, min(height, width)).T
    found: list[float] = []
    for start in range(0, len(truth), _TOGETHER):
        t, g = truth[start : start + _TOGETHER], guess[start : start + _TOGETHER]
        mean_t, mean_g, tt, gg, tg = (rows @ x @ columns for x in (t, g, t * t, g * g, t * g))
        var_t, var_g = (tt - mean_t**2).clamp_min(0), (gg - mean_g**2).clamp_min(0)
        light = (2 * mean_t * mean_g + 1e-4) / (mean_t**2 + mean_g**2 + 1e-4)
        found += (light * (2 * (tg - mean_t * mean_g) + 9e-4) / (var_t + var_g + 9e-4)).flatten(1).mean(1).tolist()
    return found


def paired(truth: Tensor, guess: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Both batches in the order of the pairs."""
    return truth[[t for t, _ in pairs]], guess[[g for _, g in pairs]]


def among_others(costs: Tensor, pairs: Pairs, same: Tensor) -> Pairs:
    """The pairs (row, column) of least total cost in which no column has the row that it has in ``pairs``, its nearest
    one (of which there may be two pictures), or one that is the ``same`` as these [N, N]; none where there is no other.

    >>> among_others(torch.tensor([[0.0, 3.0], [2.0, 0.0]]), ((0, 0), (1, 1)), torch.eye(2, dtype=torch.bool))
    ((0, 1), (1, 0))
    """
    own = same[costs.argmin(0)].T.clone()
    for row, column in pairs:
        own[same[row], column] = True
    dear = costs.abs().sum() + 1
    return tuple((row, column) for row, column in least(torch.where(own, dear, costs)) if not own[row, column])


def rdlv(similarity: Stat) -> float | None:
    """Relative data leakage value, (sim(rec, image) - sim(prior, image)) / sim(prior, image), of the worst pairs; the
    prior is the best picture that needs no update or, where none is known, another image. 0 tells nothing new. None
    where the prior has no similarity at all, of which nothing is a multiple.

    >>> rdlv(Stat(0.8, worst=0.9, random=0.0, other=0.5, blind=0.3)), rdlv(Stat(0.9, 0.95, 0.0, 0.0))
    (2.0000000000000004, None)
    """
    before = similarity.other if similarity.blind is None else similarity.blind
    return (similarity.worst - before) / before if before is not None and before > 0 else None


def label_accuracy(truth: Tensor, guess: Tensor) -> float:
    """Share of guessed labels found in the truth, each true label used once.

    >>> label_accuracy(torch.tensor([1, 1, 2]), torch.tensor([1, 2, 2]))
    0.6666666666666666
    """
    shared = Counter(truth.tolist()) & Counter(guess.tolist())  # by label, not by class: a label may be any number
    return shared.total() / len(guess)


@dataclass(frozen=True)
class LabelLeakage:
    """``accuracy`` of the named labels, ``chance`` that of naming them at random, and how often that is as good."""

    accuracy: float
    chance: float
    as_good: float

    @property
    def told(self) -> bool:
        """Whether the update told the labels: fewer than one guess in twenty is as good."""
        return self.as_good < 0.05


def label_leakage(named: Tensor, truth: Tensor, classes: int) -> LabelLeakage:
    """Of labels [B] named for a batch with labels ``truth`` [N], beside 2000 draws of B labels uniformly at random."""
    guesses = torch.randint(classes, (2000, len(named)), generator=stream(0, purpose="label baseline"))
    own = label_accuracy(truth.cpu(), named.cpu())
    random = torch.tensor([label_accuracy(truth.cpu(), guess) for guess in guesses])
    return LabelLeakage(own, float(random.mean()), float((random >= own - 1e-6).float().mean()))


def _checked(reconstruction: Reconstruction, truth: PrivateBatch) -> tuple[Tensor, Tensor]:
    guess, real = reconstruction.x.detach().cpu().float(), truth.x.detach().cpu().float()
    if guess.dim() != 4 or guess.shape[1:] != real.shape[1:] or not len(guess) or not len(real):
        raise AttackError(f"images of shape {tuple(guess.shape)} cannot be scored against {tuple(real.shape)}")
    if not (torch.isfinite(guess).all() and torch.isfinite(real).all()):
        raise AttackError("an image is not finite: this evaluation failed")
    return guess, real


Matched = tuple[Tensor, Tensor]


def _worst(values: list[float], up: bool) -> float:
    return max(values) if up else min(values)


@dataclass(frozen=True)
class _Comparison:
    """The pairs behind one score: of the truth, and of each baseline. ``null`` are those with other images, in the
    batch and of all draws from a gallery; ``blind`` is one batch for each picture that needs no update."""

    matched: Matched
    random: Matched
    null: Matched | None
    blind: list[Matched]

    def stat(self, score: Score, up: bool = True) -> Stat:
        values, noise = score(*self.matched), score(*self.random)
        other = None if self.null is None else _worst(score(*self.null), up)
        blind = _worst([_worst(score(*each), up) for each in self.blind], up) if self.blind else None
        found = Stat(float(np.mean(values)), _worst(values, up), float(np.mean(noise)), other, blind)
        baselines = [each for each in (found.random, other, blind) if each is not None]
        if not np.isfinite([*values, *baselines]).all():
            raise AttackError("a leakage score is not finite: this evaluation failed")
        return found

    def slow(self, levels: int) -> "_Comparison":
        """Of the baselines those pairs that share most information."""
        return replace(
            self,
            random=_most(self.random, levels),
            null=None if self.null is None else _most(self.null, levels),
            blind=[_most(each, levels) for each in self.blind],
        )


def _most(pairs: Matched, levels: int) -> Matched:
    order = np.argsort(nmi(*pairs, levels))[::-1][:_SLOW].copy()
    return pairs[0][order], pairs[1][order]


def _blind(real: Tensor, others: Gallery | None, prior: Tensor | None) -> list[Tensor]:
    """Pictures [N, C, H, W] that need no update."""
    given = [] if prior is None else [prior.detach().cpu().float().expand_as(real)]
    return [*given, *(others.means() if others else [])]


def crops(real: Tensor, guess: Tensor) -> Tensor:
    """Whether two of the images ``real`` [N, C, H, W] are crops of one picture that what was rebuilt tells apart,
    [N, N]. It does where each has a guess that the other is further from by a decibel. A guess of what they share (of
    things in the middle of a page, one in the middle) needs no update, and is held against the other one."""
    errors = rough_errors(real, guess)
    mine = errors.argmin(1)
    for row, column in least(errors):
        mine[row] = column
    beside = errors[:, mine]  # of image i with the guess for image j
    further = beside > _APART * beside.diagonal()
    return moved_pictures(real) & further & further.T


def _compare(
    real: Tensor,
    guess: Tensor,
    cost: Cost,
    null: Tensor | None,
    blind: list[Tensor],
    others: Gallery | None,
    same: Tensor,
) -> _Comparison:
    noise = torch.rand(guess.shape, generator=stream(0, purpose="leakage baseline"))

    def match(x: Tensor) -> Matched:
        return paired(real, x, least(cost(real, x)))

    costs = cost(real, guess)
    own = least(costs)
    against = [] if null is None or others is None else [(others.x[null[:, 0]], guess[null[:, 1]])]
    if inside := among_others(costs, own, same):
        against.append(paired(real, guess, inside))
    together = (torch.cat([t for t, _ in against]), torch.cat([g for _, g in against])) if against else None
    return _Comparison(paired(real, guess, own), match(noise), together, [match(x) for x in blind])


def _label_chance(named: Tensor | None, truth: Tensor, gallery: Examples | None) -> float | None:
    if named is None or gallery is None or not len(gallery):
        return None
    generator = stream(0, purpose="label baseline")
    guesses = gallery.y[torch.randint(len(gallery), (200, len(named)), generator=generator)]
    return float(np.mean([label_accuracy(truth, guess) for guess in guesses]))


def score(
    reconstruction: Reconstruction,
    truth: PrivateBatch,
    levels: int = LEVELS,
    prior: Tensor | None = None,
    gallery: Examples | None = None,
) -> Leakage:
    """Every score of ``reconstruction`` against ``truth``; the inputs are left alone and may lie on any device.

    ``gallery`` are other people's images of the same kind, ``prior`` [C, H, W] a picture an attacker has without any
    update; where they are known, they are what a score must beat."""
    if not 2 <= levels <= 256:
        raise AttackError("levels must lie between 2 and 256")
    guess, real = _checked(reconstruction, truth)
    labels, named = truth.y.cpu(), None if reconstruction.y is None else reconstruction.y.cpu()
    others = None if gallery is None else Gallery(gallery, PrivateBatch(real, labels), guess)
    others = others if others is not None and others.enough else None
    near, like = (None, None) if others is None else others.null()
    blind = _blind(real, others, prior)
    same = same_pictures(real, real) | crops(real, guess)
    by_error = _compare(real, guess, squared_errors, near, blind, others, same)
    by_likeness = _compare(real, guess, lambda a, b: -correlations(a, b).abs(), like, blind, others, same)
    pairs = assign(real, guess)
    return Leakage(
        psnr=by_error.stat(psnr),
        nmi=by_error.stat(lambda t, g: nmi(t, g, levels)),
        ami=by_error.slow(levels).stat(lambda t, g: ami(t, g, levels)),
        ssim=by_error.stat(ssim),
        mse=by_error.stat(mse, up=False),
        ncc=by_likeness.stat(lambda t, g: [abs(each) for each in ncc(t, g)]),
        iip=identifiable(real, pairs, guess),
        iip_random=by_chance(noise_beside(real, guess)),
        iip_other=None if others is None else by_chance(others.batches()),
        label_accuracy=None if named is None else label_accuracy(labels, named),
        label_chance=_label_chance(named, labels, gallery),
        recognition=None if others is None else others.recognition(),
        images=len(pairs),
        assignment=pairs,
    )
