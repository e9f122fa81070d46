"""What a mask alone tells: labels from supports, with no value of an update.

A cell is one defense (or LotteryFL). ``known`` public images, and ``victims`` others, each take one local step at batch
1 behind the chain from the weights every run starts from; the attacker sees the bitmap of shared coordinates that is on
the wire, and none of the values. It fits a ridge classifier to the bitmaps of its own images and names the label of
each victim's. Digits; disjoint images; a fresh client each, so that error feedback plays no part.

LotteryFL's masks come from weights: a client with 16 images of one class takes five steps and prunes a fifth by
magnitude (``strategies.lotteryfl.shrink``); the label is its class.

whole     label accuracy from the whole bitmap
inner     without the last layer's tensors, whose coordinates stand for classes
shuffled  of a classifier fitted to shuffled labels: what this classifier says of nothing
signs     of ``none`` only: from the signs of the dense update, the positive control, which must pass ``SUCCESS``
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier
from torch import Tensor

from prunella.benchmarks.engine.claim import Found, Measure, Plot, Point, Settings, declared
from prunella.benchmarks.engine.images import chosen_images, part, task_of
from prunella.benchmarks.engine.rules import Judgement, at_most, positive, worst
from prunella.benchmarks.engine.views import NONE, Sender, initial_sender
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, add
from prunella.strategies.lotteryfl import LotteryFLSettings, shrink
from prunella.tasks.data import Examples
from prunella.tasks.task import prunable

LOTTERY = "lotteryfl"
RANKED = ("top-k", "dgp", "largest", LOTTERY)
HIDDEN = ("random", "dgp,mask-hiding")
PER_CLASS, STEPS, PRUNED = 16, 5, 0.2
SUCCESS, TELLS, CHANCE, NOTHING = 0.5, 0.3, 0.1, 0.2


def bitmaps(client: Sender, images: Examples, seed: int) -> tuple[list[Mask], list[Tree]]:
    """The shared coordinates, and the update, of one step on each image."""
    masks, updates = [], []
    for number in range(len(images)):
        generator = rehearsal(seed, round=number, purpose="masks-defense")
        out = client.trained([part(images, number)], generator).outgoing
        masks.append(out.shared)
        updates.append(out.update)
    return masks, updates


def tickets(client: Sender, images: Examples, many: int, seed: int) -> tuple[list[Mask], Tensor]:
    """LotteryFL's masks of ``many`` clients of one class each, and the classes."""
    generator, masks, labels = stream(seed, purpose="masks-tickets"), [], []
    params, names = client.received.params, prunable(client.task.build())
    classes = sorted(set(images.y.tolist()))
    for number in range(many):
        label = classes[number % len(classes)]
        mine = torch.nonzero(images.y == label).flatten()
        drawn = [mine[torch.randint(len(mine), (PER_CLASS,), generator=generator)] for _ in range(STEPS)]
        steps = [Examples(images.x[rows], images.y[rows]) for rows in drawn]
        draw = rehearsal(seed, round=number, purpose="masks-tickets")
        trained = add(params, client.trained(steps, draw).outgoing.update)
        masks.append(shrink(trained, client.received.mask, names, PRUNED, LotteryFLSettings(step=PRUNED)))
        labels.append(label)
    return masks, torch.tensor(labels)


def features(trees: list[Tree], last: bool, of: Callable[[Tensor], Tensor]) -> np.ndarray:
    """A row a tree; without ``last``, the two tensors of the last layer are left out."""
    names = list(trees[0]) if last else list(trees[0])[:-2]
    rows = [torch.cat([of(tree[name]).flatten() for name in names]) for tree in trees]
    return torch.stack(rows).float().numpy()


def hits(known: np.ndarray, labels: Tensor, victims: np.ndarray, truth: Tensor) -> float:
    """Share of victims whose label a classifier of the known rows names."""
    fitted = RidgeClassifier(alpha=1.0).fit(known, labels.numpy())
    return float((fitted.predict(victims) == truth.numpy()).mean())


def leaked(known: list[Tree], labels: Tensor, victims: list[Tree], truth: Tensor, seed: int) -> dict[str, float]:
    """The three scores of bitmaps."""
    found, bits = {}, lambda t: t.bool()
    order = torch.randperm(len(labels), generator=stream(seed, purpose="masks-shuffle"))
    for name, last in (("whole", True), ("inner", False)):
        rows, asked = features(known, last, bits), features(victims, last, bits)
        found[name] = hits(rows, labels, asked, truth)
        if last:
            found["shuffled"] = hits(rows, labels[order], asked, truth)
    return found


def cell(settings: Settings, seed: int, data: Path | None) -> Found:
    """See the module."""
    task = task_of(settings, data)
    sizes, lottery = (settings["known"], settings["victims"]), settings["defenses"] == LOTTERY
    images = chosen_images(settings["dataset"], data, seed, sum(sizes), "masks-images")
    mine, theirs = part(images, 0, sizes[0]), part(images, *sizes)
    client = initial_sender(task, seed, NONE if lottery else settings["defenses"], {}, mine.x, 1)
    if lottery:
        (known, y), (victims, truth) = (
            tickets(client, own, count, seed + turn)
            for turn, (own, count) in enumerate(zip((mine, theirs), sizes, strict=True))
        )
        return {"mask": leaked(known, y, victims, truth, seed)}
    (known, updates), (victims, others) = bitmaps(client, mine, seed), bitmaps(client, theirs, seed + 1)
    found = leaked(known, mine.y, victims, theirs.y, seed)
    if settings["defenses"] == NONE:
        found["signs"] = hits(features(updates, True, torch.sign), mine.y, features(others, True, torch.sign), theirs.y)
    return {"mask": found}


def judge(points: Sequence[Point]) -> Judgement:
    """The bitmap of every defense that ranks names labels, ``TELLS`` or more where chance is ``CHANCE``; those of a
    random mask and of a hidden one do not, ``NOTHING`` or less."""
    by = {point.label[0]: point.values["whole"] for point in points}
    tell = positive({name: [share - TELLS for share in by[name]] for name in RANKED}, f"labels named, above {TELLS}")
    silent = at_most({name: by[name] for name in HIDDEN}, NOTHING, "labels named from what tells nothing")
    return worst([tell, silent])


COMMON: Settings = {"dataset": "digits", "model": "cnn", "known": 250, "victims": 100}
X3 = declared(
    """X3 | Prunella | docs/choose.md | a mask alone tells labels where it is chosen by gradients or by weights, and
    nothing where it is random or hidden
    small: `cnn` on the digits, untrained, one image a client, 250 public images for the attacker and 100 victims a
    seed. LotteryFL: one class a client, which is the extreme case.
    * Chance is 0.1. `signs` is the positive control: the same classifier on the signs of the dense update.
    * DGP and Top-k rank within a layer, the last bias included: its ten coordinates name the label. Largest ranks the
    whole model.""",
    Measure("masks", cell, control={"defenses": NONE}, least={"signs": SUCCESS}),
    "defenses: seen",
    "whole 2 label accuracy; inner 2 without the last layer; shuffled 2 shuffled labels; signs 2 signs of all values",
    Plot(("whole", "inner")),
    judge,
    ({**COMMON, "defenses": name} for name in (NONE, *RANKED, "priprune", *HIDDEN)),
)
