"""Denoising what an attack rebuilt: the attack adapted to the channel defenses (CHN 5.2).

A channel trains on D~ = D + xi, xi ~ N(0, Sigma_xi), and what it claims is a bound on what D~ tells about D, not that
D~ stays hidden. Threat model: an honest-but-curious server that has public images of the same kind, and either knows
the channel's covariance (``known``; it follows from public settings and the data's spread) or can play the client's own
chain on public images (``shadow``). First the noisy image is rebuilt: in closed form (``attacks.r_gap``) where the
model and the view allow, outside [0, 1] as it is, else by matching gradients. Then, of one image in one step,

known     E[D | D~] = mu + Sigma_D (Sigma_D + Sigma_xi)^-1 (D~ - mu) with mean and covariance of the public images: the
          best linear estimate, and the best of all for Gaussian images (Wiener 1949). The same image in T rounds, its
          noise drawn anew each time, is the mean of T noisy ones: Sigma_xi / T.
shadow    the same with what has to be known learnt from ``shadows`` public images that were sent through the chain and
          rebuilt: in the principal components of the other public images, where Sigma_D is diagonal and natural images'
          noise nearly so, the factor of a component is its least-squares one, <D, D~> / <D~, D~>, over the pairs and
          over a few components beside it, as pairs are few. This covers any defense that makes pictures noisy, and what
          clipping to [0, 1] did to them, which is linear no more; it looks at no ``earlier`` views. ``objective`` is
          the error on half of these images of a filter that the other half teaches, known before the truth is.

Not from a paper: ours. Errors: ``AttackError`` without what it has to know.

>>> one, two = torch.eye(2, dtype=torch.float64), 3 * torch.eye(2, dtype=torch.float64)
>>> posterior_mean(torch.tensor([[4.0, 0.0]]).double(), torch.zeros(2).double(), one, two).round(decimals=6).tolist()
[[1.0, 0.0]]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.folded import evaluator as folded_evaluator
from prunella.attacks.engine.folded import foldable
from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.engine.inversion import Inversion, descend_alone, descend_together, evaluator, first_guess
from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.engine.signals import likely_labels
from prunella.attacks.r_gap import RGap, solve_image
from prunella.core.config import Count
from prunella.core.errors import AttackError, DefenseError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task

_COMPONENTS = 4000  # public images whose components are taken, at most: as many as CIFAR-10 has pixels
_BESIDE = 8  # the k-th component is learnt with the k / 8 on either side
_LARGEST = 3.0  # factor: clipped noise makes pictures flatter, and they have to be stretched again
_FEWEST = 8  # pairs
_SOLVED = 1e-3  # of a gradient's square may be left unexplained where R-GAP is said to have an answer


@dataclass(frozen=True)
class Denoise(RGap):
    """Against the channels: rebuilds the noisy image, by R-GAP or by matching, then the best linear denoiser.

    ``iterations`` and ``tolerance`` are those of R-GAP."""

    shadows: Count = 32  #: public images that are sent through the defenses and rebuilt, to learn the denoiser on
    match: Count = 300  #: iterations of matching where R-GAP has no answer
    together: Count = 16  #: shadows that are rebuilt in one batch


@dataclass(frozen=True)
class Channel:
    """What the server knows: public images [M, C, H, W] and the noise's covariance [d, d] or variance (0-d)."""

    public: Tensor
    noise: Tensor


def moments(public: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d] of flattened images, float64."""
    flat = public.flatten(1).double()
    if len(flat) < 2:
        raise AttackError("denoising needs at least two public images")
    return flat.mean(dim=0), torch.cov(flat.T)


def posterior_mean(noisy: Tensor, mean: Tensor, signal: Tensor, noise: Tensor) -> Tensor:
    """E[D | D~] of rows [N, d] under D ~ N(mean, signal) and D~ = D + N(0, noise).

    A direction with neither signal nor noise is left at the mean.
    """
    both = signal + noise
    smallest = torch.finfo(both.dtype)
    ridge = (smallest.eps * len(both) * both.diagonal().mean()).clamp_min(smallest.tiny)
    solved: Tensor = torch.linalg.solve(both + ridge * torch.eye(len(both), dtype=both.dtype), (noisy - mean).T)
    return mean + solved.T @ signal  # for the rows alone: a solution for every pixel takes four times as long


@dataclass(frozen=True)
class Filter:
    """Rows [N, d] of noisy pixels to estimates of the clean ones: a factor for each of the ``components`` [k, d], one
    for what lies outside, and how much brighter a pixel is when it is ``dark`` on average."""

    mean: Tensor
    dark: tuple[float, float]
    components: Tensor
    factors: Tensor
    outside: float

    def __call__(self, noisy: Tensor) -> Tensor:
        centred = self.centred(noisy)
        along = centred @ self.components.T
        left = (centred - along @ self.components) * self.outside
        return self.mean + (along * self.factors) @ self.components + left

    def centred(self, noisy: Tensor) -> Tensor:
        return noisy - self.mean - self.dark[0] - self.dark[1] * self.mean


def principal(public: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and principal components [k, d] of images [M, d]."""
    if len(public) < 2:
        raise AttackError("denoising needs at least two public images beside those that are sent and rebuilt")
    mean = public.mean(dim=0)
    return mean, torch.linalg.svd(public - mean, full_matrices=False)[2][: len(public) - 1]


