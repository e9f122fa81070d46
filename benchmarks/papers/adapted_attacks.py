"""Attacks adapted to a defense beside those that are not, on one set of images (docs/attacks.md).

priprune     after eight rounds of training on other images: ``ig``, ``sgi`` and ``expectation``, which knows the coin
top-k, dgp   with error feedback, the same image in every round, the model following what was sent: ``ig`` and ``sgi``
             on the last round, ``unrolling`` on all of them

and, in a table of their own, attacks with public images: an undefended update, Top-k (2 % of the coordinates), DGP, and
noise of twice and eight times every layer's deviation, under ``sgi``, and ``ggl`` and ``rog`` with priors learnt from
images that are not attacked. "mean" is the mean image of the class.

``cnn`` untrained, batch 1, labels known; PSNR in dB. Seed i is test image i under the i-th initialisation; two attacks
are told apart by the images' own differences and twice their standard error.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Found, Measure, Plot, Point, Settings, Sweep
from prunella.benchmarks.engine.images import client_images, part, place
from prunella.benchmarks.engine.priors import LEARNT, prior
from prunella.benchmarks.engine.rules import Judgement, above
from prunella.benchmarks.engine.views import NONE, Sender, after_rounds, attack_settings, initial_sender, seen
from prunella.benchmarks.papers.orderings import image_of, masked, undefended
from prunella.core.randomness import rehearsal, stream
from prunella.core.ranking import keep_largest
from prunella.core.trees import add, apply_mask, full_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.data import Examples, Partition
from prunella.tasks.task import Task

ROUNDS = 4
EARLIER = 8
PRIPRUNE = "priprune"
WITH_PUBLIC = (NONE, "top 2 %", "dgp", "noise 2", "noise 8")


def others(settings: Settings, data: Path | None) -> Examples:
    """Images that are not attacked."""
    return client_images(settings["dataset"], data, Partition("iid", clients=1))


def attacked(settings: Settings, task: Task, name: str, view: ServerView, image: int, **more: Any) -> torch.Tensor:
    """The images [1, C, H, W] an attack finds, by its defaults but for the iterations."""
    keywords = {"earlier": more.pop("earlier")} if "earlier" in more else {}
    how = attack_settings(name, task.model, settings["iterations"], **more)
    return ATTACKS[name].reconstruct(view, task, how, stream(image, purpose="attack"), **keywords).x


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


def behind(view: ServerView, arm: str, image: int) -> ServerView:
    """The view through a defense's first round."""
    if arm in (NONE, "dgp"):
        return masked(view, arm)
    if arm == "top 2 %":
        mask = {n: keep_largest(u.abs(), math.ceil(u.numel() / 50)) for n, u in view.update.items()}
        return dataclasses.replace(view, update=apply_mask(view.update, mask), shared=mask)
    draw, level = stream(image, purpose="noise"), float(arm.removeprefix("noise "))
    noisy = {n: u + level * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
    return dataclasses.replace(view, update=noisy, shared=full_mask(noisy))


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
    of = {point.label[1:]: point.values["psnr"] for point in points}
    pairs = [((PRIPRUNE, "expectation"), (PRIPRUNE, "sgi")), ((PRIPRUNE, "sgi"), (PRIPRUNE, "ig"))]
    pairs += [((PRIPRUNE, "sgi undefended"), (PRIPRUNE, "expectation")), (("top-k", "ig"), ("dgp", "ig"))]
    pairs += [(("top-k", "unrolling"), ("dgp", "unrolling"))]
    pairs += [((defense, "unrolling"), (defense, "sgi")) for defense in ("dgp", "top-k")]
    return above({f"{' '.join(a)} above {' '.join(b)}": (of[a], of[b]) for a, b in pairs})


def judge_public(points: Sequence[Point]) -> Judgement:
    """An attack with public images rebuilds more than sgi; more than the mean image, where little arrives."""
    of = {point.label: point.values["psnr"] for point in points}
    sets = dict.fromkeys(point.label[0] for point in points)
    pairs = [((d, arm, name), (d, arm, "sgi")) for d in sets for name in LEARNT for arm in WITH_PUBLIC]
    pairs += [((d, arm, "ggl"), (d, arm, "mean")) for d in sets for arm in ("noise 8", "top 2 %")]
    return above({f"{' '.join(a)} above {b[-1]}": (of[a], of[b]) for a, b in pairs})


def table(name: str, says: str, cells: Sequence[tuple[str, str]], measure: Measure, judge: Any) -> Claim:
    """Cells are (dataset, defense); four images."""
    common: Settings = {"model": "cnn", "iterations": 100}
    sweep = Sweep(
        tuple({**common, "dataset": dataset, "defense": defense} for dataset, defense in cells),
        seeds=(0, 1, 2, 3),
        note="A seed is an image and an initialisation.",
    )
    columns = (Column("psnr", "PSNR in dB", 1), Column("sent", "share sent"))
    keys = ("dataset", "defense")
    experiment = Experiment(measure, {"small": sweep}, keys, "attack", columns, Plot(("psnr",), split=0), judge)
    return Claim(name, "Prunella", "docs/attacks.md", says, "", experiment)


ADAPTED = table(
    "adapted",
    "an attack that knows the defense rebuilds more",
    [("digits", defense) for defense in (PRIPRUNE, "top-k", "dgp")],
    Measure("adapted", make),
    judge_adapted,
)
PUBLIC = table(
    "public",
    "an attack with public images rebuilds more where little arrives",
    [(dataset, arm) for dataset in ("digits", "mnist") for arm in WITH_PUBLIC],
    Measure("with-public-images", with_public),
    judge_public,
)
