"""What an inverter learnt behind a client's own chain rebuilds, beside the best picture that needs no update.

The attacked images, weights and chains are those of docs/defenses.md (``defended``; one image, one step of the weights
that a run starts from, label known), each with a client of its own: a defense that learns took its first steps on other
images. Public images are training images, test images are attacked. A shadow client fits its data defense on public
images, in one of ``FITS`` ways. One inverter is learnt for a cell; ``class mean`` is the mean public image of the
class. ``seconds`` is the processor time of all learning and of playing the shadow clients, on one thread.
"""

import dataclasses
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prunella.attacks.inverter import Inverse, Inverter
from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Found, Measure, Plot, Settings, Sweep
from prunella.benchmarks.engine.images import client_images, part, place
from prunella.benchmarks.engine.priors import PUBLIC
from prunella.benchmarks.engine.views import LEARNS, NONE, Sender, after_rounds, draws, initial_sender, model_of, seen
from prunella.benchmarks.papers.defended import EARLIER, POOL, images_of, inverting, scores
from prunella.core.randomness import rehearsal, stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.data import Examples, Partition, make_task
from prunella.tasks.task import Task

FITS = 8
LESS: Settings = {"shadows": 600, "epochs": 10, "polish": 50}
CHAINS = (NONE, "channel-natural", "channel-white", "dgp", "dgp,mask-hiding", "priprune", "precode")


def client(settings: Settings, task: Task, seed: int, images: Examples, number: int, kind: str) -> Sender:
    """A client of its own before its first attacked round: fitted on ``images``, after its first steps on some."""
    one = initial_sender(task, seed, settings["defenses"], settings["raw"], images.x[:POOL], settings["batch"])
    if not LEARNS & set(settings["defenses"].split(",")):
        return one
    order = torch.randperm(len(images), generator=stream(seed, client=number, purpose=f"{kind}-order"))
    earlier = [part(images.take(order[:EARLIER]), turn) for turn in range(EARLIER)]
    return after_rounds(one, earlier, lambda turn: rehearsal(seed, round=turn, client=number, purpose=f"{kind}-warm"))


@dataclass
class ShadowSender:
    """Shadow clients of a cell; ``public`` are split into ``FITS`` clients' images."""

    settings: Settings
    task: Task
    seed: int
    public: Examples

    @functools.cached_property
    def fitted(self) -> list[Sender]:
        pools = [self.public.take(torch.arange(fit, len(self.public), FITS)) for fit in range(FITS)]
        return [client(self.settings, self.task, self.seed, pool, fit, "shadow") for fit, pool in enumerate(pools)]

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        one = self.fitted[draw % FITS]
        if LEARNS & set(self.settings["defenses"].split(",")):
            one = client(self.settings, self.task, self.seed, self.public, FITS + draw, "shadow")
        return seen(one, shown, lambda purpose: rehearsal(self.seed, client=draw, purpose=f"shadow-{purpose}")).view


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: one chain, all its images."""
    names, where = settings["defenses"].split(","), place(settings["dataset"], data)
    task = make_task(model_of(settings["model"], names), where, None)
    train = client_images(settings["dataset"], data, Partition("iid", clients=1))
    public = Examples(train.x[:PUBLIC], train.y[:PUBLIC])
    images, inverse, spent = images_of(settings, seed, data), None, 0.0
    rest = images.take(torch.arange(settings["images"], len(images)))
    mean = torch.stack([public.x[public.y == label].mean(dim=0) for label in range(task.classes)])
    rows: dict[str, list[dict[str, float]]] = {"inverter": [], "class mean": []}
    for number in range(settings["images"]):
        private = part(images, number)
        truth, draw = PrivateBatch(private.x, private.y), draws(seed, number, "attacked")
        view, shown = seen(client(settings, task, seed, rest, number, "attacked"), private, draw)
        if inverse is None:
            start, shadow = time.process_time(), ShadowSender(settings, task, seed, public)
            how: Any = dataclasses.replace(Inverter(), **settings["inverter"])
            inverse = Inverse(view, 1, task, how, stream(seed, purpose="inverter"), shadow)
            spent = time.process_time() - start
        answers = {"inverter": inverse(view, truth.y), "class mean": Reconstruction(mean[truth.y], truth.y, 0.0, 0)}
        for name, answer in answers.items():
            rows[name].append(scores(answer, truth, shown, number=0))
    found = {name: _spread(each) for name, each in rows.items()}
    found["inverter"] |= {"seconds": spent, "expected": 0.0 if inverse is None else inverse.learnt.error}
    return found


def _spread(rows: list[dict[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in ("psnr", "ssim"):
        values = torch.tensor([row[name] for row in rows])
        found |= {name: float(values.mean()), f"{name}_largest": float(values.max())}
        found[f"{name}_deviation"] = float(values.std()) if len(rows) > 1 else 0.0
    return found


def cells(images: int, **inverter: Any) -> tuple[Settings, ...]:
    """Every chain on both datasets."""
    common = {**inverting("cnn", "inverter", images), "raw": {}, "inverter": inverter, "draws": "leakage"}
    return tuple({**common, "dataset": name, "defenses": chain} for name in ("mnist", "cifar10") for chain in CHAINS)


_COLUMNS = (
    Column("psnr", "PSNR", 1),
    Column("psnr_deviation", "PSNR, deviation over images", 1),
    Column("psnr_largest", "PSNR, largest", 1),
    Column("ssim", "SSIM"),
    Column("ssim_deviation", "SSIM, deviation over images"),
    Column("ssim_largest", "SSIM, largest"),
    Column("seconds", "processor seconds", 0),
)
LEARNT_INVERSION = Claim(
    "inverter",
    "Prunella",
    "docs/defenses.md",
    "what an inverter learnt behind a client's own chain rebuilds",
    "",
    Experiment(
        Measure("learnt-inversion", make),
        {"small": Sweep(cells(8, **LESS), (0,), "600 shadows and 10 epochs in place of 900 and 14.")},
        ("dataset", "defenses"),
        "attack",
        _COLUMNS,
        Plot(("psnr",), split=0),
    ),
)
