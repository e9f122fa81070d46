"""What an attack rebuilds behind a defense chain, and what the chain costs in accuracy: cells of DGP's and our claims.

A cell is one chain with its settings (``raw``) under one attack, or, with ``attack`` "training", one federation; its
series is called as the attack is, or as it is ``named``.

Attacks look at one local step on ``batch`` test images, ``images`` of them in all, from the weights every run starts
from, where these attacks are strongest, in a client's first round, with known labels. Data defenses are fitted on
``POOL`` images, the attacked ones among them.
Adam on the cosine; on sigmoid networks L-BFGS on the Euclidean distance (for ``gradinversion`` its own).

Scores are means over all images, none is left out: psnr (dB), ssim, ``rebuilt``, the share at ``PSNR_FLOOR`` or above,
and ``ssim_shown``, against the image as the model was shown it (ATS, channels). Where an attack gives fewer images than
were trained on or none at all, or the client withheld its update, a flat grey image stands in: what anybody has
without an attack. ``answered`` is the share of images that the attack itself gave.

The positive control is the same attack, model and images under no defense: ``PSNR_FLOOR`` in the mean.
"""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.claim import Found, Measure, Settings, each
from prunella.benchmarks.engine.images import chosen_images, part, place, task_of
from prunella.benchmarks.engine.inprocess import FEDAVG, accuracies, as_keywords, epsilons, failures, ran
from prunella.benchmarks.engine.priors import LEARNT, prior
from prunella.benchmarks.engine.shadows import POOL
from prunella.benchmarks.engine.views import NONE, SeenView, Sender, answers, draws, initial_sender, model_of, seen
from prunella.core.errors import AttackError, DefenseError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.tasks.data import Examples

TRAINING = "training"
GREY = 0.5
NAMES = ("swept", "value", "architecture")  # settings that only name a point
FEDERATION: Settings = {"clients": 4, "rounds": 20, "local_steps": 10, "batch_size": 32, "learning_rate": 0.05}


def inverting(model: str, attack: str, images: int, batch: int = 1, iterations: int = 0) -> Settings:
    """The settings of an attack's cell; 0 iterations are the attack's own number."""
    return {"model": model, "attack": attack, "images": images, "batch": batch, "iterations": iterations}


def training(model: str, **changed: Any) -> Settings:
    """The settings of a federation's cell."""
    return {"model": model, "attack": TRAINING, **FEDERATION, **changed}


def behind(cell: Settings, dataset: str, defenses: str, raw: Mapping[str, Any] | None = None) -> Settings:
    """A cell's settings behind a chain."""
    return {**cell, "dataset": dataset, "defenses": defenses, "raw": dict(raw or {})}


def drawn_as(settings: Settings) -> str:
    """What the draws of a cell are named after; a table may have its own."""
    return str(settings.get("draws", "claim"))


def images_of(settings: Settings, seed: int, data: Path | None) -> Examples:
    """The seed's test images: first those that are attacked, then those a defense is fitted and trained on."""
    many = max(POOL, settings.get("images", 0))
    return chosen_images(settings["dataset"], data, seed, many, f"{drawn_as(settings)}-images")


def client_of(settings: Settings, images: Examples, seed: int, data: Path | None) -> Sender:
    """The client of a cell, before the attacked images."""
    names = settings["defenses"].split(",")
    task = task_of({**settings, "model": model_of(settings["model"], names)}, data)
    return initial_sender(task, seed, settings["defenses"], settings["raw"], images.x, settings["batch"])


def completed(found: Reconstruction | None, truth: PrivateBatch) -> tuple[Reconstruction, int]:
    """As many images as were trained on, grey ones in place of those that are missing, and how many were given."""
    given = truth.x[:0] if found is None else found.x[: len(truth.x)]
    grey = torch.full_like(truth.x[len(given) :], GREY)
    return Reconstruction(torch.cat([given, grey]), truth.y, 0.0 if found is None else found.objective, 1), len(given)


