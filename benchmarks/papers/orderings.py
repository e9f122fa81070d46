"""Published orderings of defenses, measured again on one set of images: do they hold, and do they hold when the attack
adapts (docs/attacks.md)?

DGP (Table 1): under IG, none leaks more than Top-k, Top-k more than DGP, in SSIM. PRI: SGI is at least as good as GI
(``ig``) on pruned updates. CHN (Fig. 14): the White channel leaves a larger error than the Natural one at the same
kappa, in MSE; after denoising under the known covariance, which is the attack adapted to both. Batch 1, an untrained
model, a client's first round, labels known. Seed i is test image i under the i-th initialisation (channels: the first
one); an ordering of two arms is judged by the images' own differences.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from prunella.attacks import ATTACKS
from prunella.attacks.denoise import Channel, Denoise, reconstruct
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import mse, ssim
from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Found, Measure, Plot, Point, Settings, Sweep
from prunella.benchmarks.engine.images import every_test_image, part, place
from prunella.benchmarks.engine.rules import Judgement, above
from prunella.benchmarks.engine.views import NONE, attack_settings
from prunella.core.randomness import rehearsal, stream
from prunella.core.ranking import keep_largest
from prunella.core.trees import Mask, apply_mask, full_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.chain import build_chain, present, start
from prunella.privacy.dgp import dual_mask
from prunella.tasks.data import make_task
from prunella.tasks.task import Task, initial

ARMS = (NONE, "top-k", "dgp")
CHANNELS = ("channel-natural", "channel-white")
KAPPA = 20.0
PUBLIC = 200  # images the server holds
DENOISE = "denoise"


def image_of(settings: Settings, number: int, data: Path | None) -> tuple[Task, PrivateBatch]:
    """The task, and test image ``number`` with its label."""
    own = part(every_test_image(settings["dataset"], data), number)
    return make_task(settings["model"], place(settings["dataset"], data), None), PrivateBatch(own.x, own.y)


def undefended(task: Task, truth: PrivateBatch, number: int) -> ServerView:
    """One step on the image from weights of its own seed, label known."""
    return dataclasses.replace(undefended_view(task, *initial(task, number), truth), labels=truth.y)


def masked(view: ServerView, arm: str) -> ServerView:
    """The view through a defense's first round: Top-k keeps a fifth, DGP removes the largest 5 % and smallest 75 %."""
    masks: dict[str, Mask] = {
        NONE: full_mask(view.update),
        "top-k": {n: keep_largest(u.abs(), math.ceil(u.numel() / 5)) for n, u in view.update.items()},
        "dgp": {n: dual_mask(u, torch.ones_like(u, dtype=torch.bool), 0.05, 0.75) for n, u in view.update.items()},
    }
    return dataclasses.replace(view, update=apply_mask(view.update, masks[arm]), shared=masks[arm])


def pruned(settings: Settings, number: int, data: Path | None) -> Found:
    """A cell of ``ig`` or ``sgi``: SSIM under one arm."""
    task, truth = image_of(settings, number, data)
    name, seen = settings["attack"], masked(undefended(task, truth, number), settings["defense"])
    how, draw = attack_settings(name, task.model, settings["iterations"]), stream(number, purpose="attack")
    return {name: {"ssim": ssim(truth.x, ATTACKS[name].reconstruct(seen, task, how, draw).x)[0]}}


def noisy(settings: Settings, number: int, data: Path | None) -> Found:
    """A cell of ``denoise``: MSE behind one channel."""
    (task, truth), name = image_of(settings, number, data), settings["defense"]
    public, state = every_test_image(settings["dataset"], data).x[-PUBLIC:], initial(task, 0)
    chain = build_chain([name], {f"{name}.kappa": KAPPA})
    fitted = start(chain, public, state[0], {}, rehearsal(0, purpose="fit"))
    tree = fitted[name]["channel"]
    noise = tree["variance"] if "variance" in tree else tree["factor"].double().T @ tree["factor"].double()
    shown = present(chain, truth.x, fitted, rehearsal(number, purpose="noise"))
    view, how = undefended_view(task, *state, PrivateBatch(shown, truth.y)), Denoise(iterations=150)
    rebuilt = reconstruct(view, task, how, stream(number, purpose="attack"), Channel(public, noise))
    return {DENOISE: {"mse": mse(truth.x, rebuilt.x)[0]}}


def make(settings: Settings, number: int, data: Path | None) -> Found:
    """A cell."""
    return (noisy if settings["attack"] == DENOISE else pruned)(settings, number, data)


def judge(points: Sequence[Point]) -> Judgement:
    """Every published ordering, image by image."""
    ssim = {point.label: point.values["ssim"] for point in points if "ssim" in point.values}
    errors = {point.label[0]: point.values["mse"] for point in points if "mse" in point.values}
    pairs = {
        f"{attack}: {more} leaks more than {less}": (ssim[more, attack], ssim[less, attack])
        for attack in ("ig", "sgi")
        for more, less in ((NONE, "top-k"), ("top-k", "dgp"))
    }
    pairs |= {f"sgi leaks more than ig under {arm}": (ssim[arm, "sgi"], ssim[arm, "ig"]) for arm in ARMS[1:]}
    white = "denoise: white leaves a larger error than natural"
    return above({**pairs, white: (errors["channel-white"], errors["channel-natural"])})


COMMON: Settings = {"dataset": "digits", "model": "cnn", "iterations": 150}
ORDERINGS = Claim(
    "orderings",
    "DGP, PriPrune, Channel",
    "docs/attacks.md",
    "none leaks more than Top-k and Top-k more than DGP; SGI rebuilds more than IG; White hides more than Natural",
    "the papers' orderings: DGP Table 1, PriPrune Fig. 3, Channel Fig. 14",
    Experiment(
        Measure("orderings", make),
        {
            "small": Sweep(
                (
                    *({**COMMON, "defense": arm, "attack": attack} for attack in ("ig", "sgi") for arm in ARMS),
                    *({**COMMON, "model": "cnn6", "defense": name, "attack": DENOISE} for name in CHANNELS),
                ),
                seeds=tuple(range(8)),
                note="A seed is an image and an initialisation: eight digits.",
            )
        },
        ("defense",),
        "attack",
        (Column("ssim", "SSIM", 4), Column("mse", "MSE", 4)),
        Plot(("ssim", "mse")),
        judge,
    ),
)