def learnt_filter(mean: Tensor, components: Tensor, clean: Tensor, noisy: Tensor) -> Filter:
    """The filter for pairs clean, noisy [n, d], none of which is among the images that the ``components`` are of."""
    if len(clean) < 2:
        raise AttackError("denoising needs at least two public images that are sent and rebuilt")
    shift = (noisy - clean).mean(dim=0)
    slope = float(((mean - mean.mean()) * (shift - shift.mean())).mean() / mean.var(unbiased=False).clamp_min(1e-12))
    plain = Filter(mean, (float(shift.mean()) - slope * float(mean.mean()), slope), components, mean.new_ones(()), 1.0)
    truth, found = clean - mean, plain.centred(noisy)
    along, seen = truth @ components.T, found @ components.T
    factors = _beside((along * seen).sum(0)) / _beside(seen.square().sum(0)).clamp_min(1e-12)
    truth, found = truth - along @ components, found - seen @ components
    outside = float((truth * found).sum() / found.square().sum().clamp_min(1e-12))
    return Filter(mean, plain.dark, components, factors.clamp(0, _LARGEST), min(max(outside, 0.0), _LARGEST))


def held_out_error(mean: Tensor, components: Tensor, clean: Tensor, noisy: Tensor) -> float:
    """The geometric mean, which is that of the PSNR, of the squared errors of pairs [n, d] under the filter that the
    other half of them teaches."""
    if len(clean) < 4:
        return float((into_box(noisy) - clean).square().mean())
    errors = list[Tensor]()
    for fold in range(2):
        filter = learnt_filter(mean, components, clean[1 - fold :: 2], noisy[1 - fold :: 2])
        errors.append((into_box(filter(noisy[fold::2])) - clean[fold::2]).square().mean(dim=1))
    return float(torch.cat(errors).clamp_min(1e-10).log().mean().exp())


def _beside(values: Tensor) -> Tensor:
    """Means over each place and those beside it, the more the further back."""
    places = torch.arange(len(values))
    total = torch.cat([values.new_zeros(1), values.cumsum(0)])
    low, high = places - places // _BESIDE, (places + places // _BESIDE + 1).clamp_max(len(values))
    return (total[high] - total[low]) / (high - low)


