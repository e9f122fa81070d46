"""Every defense under every attack that is known to be strong against it, beside what needs no update.

The attacked images, weights and chains are those of ``defended`` (one image, one step of the weights
that a run starts from, label known), each with a client of its own: a defense that learns took its first steps on other
images. Public images are training images, test images are attacked. ``inverter`` and ``denoise`` are learnt once for a
cell, from shadow clients, who fit their data defense on public images in one of ``FITS`` ways.

``class mean`` is the mean public image of the image's class: the best picture that needs no update. ``null`` is what an
attack's picture scores against other people's images of the same class, the best of 32 draws; ``rebuilt`` and
``traces`` are the shares of images that a report would call so, or worse (``attacks.score.level``). ``seconds`` is the
processor time of an attack on all images of a cell, learning included, on one thread. Every score is kept for every
image: means stand beside intervals over images and seeds.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunella.attacks.denoise import Denoise, Denoiser
from prunella.attacks.inverter import Inverse, Inverter
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import score
from prunella.attacks.score.level import ORDER, level
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Settings, declared, each
from prunella.benchmarks.engine.images import class_means, client_images, part, place
from prunella.benchmarks.engine.priors import PUBLIC
from prunella.benchmarks.engine.shadows import Population, ShadowSender
from prunella.benchmarks.engine.views import NONE, draws, model_of, seen
from prunella.benchmarks.engine.views import answer as attacked
from prunella.benchmarks.papers.defended import images_of, inverting
from prunella.core.errors import AttackError, DefenseError
from prunella.core.randomness import stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples, Partition, make_task
from prunella.tasks.task import initial

Attack = Callable[[ServerView, int], Reconstruction]
LESS: Settings = {"shadows": 600, "epochs": 10, "polish": 50}
MEAN = "class mean"
PLAIN = ("ig",)
CHAINS: Mapping[str, tuple[str, ...]] = {  # the chains, and what is strong against them
    NONE: PLAIN,
    "dgp": ("sgi",),
    "top-k": ("sgi",),
    "outpost": ("ig", "sgi"),
    "gaussian": PLAIN,
    "priprune": ("sgi", "inverter"),
    "channel-natural": ("denoise", "inverter"),
    "channel-white": ("denoise",),
    "channel-personalized": ("denoise",),
    "dgp,mask-hiding": ("inverter", "representation"),
    "top-k,mask-hiding": ("inverter", "representation"),
    "dp-sgd": ("inverter",),
    "precode": ("representation",),
}


def prepared(name: str, settings: Settings, shadow: ShadowSender, view: ServerView, labels: list[Tensor]) -> Attack:
    """An attack, ready for every view of a cell, of which ``view`` is one; all ``labels`` are known."""
    task, seed = shadow.population.task, shadow.population.seed
    generator = stream(seed, purpose=name)
    if name == "inverter":
        inverse = Inverse(view, 1, task, dataclasses.replace(Inverter(), **settings["inverter"]), generator, shadow)
        return lambda view, number: inverse(view, labels[number])
    if name == "denoise":
        denoiser = Denoiser(task, Denoise(), generator, shadow)
        return lambda view, number: denoiser(view)

    def one(view: ServerView, number: int) -> Reconstruction:
        draw = stream(seed, round=number, purpose="leakage-attack")
        return attacked(name, view, task, settings["iterations"], draw)

    return one


def scored(answer: Reconstruction, truth: PrivateBatch, public: Examples) -> dict[str, float]:
    """What one image's picture tells, and what it would tell of somebody else's."""
    row = score(answer, truth, gallery=public)
    found, of = level({"scores": row.to_dict()}), ORDER.index
    said = {word: float(of(found) >= of(word)) for word in ("traces", "rebuilt")}
    return {"psnr": row.psnr.mean, "ssim": row.ssim.mean, "ncc": row.ncc.mean, "null": row.psnr.null, **said}


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: one chain, all its images under all its attacks."""
    names, where = settings["defenses"].split(","), place(settings["dataset"], data)
    task = make_task(model_of(settings["model"], names), where, None)
    train = client_images(settings["dataset"], data, Partition("iid", clients=1))
    public = Examples(train.x[:PUBLIC], train.y[:PUBLIC])
    images = images_of(settings, seed, data)
    rest = images.take(torch.arange(settings["images"], len(images)))
    mean = class_means(public, task.classes)
    params, buffers = initial(task, seed)
    received = Received(params, full_mask(params), buffers)
    population = Population(task, received, settings["defenses"], settings["raw"], seed, settings["batch"])
    sent = list[tuple[PrivateBatch, ServerView]]()
    for number in range(settings["images"]):
        private = part(images, number)
        one = population.client(rest)
        sent.append((PrivateBatch(private.x, private.y), seen(one, private, draws(seed, number, "attacked")).view))
    shadow, found = ShadowSender(population, public), Found()
    for name in settings["attack"]:
        start, answers = time.process_time(), list[Reconstruction]()
        attack = prepared(name, settings, shadow, sent[0][1], [truth.y for truth, _ in sent])
        for number, (truth, view) in enumerate(sent):
            try:
                answers.append(attack(view, number))
            except (AttackError, DefenseError):  # no answer: what anybody has without an attack
                answers.append(Reconstruction(mean[truth.y], truth.y, 0.0, 0))
        found[name] = {"seconds": time.process_time() - start} | _rows(answers, sent, public)
    found[MEAN] = _rows([Reconstruction(mean[truth.y], truth.y, 0.0, 0) for truth, _ in sent], sent, public)
    return found


def _rows(
    answers: list[Reconstruction], sent: list[tuple[PrivateBatch, ServerView]], public: Examples
) -> dict[str, float]:
    return each([scored(answer, truth, public) for answer, (truth, _) in zip(answers, sent, strict=True)])


def cells(images: int, **inverter: Any) -> tuple[Settings, ...]:
    """Every chain on both datasets."""
    common = {**inverting("cnn", "", images, iterations=300), "raw": {}, "inverter": inverter, "draws": "leakage"}
    return tuple(
        {**common, "dataset": dataset, "defenses": chain, "attack": attacks}
        for chain, attacks in CHAINS.items()
        for dataset in ("mnist", "cifar10")
    )


CONTROL: Settings = {"defenses": NONE, "raw": {}, "attack": PLAIN}
STRONGEST: Claim = declared(
    """strongest | Prunella | docs/defenses.md | what the attacks that are strong against a defense rebuild behind it
    small: Eight test images for each seed; the inverter learns from 600 shadow clients in 10 epochs.
    * An image that an attack gives no answer for counts as its class mean.
    * The control is the same attack on the same images without a defense, on the plain model.""",
    Measure("strongest", make, version=2, control=CONTROL, told="ig", least={"psnr": PSNR_FLOOR}),
    "dataset defenses: attack",
    "psnr 1 PSNR; ssim 2 SSIM; null 1 null PSNR; rebuilt 2 share rebuilt; traces 2 share with traces; "
    "seconds 0 processor seconds",
    Plot(("psnr",), split=0),
    small=cells(8, **LESS),
)
