"""A client that sends the same image in every round: what all its rounds tell beside the best single one.

A client takes one step on one image in every round, behind a defense that keeps its state from round to round. It is
one of many: between its rounds the weights take a step of ``STEP`` on ``OTHERS`` images of other clients. (Weights that
follow the client itself fit a single image within two or three rounds, and its later gradients say nothing.)
``every-round`` has its first 4 and, behind noise, its first 16 rounds; ``sgi`` (which is ``every-round`` of one) has
each of the first 4 alone: ``sgi, first`` is the first's, ``sgi, best`` the best by the truth, which no attacker has.

``gaussian`` has a deviation of ``NOISE``, since its default hides next to nothing. ``cnn`` untrained, label known; seed
i is test image i under the i-th initialisation; other clients have the last test
images, on which a channel is fitted, too. PSNR in dB.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from prunella.attacks.score.leakage import psnr, ssim
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Point, Settings, declared, seeds_of
from prunella.benchmarks.engine.images import every_test_image
from prunella.benchmarks.engine.rules import Judgement, above
from prunella.benchmarks.engine.views import Sender, after_rounds, answer, initial_sender, seen
from prunella.benchmarks.papers.adapted_attacks import image_of
from prunella.core.randomness import rehearsal, stream
from prunella.core.types import ServerView
from prunella.tasks.data import Examples
from prunella.tasks.training import loss_and_gradient

OTHERS, STEP, NOISE = 32, 0.02, 0.3
POOL = 256  # images of other clients
DATASETS = ("mnist", "cifar10")
NOISY: dict[str, Settings] = {"gaussian": {"gaussian.deviation": NOISE}, "channel-natural": {}}
PRUNED: dict[str, Settings] = {"top-k": {}, "dgp": {}}
FEW, MANY = 4, 16
FIRST, BEST = "sgi, first", "sgi, best"


def arm(rounds: int) -> str:
    return f"{rounds} rounds"


def sent(one: Sender, private: Examples, others: Examples, seed: int, rounds: int) -> list[ServerView]:
    """The views of ``rounds`` rounds on the same images; the weights follow ``others``."""
    views = list[ServerView]()
    for turn in range(rounds):
        draw = lambda purpose, turn=turn: rehearsal(seed, round=turn, purpose=purpose)  # noqa: E731
        views.append(seen(one, private, draw).view)
        one = after_rounds(one, [private], lambda _, draw=draw: draw("defense"))  # type: ignore[misc]
        received, draws = one.received, stream(seed, round=turn, purpose="others")
        batch = others.take(torch.randint(len(others), (OTHERS,), generator=draws))
        gradient = loss_and_gradient(one.task.build(), received.params, received.buffers, batch.x, batch.y)[1]
        moved = {name: w - STEP * gradient[name] for name, w in received.params.items()}
        one = dataclasses.replace(one, received=dataclasses.replace(received, params=moved))
    return views


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: one image behind one defense, by all its rounds and by each alone."""
    task, truth = image_of(settings, seed, data)
    test = every_test_image(settings["dataset"], data)
    others = Examples(test.x[-POOL:], test.y[-POOL:])
    one = initial_sender(task, seed, settings["defense"], settings["raw"], others.x, 1)
    views = sent(one, Examples(truth.x, truth.y), others, seed, max(settings["rounds"]))

    def rebuilt(name: str, those: Sequence[ServerView]) -> dict[str, float]:
        draw = stream(seed, purpose="attack")
        x = answer(name, those[-1], task, settings["iterations"], draw, earlier=those[:-1]).x
        return {"psnr": psnr(truth.x, x)[0], "ssim": ssim(truth.x, x)[0]}

    alone = [rebuilt("sgi", [view]) for view in views[:FEW]]
    found = {FIRST: alone[0], BEST: max(alone, key=lambda row: row["psnr"])}
    return found | {arm(many): rebuilt("every-round", views[:many]) for many in settings["rounds"]}


def judge(points: Sequence[Point]) -> Judgement:
    """Few rounds rebuild more than the best of them alone, and many more than few."""
    of, pairs = seeds_of(points, "psnr"), {}
    for label in of:
        for more, less in ((arm(FEW), BEST), (arm(MANY), arm(FEW))):
            if label[-1] == more:
                pairs[f"{' '.join(label)} above {less}"] = (of[label], of[*label[:-1], less])
    return above(pairs)


def cells() -> tuple[Settings, ...]:
    kinds: tuple[tuple[dict[str, Settings], Settings], ...] = (
        (NOISY, {"rounds": (FEW, MANY), "iterations": 40}),
        (PRUNED, {"rounds": (FEW,), "iterations": 60}),
    )
    return tuple(
        {"model": "cnn", "dataset": dataset, "defense": name, "raw": raw, **more}
        for chains, more in kinds
        for name, raw in chains.items()
        for dataset in DATASETS
    )


EVERY_ROUND: Claim = declared(
    """every-round | Prunella | docs/attacks.md | several rounds of one image rebuild more than the best of them
    small: A seed is an image and an initialisation: eight images; 40 iterations behind noise, 60 elsewhere.""",
    Measure("every-round", make),
    "dataset defense: attack",
    "psnr 1 PSNR in dB; ssim 2 SSIM",
    Plot(("psnr",), split=0),
    judge,
    cells(),
    seeds=tuple(range(8)),
)