def require_time(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise AttackError("denoise was stopped before it had learnt what the noise is")


def rebuilt(
    views: Sequence[ServerView], task: Task, attack: Denoise, generator: Generator, stopped: Callable[[], bool]
) -> list[Reconstruction]:
    """The one image behind each of the views, of clients of one round, noisy as it was trained on."""
    solved = list[Reconstruction]()
    try:
        for view in views:
            require_time(stopped)
            image, label, misfit = solve_image(view, task, attack)
            if misfit > _SOLVED:
                return _matched(views, task, attack, generator, stopped)
            solved.append(Reconstruction(image, label, misfit, 1))
    except AttackError:  # not a model, or not a view, for R-GAP
        return _matched(views, task, attack, generator, stopped)
    return solved


def _matched(
    views: Sequence[ServerView], task: Task, attack: Denoise, generator: Generator, stopped: Callable[[], bool]
) -> list[Reconstruction]:
    how, found = Inversion(iterations=attack.match), list[Reconstruction]()
    for first in range(0, len(views), attack.together):
        require_time(stopped)
        some = views[first : first + attack.together]
        targets = [target_of(view, task.build(), True, attack.together) for view in some]
        labels = [likely_labels(view, task, attack.together, generator)[:1] for view in some]
        guesses = [
            first_guess(target, task, label.to(target.flat.device), generator)
            for target, label in zip(targets, labels, strict=True)
        ]
        if foldable(targets):
            x, y = torch.cat([guess.x.detach() for guess in guesses]), torch.cat([guess.y for guess in guesses])
            found += descend_together(how, x, y, folded_evaluator(targets, how.objective))
        else:
            for target, guess in zip(targets, guesses, strict=True):
                require_time(stopped)
                found.append(descend_alone(how, guess, evaluator(target, how, guess), target.module))
    return found


def played(
    shadow: Shadow, attack: Denoise, generator: Generator, stopped: Callable[[], bool]
) -> tuple[Examples, list[ServerView], Tensor]:
    """Public images [n] that a shadow client sent one of, the views, and all others [M, C, H, W]."""
    public = shadow.public
    order = torch.randperm(len(public), generator=generator)
    chosen, views, kept = order[: min(attack.shadows, len(public) // 2)], list[ServerView](), list[int]()
    for draw, row in enumerate(chosen.tolist()):
        require_time(stopped)
        shown = public.take(torch.tensor([row]))
        try:
            view = shadow.send(shown, draw)
        except DefenseError:
            continue
        views.append(replace(view, labels=shown.y))
        kept.append(row)
    if len(kept) < min(_FEWEST, attack.shadows):
        raise AttackError("denoising learns from shadow clients: too few have public images that their defense sends")
    return public.take(torch.tensor(kept)), views, public.x[order[len(chosen) :][:_COMPONENTS]]


def require_one_image(view: ServerView) -> None:
    if (view.images_used or 1) != 1:
        raise AttackError("denoise takes one image out of its noise, not a batch of them")


class Denoiser:
    """``denoise`` with a ``shadow``, learnt once for every client of a round: views to images [1, C, H, W]."""

    def __init__(
        self,
        task: Task,
        attack: Denoise,
        generator: Generator,
        shadow: Shadow,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task, self.attack, self.generator, self.stopped = task, attack, generator, stopped
        sent, views, others = played(shadow, attack, generator, stopped)
        noisy = torch.cat([each.x.cpu() for each in rebuilt(views, task, attack, generator, stopped)])
        noisy = noisy.flatten(1).float()
        mean, components = principal(others.flatten(1).cpu())
        self.clean = learnt_filter(mean, components, sent.x.flatten(1).cpu(), noisy)
        self.error = held_out_error(mean, components, sent.x.flatten(1).cpu(), noisy)

    def __call__(self, view: ServerView) -> Reconstruction:
        require_one_image(view)
        mine = rebuilt([view], self.task, self.attack, self.generator, self.stopped)[0]
        x = into_box(self.clean(mine.x.cpu().flatten(1).float())).reshape(1, *self.task.shape)
        return Reconstruction(x.to(mine.x.device), mine.y, self.error, mine.iterations, compared=False)


def reconstruct(
    view: ServerView,
    task: Task,
    attack: Denoise,
    generator: Generator,
    known: Channel | None = None,
    earlier: Sequence[ServerView] = (),
    shadow: Shadow | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Reconstruction:
    """The image [1, C, H, W] behind the noise, from this view and, with ``known``, ``earlier`` ones of the image.

    Raises ``AttackError``, too, where it is ``stopped`` before it knows the noise: it has no answer yet."""
    if known is None and shadow is not None:
        require_one_image(view)  # before anything is learnt
        return Denoiser(task, attack, generator, shadow, stopped)(view)
    if known is None:
        raise AttackError("denoise needs to know the noise: public images and the channel's covariance, or a shadow of "
                          "the client; a run's audit has one, for a trace add --known FILE")  # fmt: skip
    solved = [solve_image(each, task, attack) for each in (*earlier, view)]
    noisy = torch.stack([image.cpu() for image, _, _ in solved]).double().mean(dim=0).flatten(1)
    mean, signal = moments(known.public.cpu())
    noise = known.noise.double().cpu() / len(solved)
    noise = noise if noise.dim() else noise * torch.eye(len(mean), dtype=torch.float64)
    x = into_box(posterior_mean(noisy, mean, signal, noise)).reshape(1, *task.shape)
    image, label, misfit = solved[-1]
    return Reconstruction(x.float().to(image.device), label, misfit, len(solved))
