"""Updates of several local steps whose labels nobody told: what the portfolio rebuilds of them, and what it would be
told.

A client takes ``steps`` steps on ``batch`` test images each, undefended, at untrained weights and the rate that is
recommended for its data; the server knows how many images and steps there were, and no label. ``portfolio`` has the
update alone, ``portfolio, public`` training images besides, as a run's audit has public ones. ``told`` is the same
attack under the right labels in the right steps (``components``), ``class mean`` the best picture without an update.

PSNR in dB of the best matching, and the share of labels that are named in the step in which they were used.
"""

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from prunella.attacks import components, portfolio
from prunella.attacks.score.control import matched_view
from prunella.attacks.score.leakage import assign, paired, psnr
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Settings, declared, each
from prunella.benchmarks.engine.images import chosen_images, class_means, client_images, first, part, task_of
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.server.audit.shadow import RunShadow, SentRound, template_of
from prunella.tasks.data import Partition, recommended_rate
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial

PUBLIC = 1000
UNHURRIED = 1e5  # seconds: no limit
NO_UPDATE = "class mean"


def sent(task: Task, shown: Examples, steps: int, seed: int, rate: float) -> ServerView:
    """The undefended update of a client that trains on ``shown`` in so many steps, with its labels."""
    params, buffers = initial(task, seed)
    size = len(shown) // steps
    like = ServerView(
        params,
        {},
        buffers=buffers,
        num_examples=len(shown),
        labels=shown.y,
        steps=steps,
        batch_size=size,
        learning_rate=rate,
    )
    parts = [part(shown, start, size) for start in range(0, len(shown), size)]
    return matched_view(task, like, [PrivateBatch(step.x, step.y) for step in parts])


def named(found: Tensor | None, truth: Tensor, steps: int, classes: int) -> float:
    """The share of labels [N] that are named in their own step.

    >>> named(torch.tensor([1, 0, 2, 2]), torch.tensor([0, 1, 2, 3]), 2, 4)
    0.75
    """
    if found is None or len(found) != len(truth):
        return float("nan")
    counts = [[torch.bincount(step, minlength=classes) for step in y.cpu().chunk(steps)] for y in (found, truth)]
    right = sum(int(torch.minimum(ours, theirs).sum()) for ours, theirs in zip(*counts, strict=True))
    return right / len(truth)


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: one update under the portfolio, without public images and with."""
    task, steps = task_of(settings, data), settings["steps"]
    shown = chosen_images(settings["dataset"], data, seed, steps * settings["batch"])
    public = first(client_images(settings["dataset"], data, Partition("iid", clients=1)), PUBLIC)
    view = sent(task, shown, steps, seed, recommended_rate(settings["dataset"]))
    unknown = dataclasses.replace(view, labels=None)
    shadow = RunShadow({"strategy": "random"}, task, template_of(unknown, ()), SentRound(0), public)
    # Its cost is counted in images: a slow machine takes longer and finds the same.
    cost = {"passes": settings["passes"], "label_passes": settings["label_passes"], "seconds": UNHURRIED}

    def rebuilt(shadow: RunShadow | None) -> Reconstruction:
        draw = stream(seed, purpose="attack")
        return portfolio.reconstruct(unknown, task, portfolio.Portfolio(**cost), draw, shadow)

    told = components.Components(iterations=settings["iterations"], max_images=len(shown))
    found = {
        "portfolio": rebuilt(None),
        "portfolio, public": rebuilt(shadow),
        "told": components.reconstruct(view, task, told, stream(seed, purpose="attack"), shadow=shadow),
        NO_UPDATE: Reconstruction(class_means(public, task.classes)[shown.y], shown.y, 0.0, 0),
    }
    rows = Found()
    for name, answer in found.items():
        gain = psnr(*paired(shown.x, answer.x.cpu(), assign(shown.x, answer.x.cpu())))
        rows[name] = each([{"psnr": value} for value in gain])
        if name != NO_UPDATE:
            rows[name]["labels"] = named(answer.y, shown.y, steps, task.classes)
    return rows


FULL = {"passes": 32_000, "label_passes": 64_000, "iterations": 600}  # the portfolio's defaults
SHAPES = (("digits", 4, 4), ("digits", 8, 16), ("mnist", 4, 4), ("cifar10", 4, 4))
CELLS = tuple({"model": "cnn", "dataset": name, "steps": steps, "batch": size, **FULL} for name, steps, size in SHAPES)
LOCAL_STEPS: Claim = declared(
    """local-steps | Prunella | docs/attacks.md | what is rebuilt of several steps whose labels nobody told
    small: `cnn` at untrained weights, undefended, recommended rates; 1000 training images are public.""",
    Measure("local-steps", make),
    "dataset steps batch: attack",
    "psnr 1 PSNR in dB; labels 2 labels in their step",
    Plot(("psnr", "labels"), split=0),
    None,
    CELLS,
    seeds=(0, 1, 2),
)
