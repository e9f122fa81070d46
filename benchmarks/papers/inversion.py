"""How much of an image an attack rebuilds under a pruning scheme: the cells of the PriPrune claims on leakage.

A cell is a federation (in process, real client and server code) under one scheme and rate, and then the attacks on what
its server would see next: for each of ``images`` test images the undefended update of one local step at batch 1, inside
the scheme's mask, from the global weights after ``rounds`` rounds. Scores are means over all images; none is left out,
and an attack that diverges ends the cell with an error, since a failure is not a score.

GI and SGI share everything but the support: GI takes what it misses for zero, SGI compares only where values arrived,
which it reads off the update itself. Both know the label, which most gradients tell. On sigmoid networks they use the
Euclidean distance and L-BFGS, elsewhere what the attack chooses itself. NMI is of 16 grey levels.

The positive control of a cell is the dense one, FedAvg at the same rounds, seed and images: GI and SGI must both
rebuild it to ``PSNR_FLOOR`` in the mean.
"""

import dataclasses
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from prunella.attacks import ATTACKS
from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.inprocess import run_in_process
from prunella.benchmarks.engine.views import seen, sender
from prunella.benchmarks.papers.leakage import data_kept
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import density
from prunella.core.types import PrivateBatch
from prunella.server.checkpoint import Checkpoint, load
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples, load_test, make_task

ARMS = {"gi": "ig", "sgi": "sgi"}
DENSE = "fedavg"


def place(dataset: str, data: Path | None) -> str:
    """The dataset's name with its local copy, where there is one."""
    return f"{dataset}:{data / dataset}" if data is not None and (data / dataset).is_dir() else dataset


def global_model(settings: Settings, seed: int, data: Path | None) -> Checkpoint:
    """What a federation under the scheme holds after its last round."""
    own = {"strategy": settings["scheme"], "rate": settings["rate"], "defenses": "none", "audit_every": 0}
    asked = {key: settings[key] for key in ("model", "rounds", "local_steps", "batch_size", "learning_rate")}
    run = {"dataset": place(settings["dataset"], data), "partition": "dirichlet", "seed": seed, **own, **asked}
    with tempfile.TemporaryDirectory() as folder, data_kept():
        done = run_in_process(Path(folder), settings["clients"], settings["rounds"], **run)  # accuracy: asked once
        saved = load(done.folder / "checkpoint")
    if saved is None:
        raise RuntimeError(f"the federation of {settings['scheme']} left no checkpoint")
    return saved


def attacked_images(settings: Settings, seed: int, data: Path | None) -> Examples:
    """The seed's test images."""
    test = load_test(place(settings["dataset"], data), None)
    if test is None:
        raise ValueError(f"{settings['dataset']} has no test examples")
    chosen = torch.randperm(len(test), generator=stream(seed, purpose="claim-images"))[: settings["images"]]
    return Examples(test.x[chosen], test.y[chosen])


def attack_settings(arm: str, model: str, iterations: int) -> Any:
    strong = {"objective": "euclidean", "optimizer": "lbfgs"} if "zhu" in model else {}
    return dataclasses.replace(ATTACKS[ARMS[arm]].settings(), iterations=iterations, **strong)  # type: ignore[type-var]


def leakage(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: what GI and SGI rebuild under one scheme and rate."""
    torch.set_num_threads(1)
    saved = global_model(settings, seed, data)
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    params = {name: saved.tree[name] for name in saved.mask}
    buffers = {name: t for name, t in saved.tree.items() if name not in params}
    received, private = Received(params, saved.mask, buffers), attacked_images(settings, seed, data)
    client = sender(task, received, "none", {}, private.x, 1)
    found: Found = {}
    for arm in ARMS:
        rows = []
        for number in range(len(private)):
            one = Examples(private.x[number : number + 1], private.y[number : number + 1])
            how = attack_settings(arm, task.model, settings["iterations"])
            view = seen(client, one, lambda purpose: rehearsal(seed, purpose=f"claim-{purpose}")).view
            rebuilt = reconstruct(view, task, how, stream(seed, round=number, purpose="claim-attack"))
            rows.append(score(rebuilt, PrivateBatch(one.x, one.y)))
        found[arm] = {
            "psnr": statistics.fmean(row.psnr.mean for row in rows),
            "psnr_worst": max(row.psnr.mean for row in rows),
            "psnr_other": statistics.fmean(row.psnr.other for row in rows),
            "nmi": statistics.fmean(row.nmi.mean for row in rows),
            "nmi_random": statistics.fmean(row.nmi.random for row in rows),
            "kept": density(saved.mask),
        }
    return found


def control(settings: Settings) -> Settings:
    return {**settings, "scheme": DENSE, "rate": 0.0}


def works(found: Found) -> bool:
    """Both attacks rebuild the undefended images."""
    return all(found[arm]["psnr"] >= PSNR_FLOOR for arm in ARMS)


LEAKAGE = Measure("leakage", leakage, control=control, works=works)
