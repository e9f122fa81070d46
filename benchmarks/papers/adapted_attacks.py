"""Published orderings of defenses, and attacks adapted to a defense beside those that are not, on one set of images
(docs/attacks.md).

``ORDERINGS``: do they hold, and do they hold when the attack adapts? DGP (Table 1): under IG, none leaks more than
Top-k, Top-k more than DGP, in SSIM. PRI: SGI is at least as good as GI (``ig``) on pruned updates. CHN (Fig. 14): the
White channel leaves a larger error than the Natural one at the same kappa, in MSE; after denoising under the known
covariance, which is the attack adapted to both (from the first initialisation for every image).

``ADAPTED``:

priprune     after eight rounds of training on other images: ``ig``, ``sgi`` and ``expectation``, which knows the coin
top-k, dgp   with error feedback, the same image in every round, the model following what was sent: ``ig`` and ``sgi``
             on the last round, ``unrolling`` on all of them

``PUBLIC``, attacks with public images: an undefended update, Top-k (2 % of the coordinates), DGP, and noise of twice
and eight times every layer's deviation, under ``sgi``, and ``ggl`` and ``rog`` with priors learnt from images that are
not attacked. "mean" is the mean image of the class.

``cnn`` untrained, batch 1, labels known, a client's first round where nothing else is said; PSNR in dB. Seed i is test
image i under the i-th initialisation; two arms are told apart by the images' own differences and twice their standard
error.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from prunella.attacks.denoise import Channel, Denoise, reconstruct
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import mse, psnr, ssim
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Point, Settings, declared, seeds_of
from prunella.benchmarks.engine.images import client_images, every_test_image, part, place, task_of
from prunella.benchmarks.engine.priors import LEARNT, prior
from prunella.benchmarks.engine.rules import Judgement, above
from prunella.benchmarks.engine.views import NONE, Sender, after_rounds, answer, initial_sender, seen
from prunella.core.randomness import rehearsal, stream
from prunella.core.ranking import keep_largest
from prunella.core.trees import Mask, add, apply_mask, full_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.chain import build_chain, present, start
from prunella.privacy.dgp import dual_mask
from prunella.tasks.data import Examples, Partition
from prunella.tasks.task import Task, initial

ARMS = (NONE, "top-k", "dgp")
CHANNELS, KAPPA = ("channel-natural", "channel-white"), 20.0
HELD = 200  # images the server holds
DENOISE = "denoise"
ROUNDS, EARLIER = 4, 8
PRIPRUNE = "priprune"
WITH_PUBLIC = (NONE, "top 2 %", "dgp", "noise 2", "noise 8")


def image_of(settings: Settings, number: int, data: Path | None) -> tuple[Task, PrivateBatch]:
    """The task, and test image ``number`` with its label."""
    own = part(every_test_image(settings["dataset"], data), number)
    return task_of(settings, data), PrivateBatch(own.x, own.y)


def undefended(task: Task, truth: PrivateBatch, number: int) -> ServerView:
    """One step on the image from weights of its own seed, label known."""
    return dataclasses.replace(undefended_view(task, *initial(task, number), truth), labels=truth.y)


def behind(view: ServerView, arm: str, image: int = 0) -> ServerView:
    """The view through a defense's first round: Top-k keeps a fifth, DGP removes the largest 5 % and smallest 75 %."""
    if arm.startswith("noise "):
        draw, level = stream(image, purpose="noise"), float(arm.removeprefix("noise "))
        noisy = {n: u + level * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
        return dataclasses.replace(view, update=noisy, shared=full_mask(noisy))
    masks: dict[str, Mask] = {
        NONE: full_mask(view.update),
        "top-k": {n: keep_largest(u.abs(), math.ceil(u.numel() / 5)) for n, u in view.update.items()},
        "top 2 %": {n: keep_largest(u.abs(), math.ceil(u.numel() / 50)) for n, u in view.update.items()},
        "dgp": {n: dual_mask(u, torch.ones_like(u, dtype=torch.bool), 0.05, 0.75) for n, u in view.update.items()},
    }
    return dataclasses.replace(view, update=apply_mask(view.update, masks[arm]), shared=masks[arm])


def attacked(settings: Settings, task: Task, name: str, view: ServerView, image: int, **more: Any) -> torch.Tensor:
    """The images [1, C, H, W] an attack finds, by its defaults but for the iterations."""
    return answer(name, view, task, settings["iterations"], stream(image, purpose="attack"), **more).x


def pruned(settings: Settings, number: int, data: Path | None) -> Found:
    """A cell of ``ig`` or ``sgi``: SSIM under one arm."""
    task, truth = image_of(settings, number, data)
    name, view = settings["attack"], behind(undefended(task, truth, number), settings["defense"])
    return {name: {"ssim": ssim(truth.x, attacked(settings, task, name, view, number))[0]}}


def noisy(settings: Settings, number: int, data: Path | None) -> Found:
    """A cell of ``denoise``: MSE behind one channel."""
    (task, truth), name = image_of(settings, number, data), settings["defense"]
    public, state = every_test_image(settings["dataset"], data).x[-HELD:], initial(task, 0)
    chain = build_chain([name], {f"{name}.kappa": KAPPA})
    fitted = start(chain, public, state[0], {}, rehearsal(0, purpose="fit"))
    tree = fitted[name]["channel"]
    noise = tree["variance"] if "variance" in tree else tree["factor"].double().T @ tree["factor"].double()
    shown = present(chain, truth.x, fitted, rehearsal(number, purpose="noise"))
    view, how = undefended_view(task, *state, PrivateBatch(shown, truth.y)), Denoise(iterations=150)
    rebuilt = reconstruct(view, task, how, stream(number, purpose="attack"), Channel(public, noise))
    return {DENOISE: {"mse": mse(truth.x, rebuilt.x)[0]}}


def make_ordering(settings: Settings, number: int, data: Path | None) -> Found:
    """A cell."""
    return (noisy if settings["attack"] == DENOISE else pruned)(settings, number, data)


def judge_orderings(points: Sequence[Point]) -> Judgement:
    """Every published ordering, image by image."""
    ssim, errors = seeds_of(points, "ssim"), seeds_of(points, "mse")
    pairs = {
        f"{attack}: {more} leaks more than {less}": (ssim[more, attack], ssim[less, attack])
        for attack in ("ig", "sgi")
        for more, less in ((NONE, "top-k"), ("top-k", "dgp"))
    }
    pairs |= {f"sgi leaks more than ig under {arm}": (ssim[arm, "sgi"], ssim[arm, "ig"]) for arm in ARMS[1:]}
    white = "denoise: white leaves a larger error than natural"
    return above({**pairs, white: (errors["channel-white", DENOISE], errors["channel-natural", DENOISE])})


def others(settings: Settings, data: Path | None) -> Examples:
    """Images that are not attacked."""
    return client_images(settings["dataset"], data, Partition("iid", clients=1))


def scored(truth: PrivateBatch, found: dict[str, torch.Tensor]) -> Found:
    return {name: {"psnr": psnr(truth.x, x)[0]} for name, x in found.items()}


def priprune(settings: Settings, task: Task, train: Examples, truth: PrivateBatch, image: int) -> Found:
    """The attacks on the ninth round, and on an undefended one; ``sent`` is the share of coordinates in that round."""
    earlier = [part(train, i) for i in range(EARLIER * image, EARLIER * (image + 1))]
    one = initial_sender(task, image, PRIPRUNE, {}, train.x, 1)
    one = after_rounds(one, earlier, lambda turn: rehearsal(image, round=turn, purpose="warm"))
    view = seen(one, Examples(truth.x, truth.y), lambda purpose: rehearsal(image, purpose=purpose)).view
    sent = sum(int((u != 0).sum()) for u in view.update.values()) / sum(u.numel() for u in view.update.values())
    found = {name: attacked(settings, task, name, view, image) for name in ("ig", "sgi", "expectation")}
    found["sgi undefended"] = attacked(settings, task, "sgi", undefended(task, truth, image), image)
    return {name: {**row, "sent": sent} for name, row in scored(truth, found).items()}


def followed(one: Sender, private: Examples, image: int) -> list[ServerView]:
    """The views of ``ROUNDS`` rounds on one image, the model following what was sent."""
    views = list[ServerView]()
    for turn in range(ROUNDS):
        draw = lambda purpose, turn=turn: rehearsal(image, round=turn, purpose=purpose)  # noqa: E731
        views.append(seen(one, private, draw).view)
        one = after_rounds(one, [private], lambda _, draw=draw: draw("defense"))  # type: ignore[misc]
        moved = add(one.received.params, views[-1].update)
        one = dataclasses.replace(one, received=dataclasses.replace(one.received, params=moved))
    return views


def make(settings: Settings, image: int, data: Path | None) -> Found:
    """A cell: one defense under every attack."""
    (task, truth), train = image_of(settings, image, data), others(settings, data)
    if settings["defense"] == PRIPRUNE:
        return priprune(settings, task, train, truth, image)
    views = followed(
        initial_sender(task, image, settings["defense"], {}, train.x, 1), Examples(truth.x, truth.y), image
    )
    found = {name: attacked(settings, task, name, views[-1], image) for name in ("ig", "sgi")}
    found["unrolling"] = attacked(settings, task, "unrolling", views[-1], image, earlier=views[:-1])
    return scored(truth, found)


def with_public(settings: Settings, image: int, data: Path | None) -> Found:
    """A cell: one arm with and without public images."""
    (task, truth), train = image_of(settings, image, data), others(settings, data)
    view, place_ = behind(undefended(task, truth, image), settings["defense"], image), place(settings["dataset"], data)
    found = {"mean": train.x[train.y == truth.y].mean(dim=0)[None], "sgi": attacked(settings, task, "sgi", view, image)}
    for name in LEARNT:
        found[name] = attacked(settings, task, name, view, image, prior=prior(name, place_))
    return scored(truth, found)


def judge_adapted(points: Sequence[Point]) -> Judgement:
    """Knowing the coin helps, sgi beats ig, feedback gives the image away; and Top-k leaks more than DGP."""
    of = {label[1:]: seeds for label, seeds in seeds_of(points, "psnr").items()}
    pairs = [((PRIPRUNE, "expectation"), (PRIPRUNE, "sgi")), ((PRIPRUNE, "sgi"), (PRIPRUNE, "ig"))]
    pairs += [((PRIPRUNE, "sgi undefended"), (PRIPRUNE, "expectation")), (("top-k", "ig"), ("dgp", "ig"))]
    pairs += [(("top-k", "unrolling"), ("dgp", "unrolling"))]
    pairs += [((defense, "unrolling"), (defense, "sgi")) for defense in ("dgp", "top-k")]
    return above({f"{' '.join(a)} above {' '.join(b)}": (of[a], of[b]) for a, b in pairs})


def judge_public(points: Sequence[Point]) -> Judgement:
    """An attack with public images rebuilds more than sgi; more than the mean image, where little arrives."""
    of = seeds_of(points, "psnr")
    sets = dict.fromkeys(point.label[0] for point in points)
    pairs = [((d, arm, name), (d, arm, "sgi")) for d in sets for name in LEARNT for arm in WITH_PUBLIC]
    pairs += [((d, arm, "ggl"), (d, arm, "mean")) for d in sets for arm in ("noise 8", "top 2 %")]
    return above({f"{' '.join(a)} above {b[-1]}": (of[a], of[b]) for a, b in pairs})


def table(words: str, name: str, make: Any, judge: Any, cells: Sequence[tuple[str, str]]) -> Claim:
    """Cells are (dataset, defense); four images."""
    return declared(
        f"""{words}
        small: A seed is an image and an initialisation.""",
        Measure(name, make),
        "dataset defense: attack",
        "psnr 1 PSNR in dB; sent 2 share sent",
        Plot(("psnr",), split=0),
        judge,
        ({"model": "cnn", "iterations": 100, "dataset": dataset, "defense": defense} for dataset, defense in cells),
        seeds=(0, 1, 2, 3),
    )


ADAPTED = table(
    "adapted | Prunella | docs/attacks.md | an attack that knows the defense rebuilds more",
    "adapted",
    make,
    judge_adapted,
    [("digits", defense) for defense in (PRIPRUNE, "top-k", "dgp")],
)
PUBLIC = table(
    "public | Prunella | docs/attacks.md | an attack with public images rebuilds more than sgi, which needs none",
    "with-public-images",
    with_public,
    judge_public,
    [(dataset, arm) for dataset in ("digits", "mnist", "cifar10") for arm in WITH_PUBLIC],
)
COMMON: Settings = {"dataset": "digits", "model": "cnn", "iterations": 150}
ORDERINGS = declared(
    """orderings | DGP, PriPrune, Channel | docs/attacks.md | none leaks more than Top-k and Top-k more than DGP; SGI
    rebuilds more than IG; White hides more than Natural
    published: the papers' orderings: DGP Table 1, PriPrune Fig. 3, Channel Fig. 14
    small: A seed is an image and an initialisation: eight digits.""",
    Measure("orderings", make_ordering),
    "defense: attack",
    "ssim 4 SSIM; mse 4 MSE",
    Plot(("ssim", "mse")),
    judge_orderings,
    (
        *({**COMMON, "defense": arm, "attack": attack} for attack in ("ig", "sgi") for arm in ARMS),
        *({**COMMON, "model": "cnn6", "defense": name, "attack": DENOISE} for name in CHANNELS),
    ),
    seeds=tuple(range(8)),
)
