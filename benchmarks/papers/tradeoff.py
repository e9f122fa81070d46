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

``WEIGHED`` is for long federations (P7 and P8): the attacked step is one of the federation's own learning rate, every
image's scores are kept, and the score that is judged is one for all defenses:

nmi_better    the highest NMI of SGI, GI and ``expectation``, which allows for a client's own weights, image by image:
              most of what any tells, defended or not (``psnr_better``)
accuracy_early  of the global model after ``evaluate_every`` rounds
sharing       the lambda_sha that PriPrune used, which it scales to the size of the model

The positive control is the dense federation without a defense at the same settings, seed and images: SGI must rebuild
its images to ``PSNR_FLOOR`` in the mean.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from prunella.attacks.score.leakage import Leakage, score
from prunella.benchmarks.engine.claim import Found, Measure, Settings, each
from prunella.benchmarks.engine.images import client_images, drawn, first, part, task_of
from prunella.benchmarks.engine.images import means as mean_scores
from prunella.benchmarks.engine.inprocess import accuracies, as_keywords, failures, ran
from prunella.benchmarks.engine.views import NONE, RATE, Draw, Sender, draws, received_of, seen, sender
from prunella.benchmarks.engine.views import answers as all_answers
from prunella.benchmarks.papers.scheme_inversion import ARMS, DENSE
from prunella.client.state import ClientStore
from prunella.core.errors import AttackError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import count, size
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.privacy.chain import ChainState, start
from prunella.privacy.priprune import PriPrune
from prunella.server.checkpoint import Checkpoint, load
from prunella.tasks.data import Examples, Partition
from prunella.tasks.task import Task

MIB = 2**20
EVERY = {**ARMS, "expectation": "expectation"}
ALPHA = 1.0


class AfterTraining(NamedTuple):
    """What a federation left: the server's checkpoint, client 0's defense state, what was measured. ``early`` is the
    first accuracy that was evaluated."""

    saved: Checkpoint
    state: ChainState
    accuracy: float
    mib_up: float
    early: float


def federation(settings: Settings, seed: int, data: Path | None) -> AfterTraining:
    """One whole run. Raises ``RuntimeError`` when a client failed: its accuracy would be that of another federation."""
    own: dict[str, Any] = {"strategy": settings["scheme"], "alpha": ALPHA, **as_keywords(settings["options"])}
    own |= {"evaluate_every": settings.get("evaluate_every", settings["rounds"])}
    own |= {"examples": settings.get("examples", 0)}
    own |= {key: settings[key] for key in ("rate", "defenses")}
    with ran(settings, seed, data, **own) as done:
        saved, failed, accuracy = load(done.folder / "checkpoint"), failures(done), list(accuracies(done).values())
        if saved is None or failed or not accuracy:
            named = f"{settings['scheme']} and {settings['defenses']}"
            raise RuntimeError(f"the federation of {named} failed {failed:.0f} times")
        state = ClientStore(done.folder.parent / "nodes" / "0", "run").load(settings["rounds"] + 1).state
    return AfterTraining(saved, state, accuracy[-1], done.counters["wire_bytes_total|up"] / MIB, accuracy[0])


