"""The utility-privacy plane of C4: accuracy, membership inference and inversion of one defended federation.

The federation is a cell of ``tradeoff``; every client has few ``examples``, so that there is something to learn by
heart; with many there is nothing (``members`` False). ``auc`` is members' scores over outsiders' in the channel paper's
white-box membership inference (``attacks.mia``) on the weights training ended with, 0.5 for nothing. The attacker knows
``KNOWN`` of the members and as many outsiders, and is asked about all other members and ``OUTSIDERS`` test images.

Few examples have a covariance of low rank, and kappa nats of an image among 64 of them take hardly any noise. So kappa
is of the population (``of_population``): the noise is what lets kappa nats of an image through whose covariance is that
of ``PUBLIC`` other images of all clients, and the clients are given the kappa that makes it of client 0's own examples.
It is as large as the population's; White's keeps to the directions of a client's own examples, in which they differ.

Inversion is of one step at batch 1 on client 0's images after the last round, four ways, with known labels:

plain      IG
denoised   behind a channel: IG's picture through the linear filter (``attacks.denoise``) that public images teach, with
           noise on them as ``channel_denoised`` has the server know it, and cut to [0, 1] as pictures are
learnt     that filter's picture, corrected by the network of ``attacks.inverter``, which learns from other such images
mean       the public images' mean of the class, which needs no update

``strongest`` is the one with the least error over the cell's images, as whoever plays this on images of their own finds
out beforehand. Scores are kept for every image. The positive control is no defense: IG must rebuild the images to
``PSNR_FLOOR`` in the mean, and membership inference, where it is asked for (``members``), reach an area of ``TELLS``.
"""

import functools
from pathlib import Path

import torch
from torch import Tensor

from prunella.attacks.denoise import learnt_filter, moments, principal
from prunella.attacks.engine.image_priors import into_box
from prunella.attacks.mia import AttackedModel, Mia, infer
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import score
from prunella.attacks.score.membership import compare
from prunella.benchmarks.engine.claim import Found, Measure, Settings, each
from prunella.benchmarks.engine.images import class_means, client_images, every_test_image, task_of
from prunella.benchmarks.engine.views import NONE, received_of
from prunella.benchmarks.papers.channel_denoised import Noise, learnt, noise_of
from prunella.benchmarks.papers.channel_inversion import CHANNELS
from prunella.benchmarks.papers.tradeoff import ALPHA, CONTROL, AfterTraining, answers, examples_of, federation
from prunella.core.errors import ConfigError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.privacy.channel import capacity, eigenvalues, solve_variance
from prunella.privacy.channel_personalized import PersonalizedChannel, importance_map
from prunella.privacy.channel_white import directions
from prunella.privacy.defense import State
from prunella.tasks.data import Examples, Partition

NATURAL, WHITE, PERSONALIZED = CHANNELS
PLAIN = "plain"
KNOWN, OUTSIDERS, TELLS = 0.25, 1000, 0.55
PUBLIC, PLAYED = 5000, 1000


