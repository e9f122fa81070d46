"""Other people's images of the same kind: what a reconstruction is held against, beside the truth it is scored by.

A *gallery* has images [M, C, H, W] with labels [M] that the attacked update knows nothing of. It answers four
questions about a reconstruction of images [N, C, H, W]:

null         how near it comes to images it cannot know: ``draws`` of as many, with the same labels as far as there are
             any, to which it is assigned exactly as to the truth.
batches      of how many of as many of them it is nearest to the one that it is paired with.
blind        how near the mean image of each class comes to the truth, a picture that needs no update.
recognition  whether each original is nearer to the reconstruction than its look-alikes are: up to ``LOOKALIKES``
             images of its class; an original of which there is none is not asked about. (Others beside them would be
             beaten by whoever knows the class, and make chance look smaller than it is.) Near is the correlation with
             the nearest image of the reconstruction, for original and look-alikes alike: so without any leak each is
             the nearest equally often, however many images were rebuilt, and chance is 1 / (look-alikes + 1).

Near-duplicates (``TWIN``) of the truth are left out, since a twin would score as high as the original and hide an
attacker's success; so are images that were themselves rebuilt, since a copy is no chance likeness. Of a large gallery a
seeded part is used, ``LARGEST`` images or ``VALUES`` pixel values.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from prunella.attacks.score.likeness import alignments, correlations, least, rough_errors
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.examples import Examples

DRAWS = 32
LOOKALIKES = 99
ALIGNED = 16
LEAST = 20  # of 4 or 10, foreign images of MNIST in a batch of 16 read "rebuilt" in 4 or 3 of 12, of 30 in none
LARGEST = 1024
VALUES = 2**25
# A root mean squared error of 3 % of the range, 30 dB, or a correlation of 0.99: any two different images lie further
# apart in 359 test digits (21.4 dB, 0.978 at most) and 3 000 test images of MNIST (27.3 dB, 0.985) and of CIFAR-10
# (23.9 dB, 0.985), while another encoding, brightness or contrast of one image is nearer.
TWIN = {"mse": 1e-3, "correlation": 0.99}


@dataclass(frozen=True)
class Recognition:
    """In ``hits`` of ``images`` trials the original was nearer than all its look-alikes, ``gallery`` on average.
    ``low`` is the Clopper-Pearson lower bound of the hit rate, at 95 % confidence: above ``chance``, images leak."""

    hits: int
    images: int
    gallery: float
    chance: float
    low: float


def same_pictures(a: Tensor, b: Tensor) -> Tensor:
    """Whether an image of ``a`` is the same picture as one of ``b``, [len(a), len(b)]."""
    return (rough_errors(a, b) < TWIN["mse"]) | (correlations(a, b).abs() > TWIN["correlation"])


def _shuffled_by_label(labels: Tensor, wanted: Tensor, generator: Generator) -> tuple[dict[int, Tensor], Tensor]:
    """Positions of each wanted label in a random order, and all positions in a random order."""
    order = torch.randperm(len(labels), generator=generator)
    return {label: order[labels[order] == label] for label in sorted(set(wanted.tolist()))}, order


class Gallery:
    """The images that ``truth`` and ``guess`` [B, C, H, W] are compared with. Raises ``AttackError`` on shapes that do
    not fit and values that are not finite. ``len`` is 0 where nothing is left."""

    def __init__(self, gallery: Examples, truth: PrivateBatch, guess: Tensor) -> None:
        x, y = gallery.x.detach().cpu().float(), gallery.y.detach().cpu()
        if x.shape[1:] != truth.x.shape[1:] or len(x) != len(y):
            raise AttackError(f"a gallery of shape {tuple(x.shape)} does not fit images of {tuple(truth.x.shape)}")
        if not torch.isfinite(x).all():
            raise AttackError("an image of the gallery is not finite: this evaluation failed")
        self.truth, self.guess, self.generator = truth, guess, stream(0, purpose="gallery")
        # An image that was used in several steps is one of the truth, not several that agree.
        keys = [(image.numpy().tobytes(), int(label)) for image, label in zip(truth.x, truth.y, strict=True)]
        last = {key: n for n, key in enumerate(keys)}
        rows = sorted(last.values())
        self.distinct = PrivateBatch(truth.x[rows], truth.y[rows])
        self._place = torch.tensor([rows.index(last[key]) for key in keys])  # of each of the truth, in ``distinct``
        chosen = self._part(y, max(1, min(LARGEST, VALUES // max(1, x[:1].numel()))))
        x, y = x[chosen], y[chosen]
        different = ~(same_pictures(x, truth.x).any(1) | same_pictures(x, guess).any(1))
        self.x, self.y = x[different], y[different]

    def __len__(self) -> int:
        return len(self.y)

    @property
    def enough(self) -> bool:
        """Whether it says what chance can do: ``LEAST`` images or more, some of every class of most of the truth. Who
        knows a class that is not in it is above everything in it."""
        known = torch.isin(self.distinct.y, self.y)
        return len(self) >= LEAST and 2 * int(known.sum()) > len(known)

    def _part(self, labels: Tensor, most: int) -> Tensor:
        """Positions of at most ``most`` images: half of them of the truth's classes, as far as there are as many."""
        order = torch.randperm(len(labels), generator=self.generator)
        if len(labels) <= most:
            return order
        same = torch.isin(labels[order], self.truth.y)
        first = order[same][: max(most // 2, most - int((~same).sum()))]
        return torch.cat([first, order[~same][: most - len(first)]])

    def _draw(self, generator: Generator) -> Tensor:
        """Positions of as many images as the truth has, of its labels as far as possible, none twice."""
        by_label, order = _shuffled_by_label(self.y, self.distinct.y, generator)
        counts = {label: int((self.distinct.y == label).sum()) for label in by_label}
        chosen = torch.cat([positions[: counts[label]] for label, positions in by_label.items()])
        rest = order[~torch.isin(order, chosen)]
        return torch.cat([chosen, rest[: len(self.distinct.y) - len(chosen)]])

    def null(self) -> tuple[Tensor, Tensor]:
        """The pairs (gallery, guess) of all draws, each once, int64 [P, 2]: those of least squared error, and those of
        most correlation."""
        errors, alike = rough_errors(self.x, self.guess), correlations(self.x, self.guess).abs()
        by_error, by_likeness = set[tuple[int, int]](), set[tuple[int, int]]()
        for _ in range(DRAWS):
            drawn = self._draw(self.generator)
            by_error |= {(int(drawn[row]), column) for row, column in least(errors[drawn])}
            by_likeness |= {(int(drawn[row]), column) for row, column in least(-alike[drawn])}
        return torch.tensor(sorted(by_error)), torch.tensor(sorted(by_likeness))

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in place of the truth, with as many images and twins, beside the reconstruction: ``DRAWS`` of them,
        and none where there are fewer images than the truth has."""
        generator = stream(0, purpose="gallery batches")
        for _ in range(DRAWS if len(self) >= len(self.distinct.y) else 0):
            yield self.x[self._draw(generator)[self._place]], self.guess

    def means(self) -> list[Tensor]:
        """What can be guessed for each image [N, C, H, W] of the truth: the mean of its class, and that of all."""
        overall = self.x.mean(0)
        classes = {label: self.x[self.y == label] for label in sorted(set(self.truth.y.tolist()))}
        means = {label: images.mean(0) if len(images) else overall for label, images in classes.items()}
        return [torch.stack([means[int(label)] for label in self.truth.y]), overall.expand_as(self.truth.x)]

    def recognition(self) -> Recognition:
        """How many originals are told from their look-alikes: as they lie or, where that is no more than chance,
        aligned."""
        there = torch.isin(self.distinct.y, self.y)
        asked, alike = self.distinct.x[there], [self._lookalikes(int(label)) for label in self.distinct.y[there]]
        own, others = (correlations(x, self.guess).abs().max(1).values for x in (asked, self.x))
        found = _told(own, others, alike, looks=1)
        if found.low > found.chance:
            return found
        used = torch.unique(torch.cat(alike[:ALIGNED]))
        others = torch.zeros(len(self))
        others[used] = alignments(self.x[used], self.guess).max(1).values
        own = alignments(asked[:ALIGNED], self.guess).max(1).values
        aligned = _told(own, others, alike[:ALIGNED], looks=2)
        return aligned if aligned.low > aligned.chance else found

    def _lookalikes(self, label: int) -> Tensor:
        """Positions of images of a class."""
        order = torch.randperm(len(self), generator=self.generator)
        return order[self.y[order] == label][:LOOKALIKES]


def _told(own: Tensor, others: Tensor, alike: list[Tensor], looks: int) -> Recognition:
    """Of originals as near as ``own`` says, by the positions of the ``alike`` in ``others``; ``looks``: how often it
    has been asked."""
    from scipy.stats import beta

    images, sizes = len(alike), [len(each) for each in alike]
    hits = sum(bool(near > others[each].max()) for near, each in zip(own, alike, strict=True))
    low = float(beta.ppf(0.05, hits, images - hits + 1)) if hits else 0.0
    chance = sum(min(1.0, looks / (size + 1)) for size in sizes) / images
    return Recognition(hits, images, sum(sizes) / images, chance, low)