def withheld(state: ChainState, mask: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The share of the mask that is held back, or nothing where no defense keeps what it withholds."""
    held = [trees["held"] for trees in state.values() if "held" in trees]
    return {"withheld": sum(count(tree) for tree in held) / count(dict(mask))} if held else {}


def next_sender(settings: Settings, task: Task, trained: AfterTraining, own: Examples) -> Sender:
    """Client 0 at the beginning of the round after the last; it steps at the cell's ``step``, if there is one."""
    received, fit = received_of(trained.saved), rehearsal(0, purpose="fit")
    rate = settings.get("step", RATE)
    one = sender(task, received, settings["defenses"], settings["options"], own.x, 1, rate)
    return dataclasses.replace(one, state=start(one.procedure.chain, own.x, received.params, trained.state, fit))


def rebuilt_each(
    name: str, views: Sequence[ServerView], task: Task, iterations: int, seed: int
) -> list[Reconstruction]:
    """What an attack makes of every view; noise, of one in which nothing arrived."""
    generators = [stream(seed, round=at, purpose="claim-attack") for at in range(len(views))]
    arrived = [at for at, view in enumerate(views) if any(bool(tensor.any()) for tensor in view.update.values())]
    some, drawing = [views[at] for at in arrived], [generators[at] for at in arrived]
    made = dict(zip(arrived, all_answers(name, some, task, iterations, drawing), strict=True))
    found = list[Reconstruction]()
    for at, (view, generator) in enumerate(zip(views, generators, strict=True)):
        noise = Reconstruction(torch.rand((1, *task.shape), generator=generator), view.labels, 0.0, 0)
        answer = made.get(at, noise)
        if isinstance(answer, AttackError):
            raise answer
        found.append(answer)
    return found


def answers(
    settings: Settings,
    seed: int,
    data: Path | None,
    trained: AfterTraining,
    arms: Mapping[str, str] = ARMS,
    met: Callable[[str, Sender, Draw], Sender] = lambda arm, one, draw: one,
) -> list[tuple[PrivateBatch, dict[str, Reconstruction]]]:
    """Every attacked image of client 0 and what each arm made of it; ``met`` is the client as an arm meets it."""
    own, task = examples_of(settings, 0, seed, data), task_of(settings, data)
    one = next_sender(settings, task, trained, own)
    images = [part(own, index) for index in drawn(own, seed)[: settings["images"]].tolist()]
    found = dict[str, list[Reconstruction]]()
    for arm, name in arms.items():
        clients = [met(arm, one, draws(seed, at)) for at in range(len(images))]
        views = [seen(client, images[at], draws(seed, at)).view for at, client in enumerate(clients)]
        found[arm] = rebuilt_each(name, views, task, settings["iterations"], seed)
    return [(PrivateBatch(x.x, x.y), {arm: found[arm][at] for arm in arms}) for at, x in enumerate(images)]


def attacked(
    settings: Settings,
    seed: int,
    data: Path | None,
    trained: AfterTraining,
    arms: Mapping[str, str] = ARMS,
    met: Callable[[str, Sender, Draw], Sender] = lambda arm, one, draw: one,
) -> dict[str, list[Leakage]]:
    """Scores of every image of client 0, by arm."""
    found: dict[str, list[Leakage]] = {arm: [] for arm in arms}
    for truth, rebuilt in answers(settings, seed, data, trained, arms, met):
        for arm, one in rebuilt.items():
            found[arm].append(score(one, truth))
    return found


def means(rows: Mapping[str, list[Leakage]]) -> dict[str, float]:
    """Of SGI, of GI, and of whichever was better on an image."""
    best = [max(pair, key=lambda row: row.psnr.mean) for pair in zip(*rows.values(), strict=True)]
    found: dict[str, float] = {}
    for suffix, which in (("", rows["sgi"]), ("_gi", rows["gi"]), ("_strongest", best)):
        for key, value in mean_scores(which, "nmi", "psnr", "mse").items():
            name, *image = key.split(".")  # nmi.0 of GI is nmi_gi.0
            found[".".join([f"{name}{suffix}", *image])] = value
    return found | mean_scores(rows["sgi"], "nmi_random")


def examples_of(settings: Settings, client: int, seed: int, data: Path | None) -> Examples:
    """What a client of the federation trained on."""
    partition = Partition("dirichlet", settings["clients"], ALPHA, seed)
    return first(client_images(settings["dataset"], data, partition, client), settings.get("examples", 0))


def weighed(settings: Settings, seed: int, data: Path | None, trained: AfterTraining) -> dict[str, float]:
    """What stands in a cell of a federation."""
    found: dict[str, float] = {"accuracy": trained.accuracy, "mib_up": trained.mib_up}
    found |= withheld(trained.state, trained.saved.mask)
    return found | means(attacked(settings, seed, data, trained))


def kept(rows: Mapping[str, list[Leakage]]) -> dict[str, float]:
    """Of every image and in the mean: SGI's scores, and the highest NMI and PSNR of all attacks."""
    return each(
        [
            {
                "nmi": sgi.nmi.mean,
                "psnr": sgi.psnr.mean,
                "nmi_better": max(row.nmi.mean for row in (sgi, *others)),
                "psnr_better": max(row.psnr.mean for row in (sgi, *others)),
                "nmi_random": sgi.nmi.random,
            }
            for sgi, *others in zip(rows["sgi"], *(rows[arm] for arm in rows if arm != "sgi"), strict=True)
        ]
    )


def sharing(settings: Settings, trained: AfterTraining) -> dict[str, float]:
    """The lambda_sha that PriPrune used, or nothing for other defenses."""
    if settings["defenses"] != "priprune":
        return {}
    options = {key.partition(".")[2].replace("-", "_"): value for key, value in settings["options"].items()}
    return {"sharing": PriPrune(**options).sharing_weight(size(received_of(trained.saved).params))}


def longer(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell of ``WEIGHED``, as one series: ``arm``."""
    own = {**settings, "step": settings["learning_rate"]}
    trained = federation(own, seed, data)
    found: dict[str, float] = {"accuracy": trained.accuracy, "accuracy_early": trained.early, "mib_up": trained.mib_up}
    found |= withheld(trained.state, trained.saved.mask) | sharing(own, trained)
    return {settings["arm"]: found | kept(attacked(own, seed, data, trained, EVERY))}


def tradeoff(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: ``arm``."""
    return {settings["arm"]: weighed(settings, seed, data, federation(settings, seed, data))}


CONTROL: Settings = {"scheme": DENSE, "rate": 0.0, "defenses": NONE, "options": {}, "arm": "control"}
NAMES = ("kappa", "strength")  # settings that only name a point
TRADEOFF = Measure("tradeoff", tradeoff, control=CONTROL, names=NAMES)
WEIGHED = dataclasses.replace(TRADEOFF, name="weighed", make=longer, version=2)
