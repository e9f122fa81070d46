"""What is rebuilt of images that went through a channel (C3, CHN Fig. 14), by a server that denoises and by one that
does not.

A cell is one channel at one kappa, fitted on the first ``examples`` images of a client; its first ``images`` are
attacked, each from the update of one step at batch 1, at the model's initial weights. Three series:

plain       the picture the model was shown, noise and all: R-GAP's, exact on a chain of invertible layers, else that of
            matching gradients; cut to [0, 1]
denoised    the best linear estimate from that picture before it is cut (``attacks.denoise``, Wiener). The server has
            ``PUBLIC`` images of another client for the mean and the covariance of images, and knows the noise's
            covariance up to a factor from public settings: the identity (Natural), the map of importances
            (Personalized), the covariance of its public images (White). The factor is the client's: one number, which
            every noisy picture shows as well.
learnt      that estimate, corrected by the network of ``attacks.inverter``, which learns what a linear estimate misses
            from the public images, each with one draw of that noise; a tenth of them say how far to trust it

Scores are against the client's own images, kept for every image. ``noise`` is the mean square of what the channel
added: the error of a plain attack that does not know that pixels lie in [0, 1]. The positive control is no channel.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Generator, Tensor
from torch.nn.functional import pixel_unshuffle

from prunella.attacks.denoise import Denoise, moments, posterior_mean, rebuilt
from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.inverter import Clock, Inverter, Learnt, Lessons
from prunella.attacks.r_gap import RGap, solve_image
from prunella.attacks.score.leakage import mse, score
from prunella.benchmarks.engine.claim import (
    Found,
    Label,
    Measure,
    Plot,
    Point,
    Settings,
    curves,
    declared,
    each,
    numbers,
    paired,
    seeds_of,
)
from prunella.benchmarks.engine.images import client_images, first, part, task_of
from prunella.benchmarks.engine.rules import HOLDS, Judgement, at_least, falls, worst
from prunella.benchmarks.engine.views import NONE, draws, initial_sender, seen
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.privacy import channel, channel_personalized, channel_white
from prunella.privacy.channel import eigenvalues
from prunella.privacy.defense import State
from prunella.tasks.data import Examples, Partition
from prunella.tasks.task import Task

PLAIN, DENOISED, LEARNT = "plain", "denoised", "learnt"
LEARNING = Inverter(epochs=6, width=48, seconds=1800.0)
CLIENTS, PUBLIC = 4, 5000
PRINTED = "white-printed"
CLOSE = 1e-6  # of R-GAP's solver: the same pictures as at its own 1e-12, in half the time
SPECTRA: dict[str, Tensor] = {}


def chain(kind: str, kappa: float) -> tuple[str, dict[str, Any]]:
    """A channel's name and settings as chains have them; ``PRINTED`` is White as the paper prints it.

    >>> chain("natural", 50), chain(PRINTED, 50)[1]["channel-white.as-printed"]
    (('channel-natural', {'channel-natural.kappa': 50.0}), True)
    """
    name = "channel-white" if kind == PRINTED else f"channel-{kind}"
    more = {f"{name}.as-printed": True} if kind == PRINTED else {}
    return name, {f"{name}.kappa": float(kappa), **more}


def images_of(settings: Settings, seed: int, data: Path | None, client: int) -> Examples:
    """What one of ``CLIENTS`` clients has."""
    return client_images(settings["dataset"], data, Partition("iid", clients=CLIENTS, seed=seed), client)


def public_images(dataset: str, seed: int, data: Path | None) -> Tensor:
    """The server's [N, C, H, W]."""
    return images_of({"dataset": dataset}, seed, data, 1).x[:PUBLIC]


@functools.lru_cache(maxsize=1)
def known(dataset: str, seed: int, data: Path | None) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d] of the server's public images."""
    return moments(public_images(dataset, seed, data))


