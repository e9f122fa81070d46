"""How much of a private batch a reconstruction gives away; the only reader of the truth (PRI 4.2.1, DGP 5.1).

Reconstructions [B, C, H, W] and truth [N, C, H, W], pixels in [0, 1], are paired by the assignment of least total
squared error; with B != N the smaller side is paired completely. Over the pairs, mean and worst (most leaking) of:

NMI and AMI   of pixels cut into ``levels`` equal bins of 8 bits: scikit-learn's, arithmetic mean. NMI of few pixels and
              256 levels (``AS_PRINTED_LEVELS``) is strongly biased upwards; AMI is corrected for chance.
PSNR          in dB, at most 100 (an error of 1e-10), so that a perfect copy stays a number.
SSIM          torchmetrics': the usual Gaussian window of 11 (sigma 1.5) from 16 pixels a side on; below, a uniform
              window of the largest odd side up to 7, since 11 leaves nothing of an 8x8 image.
MSE           lower leaks more.

IIP is the share of pairs whose reconstruction is nearer (MSE) to its own image than to any other of the truth.
Label accuracy is the share of reconstructed labels that are in the batch, counted with multiplicity.

Each score stands beside two baselines made and paired the same way: uniform noise, and "other", each image given for
its neighbour in the truth; when there is one image only, a flat image of its mean stands in, for IIP as well. An
attacker who knows more has a better one: ``prior``, such as a mean of public images, then stands for "other".

RDLV, of a similarity, is how far the reconstruction is ahead of what the attacker had before: (score - other) / other.
LPIPS needs weights from elsewhere: ``attacks.score.lpips``.

Errors: ``AttackError`` on shapes that do not fit and on NaN or infinity: a failed evaluation is never zero leakage.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunella.attacks.score.information import information
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction

LEVELS = 16
AS_PRINTED_LEVELS = 256
_MSE_FLOOR = 1e-10
_GAUSSIAN_FROM = 16
Pairs = tuple[tuple[int, int], ...]
Score = Callable[[Tensor, Tensor], list[float]]


@dataclass(frozen=True)
class Stat:
    """One score over the pairs, and the means of its two baselines."""

    mean: float
    worst: float
    random: float
    other: float


@dataclass(frozen=True)
class Leakage:
    """Scores of one reconstruction. ``assignment`` has one (truth, reconstruction) pair per scored image, by truth."""

    psnr: Stat
    nmi: Stat
    ami: Stat
    ssim: Stat
    mse: Stat
    iip: float
    label_accuracy: float | None
    images: int
    assignment: Pairs

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; nothing but aggregates, so no assignment."""
        plain = asdict(self)
        del plain["assignment"]
        return plain


