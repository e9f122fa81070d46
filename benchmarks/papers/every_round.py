"""A client that sends the same image in every round: what all its rounds tell beside the best single one.

A client takes one step on one image in every round, behind a defense that keeps its state from round to
round; the weights follow ``FOLLOWS`` of what it sends, as where nine other clients send nothing. ``every-round`` has
its first 4 and, behind noise, its first 16 rounds; ``sgi`` (which is ``every-round`` of one) has the first, where the
gradient is largest, and each of the first 4 alone, of which ``sgi, best`` is the best by the truth, as no attacker can
choose.

``gaussian`` has a deviation of ``NOISE``, since its default hides next to nothing. ``cnn`` untrained, label known; seed
i is test image i under the i-th initialisation; a channel is fitted on test images that are not attacked. PSNR in dB.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from prunella.attacks.score.leakage import psnr, ssim
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Point, Settings, declared, seeds_of
from prunella.benchmarks.engine.images import every_test_image
from prunella.benchmarks.engine.rules import Judgement, above
from prunella.benchmarks.engine.views import Sender, after_rounds, answer, initial_sender, seen
from prunella.benchmarks.papers.adapted_attacks import image_of
from prunella.core.randomness import rehearsal, stream
from prunella.core.types import ServerView
from prunella.tasks.data import Examples

FOLLOWS, NOISE = 0.1, 0.3
POOL = 256  # images a channel is fitted on
DATASETS = ("mnist", "cifar10")
NOISY: dict[str, Settings] = {"gaussian": {"gaussian.deviation": NOISE}, "channel-natural": {}}
PRUNED: dict[str, Settings] = {"top-k": {}, "dgp": {}}
FEW, MANY = 4, 16
FIRST, BEST = "sgi, first", "sgi, best"


def arm(rounds: int) -> str:
    return f"{rounds} rounds"


def sent(one: Sender, private: Examples, seed: int, rounds: int) -> list[ServerView]:
    """The views of ``rounds`` rounds on the same images."""
    views = list[ServerView]()
    for turn in range(rounds):
        draw = lambda purpose, turn=turn: rehearsal(seed, round=turn, purpose=purpose)  # noqa: E731
        views.append(seen(one, private, draw).view)
        one = after_rounds(one, [private], lambda _, draw=draw: draw("defense"))  # type: ignore[misc]
        moved = {name: w + FOLLOWS * views[-1].update[name] for name, w in one.received.params.items()}
        one = dataclasses.replace(one, received=dataclasses.replace(one.received, params=moved))
    return views


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: one image behind one defense, by all its rounds and by each alone."""
    task, truth = image_of(settings, seed, data)
    pool = every_test_image(settings["dataset"], data).x[-POOL:]
    one = initial_sender(task, seed, settings["defense"], settings["raw"], pool, 1)
    views = sent(one, Examples(truth.x, truth.y), seed, max(settings["rounds"]))

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


def cells(iterations: int) -> tuple[Settings, ...]:
    kinds = ((NOISY, (FEW, MANY)), (PRUNED, (FEW,)))
    return tuple(
        {"model": "cnn", "iterations": iterations, "rounds": rounds, "dataset": dataset, "defense": name, "raw": raw}
        for chains, rounds in kinds
        for dataset in DATASETS
        for name, raw in chains.items()
    )


EVERY_ROUND: Claim = declared(
    """every-round | Prunella | docs/attacks.md | several rounds of one image rebuild more than the best of them
    small: A seed is an image and an initialisation: eight images, 60 iterations.""",
    Measure("every-round", make),
    "dataset defense: attack",
    "psnr 1 PSNR in dB; ssim 2 SSIM",
    Plot(("psnr",), split=0),
    judge,
    cells(60),
    seeds=tuple(range(8)),
)