def rebuilt_rows(settings: Settings, seed: int, data: Path | None) -> dict[str, list[float]]:
    """The scores of every image of a cell."""
    images, named, name = images_of(settings, seed, data), drawn_as(settings), settings["attack"]
    client, batch = client_of(settings, images, seed, data), settings["batch"]
    asked: dict[str, Any] = {"prior": prior(name, place(settings["dataset"], data)) if name in LEARNT else None}
    asked |= {"tolerance": settings.get("tolerance")}
    rows, sent = dict[str, list[float]](), dict[int, SeenView]()
    for start in range(0, settings["images"], batch):
        with nullcontext() if settings["defenses"] == NONE else suppress(DefenseError):
            sent[start] = seen(client, part(images, start, batch), draws(seed, start, named))
    views, draw = [one.view for one in sent.values()], [stream(seed, round=s, purpose=f"{named}-attack") for s in sent]
    found = dict(zip(sent, answers(name, views, client.task, settings["iterations"], draw, **asked), strict=True))
    for start in range(0, settings["images"], batch):
        private, answer = part(images, start, batch), found.get(start)
        if isinstance(answer, AttackError) and settings["defenses"] == NONE:
            raise answer
        truth = PrivateBatch(private.x, private.y)
        shown = sent[start].shown if start in sent else truth
        whole, given = completed(answer if isinstance(answer, Reconstruction) else None, truth)
        for number in range(len(truth.x)):
            row = {**scores(whole, truth, shown, number), "answered": float(number < given)}
            for key, value in row.items():
                rows.setdefault(key, []).append(value)
    return rows


def rebuilt(settings: Settings, seed: int, data: Path | None) -> dict[str, float]:
    """What an attack makes of the images of a cell, in the mean and of each."""
    rows = rebuilt_rows(settings, seed, data)
    columns = ("psnr", "ssim", "ssim_shown", "rebuilt", "answered")
    kept = each([dict(zip(columns, row, strict=True)) for row in zip(*(rows[name] for name in columns), strict=True)])
    return {**kept, "psnr_worst": max(rows["psnr"])}


def scores(answer: Reconstruction, truth: PrivateBatch, shown: PrivateBatch, number: int) -> dict[str, float]:
    """Of the one image ``number`` of a batch, against the image of the answer that is paired with it."""
    of = dict(score(answer, truth).assignment)[number]
    mine = Reconstruction(answer.x[of : of + 1], None, answer.objective, answer.iterations)
    found: dict[str, float] = {}
    for suffix, images in (("", truth.x), ("_shown", shown.x)):
        row = score(mine, PrivateBatch(images[number : number + 1], truth.y[number : number + 1]))
        found |= {f"psnr{suffix}": row.psnr.mean, f"ssim{suffix}": row.ssim.mean}
    return {**found, "rebuilt": float(found["psnr"] >= PSNR_FLOOR)}


def federated(settings: Settings, seed: int, data: Path | None) -> dict[str, float]:
    """The federation of a cell: accuracy of the global model on the first test images, megabytes both ways, and the
    largest ε of a client where every client has one. Raises ``PrunellaError`` where nobody sent anything."""
    own = {**FEDAVG, **as_keywords(settings["raw"]), "defenses": settings["defenses"]}
    own |= {"model": model_of(settings["model"], own["defenses"].split(",")), "evaluate_every": settings["rounds"]}
    with ran(settings, seed, data, **own) as done:
        spent = epsilons(done)
        megabytes = {f"megabytes_{way}": done.counters[f"wire_bytes_total|{way}"] / 1e6 for way in ("up", "down")}
        found = {"accuracy": list(accuracies(done).values())[-1], **megabytes, "failures": failures(done)}
        return {**found, **({"epsilon": max(spent)} if spent and len(spent) == len(done.ledgers) else {})}


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell."""
    if settings["attack"] == TRAINING:
        return {TRAINING: {"accuracy": federated(settings, seed, data)["accuracy"]}}
    return {str(settings.get("named", settings["attack"])): rebuilt(settings, seed, data)}


DEFENDED = Measure("defended", make, version=2, control={"defenses": NONE, "raw": {}}, names=NAMES)
