"""Published orderings of defenses, measured again on one set of images: do they hold, and do they hold when the attack
adapts?

DGP (Table 1): under IG, none leaks more than Top-k, Top-k more than DGP, in SSIM. PRI: SGI is at least as good as GI
(here ``ig``) on pruned updates. CHN (Fig. 14): the White channel leaves a larger error than the Natural one at the same
kappa, in MSE; here after denoising under the known covariance, which is the attack adapted to both. Batch 1, an
untrained model, a client's first round; each line is a mean over images and its standard deviation. An ordering of two
arms is judged by the mean of the images' own differences and twice its standard error: "holds", "fails", "undecided".

    python -m prunella.benchmarks.papers.orderings [--images 8] [--iterations 150] [--json]
"""

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from prunella.attacks import ATTACKS
from prunella.attacks.denoise import Channel, Denoise, reconstruct
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import mse, ssim
from prunella.benchmarks.engine.machine import machine
from prunella.core.randomness import rehearsal, stream
from prunella.core.ranking import keep_largest
from prunella.core.trees import Mask, apply_mask, full_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.chain import build_chain, present, start
from prunella.privacy.dgp import dual_mask
from prunella.tasks.data import load_test
from prunella.tasks.task import Task, initial

ARMS = ("none", "top-k", "dgp")
CHANNELS = ("channel-natural", "channel-white")
KAPPA = 20.0
PUBLIC = 200  # images the server holds
Scores = dict[str, list[float]]


def verdict(above: Sequence[float], below: Sequence[float]) -> str:
    """Whether the first is larger, image by image.

    >>> verdict([0.9, 0.8, 0.9], [0.1, 0.2, 0.1]), verdict([0.1, 0.2], [0.2, 0.1])
    ('holds', 'undecided')
    """
    gaps = [a - b for a, b in zip(above, below, strict=True)]
    mean, error = statistics.mean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    return "undecided" if abs(mean) <= 2 * error else "holds" if mean > 0 else "fails"


def masked(view: ServerView, arm: str) -> ServerView:
    """The view through a defense's first round: Top-k keeps a fifth, DGP removes the largest 5 % and smallest 75 %."""
    masks: dict[str, Mask] = {
        "none": full_mask(view.update),
        "top-k": {n: keep_largest(u.abs(), math.ceil(u.numel() / 5)) for n, u in view.update.items()},
        "dgp": {n: dual_mask(u, torch.ones_like(u, dtype=torch.bool), 0.05, 0.75) for n, u in view.update.items()},
    }
    return dataclasses.replace(view, update=apply_mask(view.update, masks[arm]), shared=masks[arm])


def gradients(images: Sequence[PrivateBatch], iterations: int) -> Scores:
    """SSIM of ``ig`` and ``sgi`` under every arm, labels known, one entry an image."""
    task = Task("cnn", (1, 8, 8), 10)
    found: Scores = {f"{attack} {arm}": [] for attack in ("ig", "sgi") for arm in ARMS}
    for number, truth in enumerate(images):
        view = dataclasses.replace(undefended_view(task, *initial(task, number), truth), labels=truth.y)
        for name in ("ig", "sgi"):
            settings = dataclasses.replace(ATTACKS[name].settings(), iterations=iterations)
            for arm in ARMS:
                seen = masked(view, arm)
                rebuilt = ATTACKS[name].reconstruct(seen, task, settings, stream(number, purpose="attack"))
                found[f"{name} {arm}"] += ssim(truth.x, rebuilt.x)
    return found


def channels(images: Sequence[PrivateBatch], public: torch.Tensor) -> Scores:
    """MSE after denoising, at the same kappa, one entry an image."""
    task, found = Task("cnn6", (1, 8, 8), 10), {name: [] for name in CHANNELS}  # type: Task, Scores
    state = initial(task, 0)
    for name in CHANNELS:
        chain = build_chain([name], {f"{name}.kappa": KAPPA})
        fitted = start(chain, public, state[0], {}, rehearsal(0, purpose="fit"))
        tree = fitted[name]["channel"]
        noise = tree["variance"] if "variance" in tree else tree["factor"].double().T @ tree["factor"].double()
        for number, truth in enumerate(images):
            shown = present(chain, truth.x, fitted, rehearsal(number, purpose="noise"))
            view = undefended_view(task, *state, PrivateBatch(shown, truth.y))
            known = Channel(public, noise)
            rebuilt = reconstruct(view, task, Denoise(iterations=150), stream(number, purpose="attack"), known)
            found[name] += mse(truth.x, rebuilt.x)
    return found


def judge(leaks: Scores, errors: Scores) -> dict[str, str]:
    """The orderings in words, and what became of each."""
    pairs = {f"{a}: {x} leaks more than {y}": (f"{a} {x}", f"{a} {y}")
             for a in ("ig", "sgi") for x, y in (("none", "top-k"), ("top-k", "dgp"))}  # fmt: skip
    pairs |= {f"sgi leaks more than ig under {arm}": (f"sgi {arm}", f"ig {arm}") for arm in ("top-k", "dgp")}
    said = {words: verdict(leaks[more], leaks[less]) for words, (more, less) in pairs.items()}
    white = verdict(errors["channel-white"], errors["channel-natural"])
    return {**said, "denoise: white leaves a larger error than natural": white}


def show(result: Mapping[str, Any]) -> None:
    table = Table("arm", "score", "mean", "deviation", title=f"{result['images']} images")
    for kind, scores in (("SSIM", result["ssim"]), ("MSE", result["mse"])):
        for arm, values in scores.items():
            table.add_row(arm, kind, f"{statistics.mean(values):.4f}", f"{statistics.stdev(values):.4f}")
    Console().print(table)
    for words, outcome in result["orderings"].items():
        print(f"{outcome:10} {words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.images < 2 or options.iterations < 1:
        parser.error("--images must be at least 2 and --iterations at least 1")
    torch.set_num_threads(1)
    digits = load_test("digits", None)
    assert digits is not None
    images = [PrivateBatch(digits.x[i : i + 1], digits.y[i : i + 1]) for i in range(options.images)]
    leaks = gradients(images, options.iterations)
    errors = channels(images, digits.x[-PUBLIC:])
    orderings = judge(leaks, errors)
    result = {"images": options.images, "ssim": leaks, "mse": errors, "orderings": orderings, "machine": machine()}
    print(json.dumps(result)) if options.json else show(result)


if __name__ == "__main__":
    main()
