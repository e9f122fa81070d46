"""Real updates to measure the wire and the server with: a few local steps of a real client, pruned two ways.

``magnitude``: the base mask keeps the largest 20 % of the initial weights, globally; the update is what plain SGD does
inside it. ``dgp``: a full base mask, and Dual Gradient Pruning with its paper's 5 % and 75 % sends 20 % of every
layer. Both run ``strategies.round.local.local_update``, as a client does. Images are CIFAR-10 where a local copy is
given, and uniform noise with random labels of that shape where not; the result says which.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from prunella.benchmarks.engine.views import NONE, sender
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, apply_mask, full_mask
from prunella.pruning.selection import keep_by_score
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples, Partition, batches, load_client
from prunella.tasks.task import Task, initial, prunable

KINDS = ("magnitude", "dgp")
SHAPE, CLASSES = (3, 32, 32), 10


@dataclass(frozen=True)
class LocalTraining:
    """How the updates come about."""

    seed: int = 0
    steps: int = 4
    batch: int = 16
    learning_rate: float = 0.05
    removed: float = 0.8


@dataclass(frozen=True)
class Update:
    """What a client sends: the base mask both sides hold, the update, the coordinates it shares."""

    base: Mask
    update: Tree
    shared: Mask


def examples(data: Path | None, seed: int) -> tuple[Examples, str]:
    """Some hundred images, and what they are."""
    if data is not None:
        return load_client("cifar10", Partition("iid", clients=40, seed=seed), 0, data), "cifar10"
    generator = stream(seed, purpose="synthetic")
    x = torch.rand(500, *SHAPE, generator=generator)
    return Examples(x, torch.randint(CLASSES, (500,), generator=generator)), "synthetic"


def real_update(model: str, kind: str, images: Examples, training: LocalTraining) -> Update:
    """One client's round."""
    task, seed = Task(model, SHAPE, CLASSES), training.seed
    params, buffers = initial(task, seed)
    scores, mask = {name: weight.abs() for name, weight in params.items()}, full_mask(params)
    if kind == "magnitude":
        mask = keep_by_score(scores, prunable(task.build()), training.removed)
    received = Received(apply_mask(params, mask), mask, buffers)
    one = sender(task, received, "dgp" if kind == "dgp" else NONE, {}, images.x, training.batch, training.learning_rate)
    loader = batches(images, training.batch, training.steps, rehearsal(seed, purpose="batches"))
    sent = one.trained(loader, rehearsal(seed, purpose="defense")).outgoing
    return Update(mask, sent.update, sent.shared)
