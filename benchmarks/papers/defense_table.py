"""Every defense beside none: accuracy, bytes, time, and what plain IG and mask-aware SGI rebuild (docs/defenses.md).

Cells are those of ``benchmarks.papers.defended``, one chain under one attack or in one federation, at batch 1. A score
is over the images that an attack answered (``answered``, their share): a client that withheld its update, and an attack
that diverged, give no score and never a zero. ``rebuilt`` is the share of images at ``PSNR_FLOOR`` or above; in the row
of no defense it says how far to trust the attack. For ``ats`` the likeness to the transformed image that was trained on
stands beside it (ATS-R). ``precode`` trains and is attacked with the bottleneck in the model; its control is the plain
model's. A federation in which every client withheld its update has no accuracy (``withheld``).

``time`` is the processor time of one client's local training over plain SGD's, in turns, the median of ``REPEAT``;
fitting a data defense, once per client, is left out, and so is the attack that ``leakage-guard`` makes.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.engine.claim import Claim, Found, Plot, Settings, declared
from prunella.benchmarks.engine.images import task_of
from prunella.benchmarks.engine.views import NONE, initial_sender, model_of
from prunella.benchmarks.papers import defended
from prunella.benchmarks.papers.defended import TRAINING, behind, federated, images_of, inverting, training
from prunella.benchmarks.speed.bench import turns
from prunella.core.errors import PrunellaError
from prunella.core.randomness import rehearsal
from prunella.privacy import DEFENSES
from prunella.tasks.data import batches

REPEAT, STEPS = 3, 5
STILL = 1e-6  # the learning rate of timed steps: their time does not depend on it, and none may diverge
CHAINS = (NONE, *(name for name in DEFENSES if name != NONE), "dgp,mask-hiding", "top-k,mask-hiding")
CHAINS += ("channel-natural,dgp",)
WITH_PRIORS = (NONE, "dgp", "top-k", "priprune", "dgp,mask-hiding", "top-k,mask-hiding", "gaussian")


def seconds_ratio(settings: Settings, seed: int, data: Path | None) -> float:
    """A client's local training under the chain over plain SGD's."""
    pool, task = images_of(settings, seed, data), task_of(settings, data)

    def work(defenses: str) -> Callable[[], object]:
        model, rows = model_of(task.model, defenses.split(",")), settings["batch_size"]
        one = initial_sender(replace(task, model=model), seed, defenses, {}, pool.x, rows, STILL)
        drawn = list(batches(pool, rows, min(settings["local_steps"], STEPS), rehearsal(seed, purpose="leakage-time")))
        return lambda: one.trained(drawn, rehearsal(0, purpose="leakage-time"))

    chain = settings["defenses"]
    return turns({NONE: work(NONE), chain: work(chain)}, NONE, REPEAT)[chain]["ratio"]


def spread(rows: dict[str, list[float]]) -> dict[str, float]:
    """Mean, standard deviation and largest of the scores of images that were answered."""
    answered = [number for number, there in enumerate(rows["answered"]) if there]
    found = {"answered": statistics.fmean(rows["answered"])}
    for name in ("psnr", "ssim", "psnr_shown", "ssim_shown") if answered else ():
        values = [rows[name][number] for number in answered]
        found |= {name: statistics.fmean(values), f"{name}_largest": max(values)}
        found[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return {**found, "rebuilt": statistics.fmean(rows["rebuilt"])}


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell."""
    if settings["attack"] != TRAINING:
        return {settings["attack"]: spread(defended.rebuilt_rows(settings, seed, data))}
    try:
        found = {**federated(settings, seed, data), "withheld": 0.0}
    except PrunellaError:  # every client withheld its update: no accuracy, and never a zero
        found = {"withheld": 1.0}
    return {TRAINING: {**found, "time": seconds_ratio(settings, seed, data)}}


def attacked(
    dataset: str, chains: Sequence[str], attacks: Sequence[str], images: int, iterations: int
) -> list[Settings]:
    """Every chain under every attack, on ``cnn``."""
    return [behind(inverting("cnn", a, images, 1, iterations), dataset, c) for c in chains for a in attacks]


def trained(dataset: str, chains: Sequence[str], steps: int, learning_rate: float) -> list[Settings]:
    """Every chain in a federation."""
    run = training("cnn", rounds=6, local_steps=steps, learning_rate=learning_rate)
    return [behind(run, dataset, chain) for chain in chains]


def table(cells: Sequence[Settings], seed: int = 0, name: str = "defenses", note: str = "") -> Claim:
    """A table of these cells, its images and draws those of the page."""
    own = tuple({"learning_rate": "", **cell, "draws": "leakage"} for cell in cells)
    spreads = (("", ""), ("_deviation", ", deviation over images"), ("_largest", ", largest"))
    shown = "accuracy 3 accuracy; megabytes_up 2 MB up; megabytes_down 2 MB down; epsilon 1 ε; withheld 0 withheld; "
    shown += "time 2 time; " + "".join(f"psnr{which} 1 PSNR{words}; " for which, words in spreads)
    shown += "".join(f"ssim{which} 2 SSIM{words}; " for which, words in spreads)
    shown += "psnr_shown 1 PSNR to what was trained on; ssim_shown 2 SSIM to what was trained on; "
    shown += "rebuilt 2 images from 20 dB"
    return declared(
        f"""{name} | Prunella | docs/defenses.md | every defense beside none: accuracy, bytes, time, and what attacks
        rebuild
        small: {note}""",
        TABLE,
        "dataset defenses learning_rate: attack",
        shown,
        Plot(("psnr",), split=0),
        small=own,
        seeds=(seed,),
    )


# Of a control, some images have to be answered, too: a row that has none has no PSNR.
TABLE = replace(
    defended.DEFENDED, name="defense-table", make=make, names=(), least={"psnr": PSNR_FLOOR, "answered": 1e-9}
)
BOTH = ("ig", "sgi")
DEFENSE_TABLE = table(
    [
        *trained("mnist", CHAINS, 10, 0.1),
        *trained("mnist", ("precode",), 10, 0.02),
        *attacked("mnist", CHAINS, BOTH, 4, 300),
        *trained("cifar10", CHAINS, 20, 0.02),
        *attacked("cifar10", CHAINS, BOTH, 4, 300),
        *attacked("cifar10", WITH_PRIORS, ("rog", "ggl"), 4, 100),
    ],
    note="The tables of docs/defenses.md. All of it takes hours on two cores, most of them Soteria's and Precode's.",
)