@contextmanager
def decomposed_once() -> Iterator[None]:
    """Channels that are fitted on the same images, at other kappas, share their eigenvalues."""

    def cached(images: Tensor) -> Tensor:
        name = hashlib.sha256(images.detach().cpu().numpy().tobytes()).hexdigest()
        if name not in SPECTRA:
            SPECTRA[name] = eigenvalues(images)
        return SPECTRA[name]

    users = (channel, channel_white, channel_personalized)
    with ExitStack() as patches:
        for user in users:
            patches.enter_context(patch.object(user, "eigenvalues", cached))
        yield


def noise_of(fitted: State, signal: Tensor) -> Tensor:
    """The covariance [d, d] that a server which knows images of covariance ``signal`` gives the noise of a channel."""
    state = fitted["channel"]
    if "factor" in state:
        return signal * (state["factor"].square().sum() / signal.trace())
    if "deviation" in state:
        return torch.diag(state["deviation"].flatten().square())
    return torch.eye(len(signal), dtype=signal.dtype) * state["variance"]


@dataclass(frozen=True)
class Noise:
    """What a server knows of images [.., d] and of a channel's noise: mean [d], covariances [d, d]."""

    mean: Tensor
    signal: Tensor
    noise: Tensor

    def cleaned(self, noisy: Tensor) -> Tensor:
        """The best linear estimate of images [N, C, H, W]."""
        clean = posterior_mean(noisy.flatten(1).double(), self.mean, self.signal, self.noise)
        return clean.reshape(noisy.shape).float()

    def added(self, images: Tensor, generator: Generator) -> Tensor:
        """The images, each with a draw of its own. A covariance may lack rank, and so has a square root only."""
        values, vectors = torch.linalg.eigh(self.noise)
        root = vectors * values.clamp_min(0).sqrt()
        drawn = torch.randn(len(images), len(root), generator=generator, dtype=root.dtype) @ root.T
        noisy: Tensor = images + drawn.reshape(images.shape).float()
        return noisy


class Cleaned:
    """A linear estimate of images [N, C, H, W] as ``attacks.inverter`` corrects it; ``noisy`` are its lessons."""

    def __init__(self, clean: Callable[[Tensor], Tensor], noisy: Tensor) -> None:
        self.clean, self.unseen, self.shape = clean, clean(noisy), noisy.shape[1:]

    def __call__(self, flat: Sequence[Tensor], /) -> Tensor:
        return self.clean(flat[0].reshape(-1, *self.shape))


def maps_of(noisy: Tensor) -> Tensor:
    """Pictures [N, C, H, W] as the network reads them: every second pixel a map of its own, [N, 4 C, H/2, W/2, 1]."""
    return pixel_unshuffle(noisy, 2)[..., None]


def learnt(
    pictures: Tensor, clean: Callable[[Tensor], Tensor], public: Tensor, noisy: Tensor, generator: Generator
) -> Tensor:
    """Estimates for noisy pictures [N, C, H, W] by a network that corrects those of ``clean``, which is linear; it
    learnt from public images [M, C, H, W] and what noise made of them."""
    maps = maps_of(noisy)
    lessons = Lessons(maps.bfloat16(), [noisy.flatten(1)], public, torch.arange(len(public)))
    grid = (maps.shape[1], maps.shape[2], maps.shape[3])
    back = Learnt(lessons, grid, LEARNING, generator, Clock(LEARNING.seconds), Cleaned(clean, noisy))
    return back(maps_of(pictures).bfloat16(), [pictures.flatten(1)])


def picture(view: ServerView, task: Task, iterations: int, draw: Generator) -> Tensor:
    """What the model was shown [1, C, H, W]: R-GAP's answer, not cut; where the model is no chain, that of matching."""
    try:
        return solve_image(view, task, RGap(tolerance=CLOSE))[0]
    except AttackError:
        return rebuilt([view], task, Denoise(match=iterations), draw, lambda: False)[0].x