def squared_errors(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared error of every image of ``a`` to every image of ``b``, [len(a), len(b)] float64."""
    flat_a, flat_b = a.flatten(1).double(), b.flatten(1).double()
    return torch.stack([(flat_b - row).square().mean(dim=1) for row in flat_a])


def assign(truth: Tensor, guess: Tensor) -> Pairs:
    """The pairs (truth, guess) of least total squared error.

    >>> x = torch.rand(3, 1, 2, 2)
    >>> assign(x, x[[2, 0]])
    ((0, 1), (2, 0))
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(squared_errors(truth, guess).numpy())
    return tuple((int(r), int(c)) for r, c in zip(rows, columns, strict=True))


def discretise(image: Tensor, levels: int) -> np.ndarray:
    """Pixels in [0, 1] as 8-bit values, cut into ``levels`` equal bins."""
    eight = (image.clamp(0, 1) * 255).round().long()
    return (eight * levels // 256).flatten().numpy()


def _bins(truth: Tensor, guess: Tensor, levels: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(discretise(t, levels), discretise(g, levels)) for t, g in zip(truth, guess, strict=True)]


def nmi(truth: Tensor, guess: Tensor, levels: int) -> list[float]:
    return [information(t, g)[0] for t, g in _bins(truth, guess, levels)]


def ami(truth: Tensor, guess: Tensor, levels: int) -> list[float]:
    return [information(t, g)[1] for t, g in _bins(truth, guess, levels)]


def mse(truth: Tensor, guess: Tensor) -> list[float]:
    return [float((t.double() - g.double()).square().mean()) for t, g in zip(truth, guess, strict=True)]


def psnr(truth: Tensor, guess: Tensor) -> list[float]:
    return [float(-10 * np.log10(max(error, _MSE_FLOOR))) for error in mse(truth, guess)]


def ssim(truth: Tensor, guess: Tensor) -> list[float]:
    from torchmetrics.functional.image import structural_similarity_index_measure

    side = min(truth.shape[-2:])
    window = min(7, side - 1 + side % 2)
    small: dict[str, Any] = {"gaussian_kernel": False, "kernel_size": window} if side < _GAUSSIAN_FROM else {}
    values = structural_similarity_index_measure(guess, truth, data_range=1.0, reduction="none", **small)
    return [float(value) for value in torch.as_tensor(values).reshape(-1)]


def paired(truth: Tensor, guess: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Both batches in the order of the pairs."""
    return truth[[t for t, _ in pairs]], guess[[g for _, g in pairs]]


def other_images(truth: Tensor) -> Tensor:
    """For each image its neighbour; for a single image, a flat one of its mean."""
    return truth.roll(1, dims=0) if len(truth) > 1 else truth.mean().expand_as(truth).clone()


def rdlv(similarity: Stat) -> float | None:
    """Relative data leakage value, (sim(rec, image) - sim(prior, image)) / sim(prior, image), of the means; 0 tells
    nothing new. None where the prior has no similarity at all, of which nothing is a multiple.

    >>> rdlv(Stat(mean=0.9, worst=0.95, random=0.0, other=0.3)), rdlv(Stat(0.9, 0.95, 0.0, 0.0))
    (2.0000000000000004, None)
    """
    return (similarity.mean - similarity.other) / similarity.other if similarity.other > 0 else None


def identifiable(truth: Tensor, pairs: Pairs, guess: Tensor) -> float:
    """IIP, over the pairs."""
    candidates = truth if len(truth) > 1 else torch.cat([truth, other_images(truth)])
    errors = squared_errors(guess, candidates)
    twins = squared_errors(candidates, candidates) == 0  # an image may occur twice: its twin is not another image
    hits = [bool((errors[g, t] < errors[g, ~twins[t]]).all()) for t, g in pairs]
    return sum(hits) / len(hits)


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


def label_leakage(named: Tensor, truth: Tensor, classes: int, draws: int = 2000) -> LabelLeakage:
    """Of labels [B] named for a batch with labels ``truth`` [N], beside ``draws`` of B labels uniformly at random."""
    guesses = torch.randint(classes, (draws, len(named)), generator=stream(0, purpose="label baseline"))
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


def _stat(score: Score, up: bool, matched: Matched, random: Matched, other_pair: Matched) -> Stat:
    values = score(*matched)
    noise, other = score(*random), score(*other_pair)
    means = [float(np.mean(scores)) for scores in (values, noise, other)]
    if not np.isfinite([*values, *means]).all():
        raise AttackError("a leakage score is not finite: this evaluation failed")
    return Stat(means[0], max(values) if up else min(values), means[1], means[2])


def score(
    reconstruction: Reconstruction, truth: PrivateBatch, levels: int = LEVELS, prior: Tensor | None = None
) -> Leakage:
    """Every score of ``reconstruction`` against ``truth``; the inputs are left alone and may lie on any device.

    ``prior`` [C, H, W], where there is one, is the image the baseline "other" gives for every one."""
    if not 2 <= levels <= 256:
        raise AttackError("levels must lie between 2 and 256")
    guess, real = _checked(reconstruction, truth)
    pairs = assign(real, guess)
    noise = torch.rand(guess.shape, generator=stream(0, purpose="leakage baseline"))
    matched, random = paired(real, guess, pairs), paired(real, noise, assign(real, noise))
    other = other_images(real) if prior is None else prior.detach().cpu().float().expand_as(real)
    scores: dict[str, tuple[Score, bool]] = {
        "psnr": (psnr, True),
        "nmi": (lambda t, g: nmi(t, g, levels), True),
        "ami": (lambda t, g: ami(t, g, levels), True),
        "ssim": (ssim, True),
        "mse": (mse, False),
    }
    stats = {name: _stat(function, up, matched, random, (real, other)) for name, (function, up) in scores.items()}
    labels = None if reconstruction.y is None else label_accuracy(truth.y.cpu(), reconstruction.y.cpu())
    iip = identifiable(real, pairs, guess)
    return Leakage(**stats, iip=iip, label_accuracy=labels, images=len(pairs), assignment=pairs)
