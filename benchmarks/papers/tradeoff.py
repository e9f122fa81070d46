"""Accuracy and leakage of one defended federation: the cells of the claims that weigh one against the other.

A cell is a federation (in process, real client and server code) under a scheme and a defense chain, and then the attack
on what its server would see next of client 0: that client's own state of the defenses (masks learned, weights
withheld, errors kept), the global weights of the last round, one local step at batch 1 on each of ``images`` of its own
training images. Weights, state and masks are those of the end of training; the state is the same for every image.

A cell's settings: ``scheme`` and ``rate`` of the base pruning, ``defenses`` (a chain) and ``options`` (its settings by
section, ``{"largest.rate": 0.3}``), ``arm`` (what the series is called), the run's settings, ``images`` and
``iterations``; ``examples``, if any, is how many each client has. Scores are means over all images, none left out; an
attack that diverges ends the cell with an error, and an update that is zero everywhere is answered with uniform noise.
SGI reads off the update itself which coordinates arrived; GI takes what it misses for zero. Both know the label.

accuracy   of the global model after the last round, on at most a thousand test images
mib_up     coded updates of all clients and rounds, in MiB (2^20)
withheld   share of the mask that client 0 withheld in its last round, for the defenses that keep what they withhold
nmi, psnr  of SGI's reconstructions (``nmi_gi``, ``psnr_gi``: of GI's); ``strongest``: the better of the two by PSNR

The positive control is the dense federation without a defense at the same settings, seed and images: SGI must rebuild
its images to ``PSNR_FLOOR`` in the mean.
"""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.leakage import Leakage, score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.images import TESTED, client_images, drawn, first, part, place
from prunella.benchmarks.engine.images import means as mean_scores
from prunella.benchmarks.engine.inprocess import accuracies, as_keywords, failures, run_in_process
from prunella.benchmarks.engine.views import NONE, Sender, attack_settings, draws, received_of, seen, sender
from prunella.benchmarks.papers.scheme_inversion import ARMS, DENSE, RUN
from prunella.client.state import ClientStore
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import count
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.privacy.chain import ChainState, start
from prunella.server.checkpoint import Checkpoint, load
from prunella.tasks.data import Examples, Partition, make_task
from prunella.tasks.task import Task

MIB = 2**20
ALPHA = 1.0
NAMES = ("kappa", "strength")  # settings that only name a point


class AfterTraining(NamedTuple):
    """What a federation left: the server's checkpoint, client 0's defense state, what was measured."""

    saved: Checkpoint
    state: ChainState
    accuracy: float
    mib_up: float


def federation(settings: Settings, seed: int, data: Path | None) -> AfterTraining:
    """One whole run. Raises ``RuntimeError`` when a client failed: its accuracy would be that of another federation."""
    fixed: Settings = {
        "partition": "dirichlet",
        "alpha": ALPHA,
        "audit_every": 0,
        "dataset": place(settings["dataset"], data),
    }
    own: Settings = {
        "strategy": settings["scheme"],
        "rate": settings["rate"],
        "defenses": settings["defenses"],
        "seed": seed,
    }
    own |= {key: settings[key] for key in RUN} | as_keywords(settings["options"])
    some: Any = {"evaluate_every": settings["rounds"], "examples": settings.get("examples", 0), "tested": TESTED}
    with tempfile.TemporaryDirectory() as folder:
        done = run_in_process(Path(folder), settings["clients"], **some, **fixed, **own)
        saved = load(done.folder / "checkpoint")
        state = ClientStore(Path(folder) / "nodes" / "0", "run").load(settings["rounds"] + 1).state
        accuracy = list(accuracies(done).values())
    failed = failures(done)
    if saved is None or failed or not accuracy:
        raise RuntimeError(
            f"the federation of {settings['scheme']} and {settings['defenses']} failed {failed:.0f} times"
        )
    return AfterTraining(saved, state, accuracy[-1], done.counters["wire_bytes_total|up"] / MIB)


def withheld(state: ChainState, mask: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The share of the mask that is held back, or nothing where no defense keeps what it withholds."""
    held = [trees["held"] for trees in state.values() if "held" in trees]
    return {"withheld": sum(count(tree) for tree in held) / count(dict(mask))} if held else {}


def next_sender(settings: Settings, task: Task, trained: AfterTraining, own: Examples) -> Sender:
    """Client 0 at the beginning of the round after the last."""
    received, fit = received_of(trained.saved), rehearsal(0, purpose="fit")
    one = sender(task, received, settings["defenses"], settings["options"], own.x, 1)
    return dataclasses.replace(one, state=start(one.procedure.chain, own.x, received.params, trained.state, fit))


def attacked(settings: Settings, one: Sender, own: Examples, seed: int) -> dict[str, list[Leakage]]:
    """Scores of every image, by attack."""
    found: dict[str, list[Leakage]] = {arm: [] for arm in ARMS}
    for number, index in enumerate(drawn(own, seed)[: settings["images"]].tolist()):
        private = part(own, index)
        got = seen(one, private, draws(seed, number))
        for arm, name in ARMS.items():
            how = attack_settings(name, one.task.model, settings["iterations"])
            rebuilt = guess(got.view, one.task, how, stream(seed, round=number, purpose="claim-attack"))
            found[arm].append(score(rebuilt, PrivateBatch(private.x, private.y)))
    return found


def guess(view: ServerView, task: Task, how: Any, generator: torch.Generator) -> Reconstruction:
    """The attack's answer, or uniform noise where the update is zero everywhere: nothing arrived to be attacked."""
    if any(bool(tensor.any()) for tensor in view.update.values()):
        return reconstruct(view, task, how, generator)
    return Reconstruction(torch.rand((1, *task.shape), generator=generator), view.labels, 0.0, 0)


def means(rows: Mapping[str, list[Leakage]]) -> dict[str, float]:
    """Of SGI, of GI, and of whichever was better on an image."""
    best = [max(pair, key=lambda row: row.psnr.mean) for pair in zip(*rows.values(), strict=True)]
    found: dict[str, float] = {}
    for suffix, which in (("", rows["sgi"]), ("_gi", rows["gi"]), ("_strongest", best)):
        found |= {f"{name}{suffix}": value for name, value in mean_scores(which, "nmi", "psnr", "mse").items()}
    return found | mean_scores(rows["sgi"], "nmi_random")


def examples_of(settings: Settings, client: int, seed: int, data: Path | None) -> Examples:
    """What a client of the federation trained on."""
    partition = Partition("dirichlet", settings["clients"], ALPHA, seed)
    return first(client_images(settings["dataset"], data, partition, client), settings.get("examples", 0))


def weighed(settings: Settings, seed: int, data: Path | None, trained: AfterTraining) -> dict[str, float]:
    """What stands in a cell of a federation."""
    own = examples_of(settings, 0, seed, data)
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    one = next_sender(settings, task, trained, own)
    found: dict[str, float] = {"accuracy": trained.accuracy, "mib_up": trained.mib_up}
    return found | withheld(trained.state, trained.saved.mask) | means(attacked(settings, one, own, seed))


def tradeoff(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: ``arm``."""
    return {settings["arm"]: weighed(settings, seed, data, federation(settings, seed, data))}


CONTROL: Settings = {"scheme": DENSE, "rate": 0.0, "defenses": NONE, "options": {}, "arm": "control"}
TRADEOFF = Measure("tradeoff", tradeoff, control=CONTROL, names=NAMES)
