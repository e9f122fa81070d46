"""What an attack rebuilds behind a defense chain, and what the chain costs in accuracy: cells of DGP's and our claims.

A cell is one chain with its settings (``raw``) under one attack, or, with ``attack`` "training", one federation.

Attacks look at one local step on ``batch`` test images, ``images`` of them in all, from the weights every run starts
from, where these attacks are strongest, in a client's first round, with known labels. A chain that learns (PriPrune)
took ``WARM`` steps on other images first; data defenses are fitted on ``POOL`` images, the attacked ones among them.
Adam on the cosine; on sigmoid networks L-BFGS on the Euclidean distance (for ``gradinversion`` its own).

Scores are means over all images, none is left out: psnr (dB), ssim, ``rebuilt``, the share at ``PSNR_FLOOR`` or above,
and ``ssim_shown``, against the image as the model was shown it (ATS, channels). Where an attack gives fewer images than
were trained on or none at all, or the client withheld its update, a flat grey image stands in: what is to be had
without an attack. ``answered`` is the share of images that the attack itself gave.

The positive control is the same attack, model and images under no defense: ``PSNR_FLOOR`` in the mean.
"""

import dataclasses
import functools
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from prunella.attacks import find_attack
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import score
from prunella.benchmarks.engine.claim import Found, Measure, Settings
from prunella.benchmarks.engine.inprocess import run_in_process
from prunella.benchmarks.engine.views import LEARNS, Sender, model_of, seen, sender, warmed
from prunella.benchmarks.papers.inversion import place
from prunella.benchmarks.papers.leakage import WARM, data_kept
from prunella.core.errors import AttackError, DefenseError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples, load_test, make_task
from prunella.tasks.task import initial

TRAINING = "training"
NONE = "none"
POOL = 256
GREY = 0.5
NAMES = ("swept", "value", "architecture")  # settings that only name a point
FEDERATION: Settings = {
    "clients": 4,
    "rounds": 20,
    "local_steps": 10,
    "batch_size": 32,
    "learning_rate": 0.05,
}

_test = functools.lru_cache(maxsize=2)(load_test)


def inverting(model: str, attack: str, images: int, batch: int = 1, iterations: int = 0) -> Settings:
    """The settings of an attack's cell; 0 iterations are the attack's own number."""
    return {"model": model, "attack": attack, "images": images, "batch": batch, "iterations": iterations}


def training(model: str, **changed: Any) -> Settings:
    """The settings of a federation's cell."""
    return {"model": model, "attack": TRAINING, **FEDERATION, **changed}


def behind(cell: Settings, dataset: str, defenses: str, raw: Mapping[str, Any] | None = None) -> Settings:
    """A cell's settings behind a chain."""
    return {**cell, "dataset": dataset, "defenses": defenses, "raw": dict(raw or {})}


def pool(dataset: str, images: int, seed: int, data: Path | None) -> Examples:
    """The seed's test images: first those that are attacked, then those a defense is fitted and warmed on."""
    test = _test(place(dataset, data), None)
    if test is None:
        raise ValueError(f"{dataset} has no test examples")
    chosen = torch.randperm(len(test), generator=stream(seed, purpose="claim-images"))[: max(POOL, images + WARM)]
    return Examples(test.x[chosen], test.y[chosen])


def client_of(settings: Settings, images: Examples, seed: int, data: Path | None) -> Sender:
    """The client of a cell, before the attacked images."""
    names = settings["defenses"].split(",")
    task = make_task(model_of(settings["model"], names), place(settings["dataset"], data), None)
    params, buffers = initial(task, seed)
    received = Received(params, full_mask(params), buffers)
    client = sender(task, received, settings["defenses"], settings["raw"], images.x, settings["batch"])
    first = settings["images"]
    others = [part(images, first + turn, 1) for turn in range(WARM if LEARNS & set(names) else 0)]
    return warmed(client, others, lambda turn: rehearsal(seed, round=turn, purpose="claim-warm"))


def part(images: Examples, start: int, length: int) -> Examples:
    return Examples(images.x[start : start + length], images.y[start : start + length])


def attack_settings(settings: Settings, model: str) -> Any:
    """See the module. ``tolerance``, where a cell has one, is that of the attack."""
    how: Any = find_attack(settings["attack"]).settings()
    strong = {"objective": "euclidean", "optimizer": "lbfgs"} if "zhu" in model and hasattr(how, "objective") else {}
    asked = {key: settings[key] for key in ("iterations", "tolerance") if settings.get(key)}
    return dataclasses.replace(how, **strong, **asked)