def denoised(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell; without a channel nothing is denoised."""
    own = first(images_of(settings, seed, data, 0), settings["examples"])
    name, raw = (NONE, {}) if settings["channel"] == NONE else chain(settings["channel"], settings["kappa"])
    with decomposed_once():
        one = initial_sender(task_of(settings, data), seed, name, raw, own.x, 1)
    noisy, added = list[Tensor](), list[float]()
    for number in range(settings["images"]):
        got, draw = (
            seen(one, part(own, number), draws(seed, number)),
            stream(seed, round=number, purpose="claim-attack"),
        )
        noisy.append(picture(got.view, one.task, settings["iterations"], draw).cpu())
        added.append(float((got.shown.x - own.x[number]).square().mean()))
    pictures = torch.cat(noisy)
    answers = {PLAIN: pictures}
    if name != NONE:
        mean, signal = known(settings["dataset"], seed, data)
        noise = Noise(mean, signal, noise_of(one.state[name], signal))
        answers[DENOISED] = noise.cleaned(pictures)
        public, draw = public_images(settings["dataset"], seed, data), stream(seed, purpose="claim-denoiser")
        answers[LEARNT] = learnt(pictures, noise.cleaned, public, noise.added(public, draw), draw)
    return {
        series: each(
            [{**scored(x[None], own, number), "noise": added[number]} for number, x in enumerate(into_box(answer))]
        )
        for series, answer in answers.items()
    }


def scored(x: Tensor, own: Examples, number: int) -> dict[str, float]:
    """The error and the likenesses of an answer for image ``number``, and the error of a flat image."""
    truth = part(own, number)
    row = score(Reconstruction(x, truth.y, 0.0, 1), PrivateBatch(truth.x, truth.y))
    flat = truth.x.mean().expand_as(truth.x)
    return {"mse": row.mse.mean, "psnr": row.psnr.mean, "ssim": row.ssim.mean, "mse_flat": mse(truth.x, flat)[0]}


CHANNELLED = Measure("channel-denoised", denoised, control={"channel": NONE, "kappa": NONE}, version=2)

# Fig. 14, LeNet. The figure names kappa 50 to 300 for all three channels, the text 500 to 1500 for White and
# Personalized; without a defense 0.1448.
FIGURE_14 = """
             50     100    200    300
natural      0.7166 0.5407 0.4006 0.3337
white        0.7496 0.7083 0.5276 0.4704
personalized 0.7134 0.7172 0.686  0.6544
"""
KAPPAS = (50, 100, 200, 300)
LEAST = 0.001  # the smallest effect on MSE that matters: that of an image at 30 dB
MANY, FEW = 5000, 500  # images of a client: above and below the 3072 pixels
MSE: dict[Label, float] = {
    (channel, kappa, str(MANY), PLAIN): value for (channel, kappa), value in numbers(FIGURE_14).items()
}
MSE[NONE, NONE, str(MANY), PLAIN] = 0.1448
NOISED: Settings = {"dataset": "cifar10", "model": "cnn6", "images": 10, "iterations": 300}


def noised_cells(common: Settings, kappas: Sequence[int]) -> tuple[Settings, ...]:
    """No channel, every channel at every kappa, and both readings of White for a client of few images."""
    plain = {**common, "channel": NONE, "kappa": NONE, "examples": MANY}
    many = [{**plain, "channel": c, "kappa": k} for c in ("natural", "white", "personalized") for k in kappas]
    few = [{**plain, "channel": c, "kappa": 50, "examples": FEW} for c in ("natural", "white", PRINTED)]
    return (plain, *many, *few)


NOISED_CELLS = noised_cells(NOISED, (50, 300))


def over_natural(points: Sequence[Point]) -> dict[str, list[tuple[float, float]]]:
    """MSE of White and Personalized, and of Natural at the same kappa and as many images, seed by seed."""
    sides = {
        " ".join(p.label[:3]): (p.label, ("natural", *p.label[1:]))
        for p in points
        if p.label[0] not in (NONE, "natural") and not (p.label[0] == "white" and p.label[2] == str(FEW))
    }
    return paired(seeds_of(points, "mse"), sides)


def judge_inversion(points: Sequence[Point]) -> Judgement:
    """C3: behind the learnt denoiser, MSE falls with kappa for every channel, and White, as printed, and Personalized
    are not under Natural; seeds in pairs. The same words of the linear one and of the plain attack are told, and not
    judged."""
    parts, without = [], {DENOISED: "by the linear estimate", PLAIN: "without denoising"}
    for attack in (LEARNT, DENOISED, PLAIN):
        behind = [p for p in points if p.label[3] == attack and p.label[0] != NONE]
        whole = [p for p in behind if p.label[2] == str(MANY)]
        over = at_least(over_natural(behind), "MSE, White and Personalized over Natural", LEAST)
        found = worst([falls(curves(whole, "mse", 1), "MSE over kappa", LEAST), over])
        told = f"{without.get(attack)}, not judged, {found.word}: {found.reason}"
        parts.append(found if attack == LEARNT else Judgement(HOLDS, told))
    return worst(parts)


C3 = declared(
    """C3 | Channel | Fig. 14 | MSE of gradient inversion grows as kappa falls; White and Personalized defend more than
    Natural
    published: MSE of 30 CIFAR-10 images for four models; LeNet without a defense 0.1448
    small: CNN6 in place of LeNet: 10 images a seed at batch 1, initial weights. A client has 5000 images, more than
    pixels, so that the covariance has full rank; in the rows of 500 images it has rank 499.
    paper: LeNet of the paper's four models, 10 images a seed at its initial weights. R-GAP cannot invert it: by
    matching.
    * The verdict is of a server that denoises: it knows which channel it is and at what kappa, and has 5000 images of
    another client. `denoised` is the best linear estimate, `learnt` what a network makes of that which learnt from
    those images behind such noise (`attacks/inverter.py`), as far as it helps on a tenth of them that it did not learn
    from: where it does not, the two are the same. It adds 0.1 dB at most, and nothing behind White, whose noise looks
    like images. `plain` is the picture that the model was shown.
    * From the update instead of the picture, the same network has on the board (20 clients' single images, untrained
    `cnn`) 17.9 dB behind the Natural channel at kappa 50 where the linear one has 17.5, on MNIST 20.0 and 17.8; behind
    White at kappa 500 it has 29.7 and 29.6, and 30.4 and 32.0.
    * An earlier table was of a server that does not denoise, of IG on LeNet (Zhu), 2 images a seed and clients of 500
    images. CNN6 took its place as R-GAP reads any picture off its gradient exactly; on a sigmoid network it fails where
    the noise is large.
    * `noise` is the plain attack's MSE where the server does not know that pixels lie in [0, 1]. The paper's largest
    MSE, 1.03, cannot be of such pixels.
    * The figure names kappa 50 to 300 for all three channels, the text 500 to 1500 for White and Personalized.
    * `white-printed` divides 2 kappa by the 3072 pixels, as the paper prints it, and `white` by the rank of the
    covariance (`privacy/channel_white.py`): with 5000 images these are the same, with 500 the printed one lets 499 /
    3072 of kappa through. The paper does not say how many images a client has.""",
    CHANNELLED,
    "channel kappa examples: attack",
    "mse 4 MSE; psnr 1 PSNR in dB; ssim 2 SSIM; mse_flat 4 MSE of a flat image; noise 3 noise",
    Plot(("mse", "psnr"), x=1, x_name="kappa", split=0),
    judge_inversion,
    NOISED_CELLS,
    noised_cells({**NOISED, "model": "lenet", "iterations": 4800}, KAPPAS),
    {"mse": MSE},
)