@functools.lru_cache(maxsize=1)
def public_images(dataset: str, clients: int, examples: int, seed: int, data: Path | None) -> Examples:
    """Images that nobody trained on, as many of each client, in an order of the seed. Raises ``ConfigError`` where a
    client has not more than its ``examples``."""
    partition, x, y = Partition("dirichlet", clients, ALPHA, seed), list[Tensor](), list[Tensor]()
    for client in range(clients):
        own = client_images(dataset, data, partition, client)
        if not 0 < examples < len(own):  # 0 are all
            raise ConfigError(
                f"client {client} of seed {seed} has {len(own)} images: ask for fewer examples, not 0, or clients"
            )
        more = slice(examples, examples + PUBLIC // clients)
        x.append(own.x[more])
        y.append(own.y[more])
    images = Examples(torch.cat(x), torch.cat(y))
    return images.take(torch.randperm(len(images), generator=stream(seed, purpose="claim-public")))


def public_of(settings: Settings, seed: int, data: Path | None) -> Examples:
    return public_images(settings["dataset"], settings["clients"], settings["examples"], seed, data)


def weighed(name: str, images: Tensor) -> Tensor:
    """Images as the channel weighs them: Personalized is Natural on pixels over the roots of their importances."""
    if name != PERSONALIZED:
        return images
    return images.double() / importance_map(PersonalizedChannel(), images.shape[-2], images.shape[-1]).sqrt()


def kappa_of(name: str, kappa: float, population: Tensor, own: Tensor) -> float:
    """The kappa at which a channel fitted on ``own`` images adds the noise that lets ``kappa`` nats through of images
    of the population. White's is the same multiple of the variance in every direction, so many nats in each."""
    if name == WHITE:
        return kappa * directions(own)[0] / directions(population)[0]
    spectra = [eigenvalues(weighed(name, images)) for images in (population, own)]
    return capacity(spectra[1], solve_variance(spectra[0], kappa))


def of_population(settings: Settings, seed: int, data: Path | None) -> Settings:
    """The settings with the client's own kappa."""
    name = settings["defenses"]
    if name not in CHANNELS:
        return settings
    key, own = f"{name}.kappa", examples_of(settings, 0, seed, data).x
    kappa = kappa_of(name, settings["options"][key], public_of(settings, seed, data).x, own)
    return {**settings, "options": {**settings["options"], key: kappa}}


def cleaned(pictures: Tensor, public: Tensor, fitted: State, generator: torch.Generator) -> dict[str, Tensor]:
    """What a filter and a network make of pictures [N, C, H, W] in [0, 1] behind a channel, which both learn from
    public images [M, C, H, W]. Raises ``ConfigError`` where these are no more than pixels: what learns from so few is
    no attacker that a defense can be judged by."""
    played, others = public[:PLAYED], public[PLAYED:]
    if len(others) <= others[0].numel():
        raise ConfigError(
            f"{len(others)} of {len(public)} public images are too few for a covariance of {others[0].numel()} pixels"
        )
    mean, signal = moments(others)
    noise = Noise(mean, signal, noise_of(fitted, signal))
    noisy = into_box(noise.added(played, generator))
    clean = learnt_filter(*principal(others.flatten(1)), played.flatten(1), noisy.flatten(1))

    def filtered(x: Tensor) -> Tensor:
        return clean(x.flatten(1)).reshape(x.shape)

    better = learnt(pictures, filtered, others, into_box(noise.added(others, generator)), generator)
    return {"denoised": into_box(filtered(pictures)), "learnt": into_box(better)}


def inverted(settings: Settings, seed: int, data: Path | None, trained: AfterTraining) -> dict[str, float]:
    """Errors of the attacks and of the strongest."""
    public = public_of(settings, seed, data)
    means = class_means(public, task_of(settings, data).classes)
    found = [(truth, given[PLAIN].x) for truth, given in answers(settings, seed, data, trained, {PLAIN: "ig"})]
    pictures = {PLAIN: [x for _, x in found], "mean": [means[truth.y] for truth, _ in found]}
    if (name := settings["defenses"]) in CHANNELS:
        noisy, draw = torch.cat(pictures[PLAIN]), stream(seed, purpose="claim-denoise")
        answers_of = cleaned(noisy, public.x, trained.state[name], draw)
        pictures |= {way: list(torch.split(rebuilt, 1)) for way, rebuilt in answers_of.items()}
    scores: dict[str, dict[str, float]] = {}
    for name, rebuilt in pictures.items():
        rows = [score(Reconstruction(x, t.y, 0.0, 1), t) for x, (t, _) in zip(rebuilt, found, strict=True)]
        scores[name] = each([{"mse": row.mse.mean, "psnr": row.psnr.mean} for row in rows])
    best = min(scores, key=lambda name: scores[name]["mse"])
    named = {**scores, "strongest": scores[best]}
    return {key.replace(".", f"_{name}.", 1) if "." in key else f"{key}_{name}": value
            for name, row in named.items() for key, value in row.items()}  # fmt: skip


def split(settings: Settings, seed: int, data: Path | None) -> tuple[PrivateBatch, PrivateBatch, PrivateBatch, int]:
    """Members the attacker knows, outsiders it knows, those it is asked about, and how many of these are members."""
    clients = [examples_of(settings, client, seed, data) for client in range(settings["clients"])]
    x, y = torch.cat([one.x for one in clients]), torch.cat([one.y for one in clients])
    test = every_test_image(settings["dataset"], data)
    mine = torch.randperm(len(y), generator=stream(seed, purpose="claim-members"))
    rest = torch.randperm(len(test), generator=stream(seed, purpose="claim-outsiders"))[: OUTSIDERS + len(y)]
    known = round(KNOWN * len(y))
    inside, asked, outside, others = mine[:known], mine[known:], rest[:known], rest[known : known + OUTSIDERS]
    candidates = PrivateBatch(torch.cat([x[asked], test.x[others]]), torch.cat([y[asked], test.y[others]]))
    return PrivateBatch(x[inside], y[inside]), PrivateBatch(test.x[outside], test.y[outside]), candidates, len(asked)


def membership(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: ``arm``."""
    told = of_population(settings, seed, data) if settings["population"] else settings
    trained = federation(told, seed, data)
    own = {"accuracy": trained.accuracy, **inverted(told, seed, data, trained)}
    if not settings.get("members", True):
        return {settings["arm"]: own}
    received = received_of(trained.saved)
    model = AttackedModel(task_of(settings, data), received.params, received.buffers)
    members, outsiders, candidates, inside = split(settings, seed, data)
    scores = infer(model, members, outsiders, candidates, Mia(), stream(seed, purpose="claim-membership"))
    auc = compare(scores[:inside], scores[inside:]).auc
    return {settings["arm"]: {**own, "auc": auc}}


MEMBERSHIP = Measure(
    "plane",
    membership,
    control={**CONTROL, "arm": NONE, "strength": NONE},
    least={"psnr_plain": PSNR_FLOOR, "auc": TELLS},
    version=3,
)