def completed(found: Reconstruction | None, truth: PrivateBatch) -> tuple[Reconstruction, int]:
    """As many images as were trained on, grey ones in place of those that are missing, and how many were given."""
    given = truth.x[:0] if found is None else found.x[: len(truth.x)]
    grey = torch.full_like(truth.x[len(given) :], GREY)
    return Reconstruction(torch.cat([given, grey]), truth.y, 0.0 if found is None else found.objective, 1), len(given)


def rebuilt(settings: Settings, seed: int, data: Path | None) -> dict[str, float]:
    """What an attack makes of the images of a cell."""
    images = pool(settings["dataset"], settings["images"], seed, data)
    client, batch = client_of(settings, images, seed, data), settings["batch"]
    attack = find_attack(settings["attack"])
    how = attack_settings(settings, client.task.model)
    rows: dict[str, list[float]] = {}
    for start in range(0, settings["images"], batch):
        private = part(images, start, batch)
        truth, found = PrivateBatch(private.x, private.y), None
        shown = truth
        try:
            view, shown = seen(client, private, lambda p: rehearsal(seed, round=start, purpose=f"claim-{p}"))  # noqa: B023
            found = attack.reconstruct(view, client.task, how, stream(seed, round=start, purpose="claim-attack"))
        except (AttackError, DefenseError):
            if settings["defenses"] == NONE:
                raise
        answer, given = completed(found, truth)
        for number in range(len(truth.x)):
            for name, value in scores(answer, truth, shown, number).items():
                rows.setdefault(name, []).append(value)
        rows.setdefault("answered", []).extend([1.0] * given + [0.0] * (len(truth.x) - given))
    means = {name: statistics.fmean(values) for name, values in rows.items()}
    return {**means, "psnr_worst": max(rows["psnr"])}


def scores(answer: Reconstruction, truth: PrivateBatch, shown: PrivateBatch, number: int) -> dict[str, float]:
    """Of the one image ``number`` of a batch, against the image of the answer that is paired with it."""
    whole = score(answer, truth)
    of = dict(whole.assignment)[number]
    mine = Reconstruction(answer.x[of : of + 1], None, answer.objective, answer.iterations)
    own = score(mine, PrivateBatch(truth.x[number : number + 1], truth.y[number : number + 1]))
    seen_as = score(mine, PrivateBatch(shown.x[number : number + 1], truth.y[number : number + 1]))
    psnr = own.psnr.mean
    return {
        "psnr": psnr,
        "ssim": own.ssim.mean,
        "ssim_shown": seen_as.ssim.mean,
        "rebuilt": float(psnr >= PSNR_FLOOR),
    }


def accuracy(settings: Settings, seed: int, data: Path | None) -> dict[str, float]:
    """Of the global model after the federation of a cell, on the first 1000 test images."""
    own = {"strategy": "fedavg", "partition": "dirichlet", "values": "float32", "audit_every": 0}
    asked = {key: settings[key] for key in FEDERATION if key != "clients"}
    raw = {key.replace(".", "__").replace("-", "_"): value for key, value in settings["raw"].items()}
    model = model_of(settings["model"], settings["defenses"].split(","))
    run = {"dataset": place(settings["dataset"], data), "model": model, "defenses": settings["defenses"], "seed": seed}
    with tempfile.TemporaryDirectory() as folder, data_kept():
        done = run_in_process(Path(folder), settings["clients"], settings["rounds"], **own, **asked, **raw, **run)
        found = [line["value"] for line in done.store.metrics() if line["metric"] == "accuracy_ratio"]
    return {"accuracy": found[-1]}


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell."""
    torch.set_num_threads(1)
    work = accuracy if settings["attack"] == TRAINING else rebuilt
    return {settings["attack"]: work(settings, seed, data)}


def control(settings: Settings) -> Settings:
    """The same attack on the same images without a defense. ``NAMES`` are left out."""
    kept = {key: value for key, value in settings.items() if key not in NAMES}
    return behind(kept, settings["dataset"], NONE)


def works(found: Found) -> bool:
    """The attack rebuilds the undefended images; a federation needs no control."""
    return all(attack == TRAINING or row["psnr"] >= PSNR_FLOOR for attack, row in found.items())


DEFENDED = Measure("defended", make, control=control, works=works)
