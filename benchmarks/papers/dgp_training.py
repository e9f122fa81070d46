"""DGP's claim on error feedback (Fig. 4): accuracy over rounds with and without it, beside no defense.

A cell is one federation; its series are rounds. One local step a round, so that what is pruned is a gradient, as in
the paper. ``accuracy`` is of the global model on the held-out examples of the server.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Found, Measure, Plot, Point, Settings, Sweep
from prunella.benchmarks.engine.images import TESTED, place
from prunella.benchmarks.engine.inprocess import FEDAVG, accuracies, as_keywords, run_in_process
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND, Judgement
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.scheme_inversion import RUN

PAPER = "DGP"
LOST = 0.02
EVERY = 10
ARMS: dict[str, tuple[str, Settings]] = {
    NONE: (NONE, {}),
    "dgp": ("dgp", {}),
    "dgp without feedback": ("dgp", {"dgp.feedback": False}),
}


def curve(settings: Settings, seed: int, data: Path | None) -> Found:
    """Accuracy of every ``EVERY``-th round of one federation."""
    defenses, raw = ARMS[settings["arm"]]
    run = {"dataset": place(settings["dataset"], data), "seed": seed, **{key: settings[key] for key in RUN}}
    run |= {**FEDAVG, "defenses": defenses, **as_keywords(raw)}
    with tempfile.TemporaryDirectory() as folder:
        done = run_in_process(Path(folder), settings["clients"], EVERY, tested=TESTED, **run)
        return {str(round): {"accuracy": accuracy} for round, accuracy in accuracies(done).items()}


def last(points: Sequence[Point]) -> dict[tuple[str, str], Point]:
    """(dataset, arm) to its point of the last round."""
    found: dict[tuple[str, str], Point] = {}
    for point in points:
        dataset, arm, number = point.label
        before = found.get((dataset, arm))
        if before is None or int(number) > int(before.label[2]):
            found[dataset, arm] = point
    return found


def judge_feedback(points: Sequence[Point]) -> Judgement:
    """After the last round, on every dataset: DGP with feedback is within ``LOST``, or none's spread if larger, of no
    defense, and without feedback it is further below. In trend: one of the two, and without feedback below with."""
    final, texts, words = last(points), [], []
    for dataset in dict.fromkeys(dataset for dataset, _ in final):
        plain, with_, without = (final[dataset, arm] for arm in (NONE, "dgp", "dgp without feedback"))
        allowed = max(LOST, plain.spread("accuracy"))
        lost = [plain.mean("accuracy") - arm.mean("accuracy") for arm in (with_, without)]
        close, far = lost[0] <= allowed, lost[1] > allowed
        words.append(HOLDS if close and far else TREND if (close or far) and lost[1] > lost[0] else NOT)
        texts.append(f"{dataset}: {-lost[0]:+.3f} with and {-lost[1]:+.3f} without feedback, {allowed:.3f} allowed")
    order = (HOLDS, TREND, NOT)
    return Judgement(
        max(words, key=order.index), "accuracy against no defense after the last round, " + "; ".join(texts)
    )


def cells(dataset: str, rounds: int, learning_rate: float) -> tuple[Settings, ...]:
    common = {"model": "cnn", "clients": 4, "local_steps": 1, "batch_size": 32}
    asked = {"dataset": dataset, "rounds": rounds, "learning_rate": learning_rate}
    return tuple({**common, **asked, "arm": arm} for arm in ARMS)


def paper() -> tuple[Settings, ...]:
    """ResNet18 of the paper's four models, on both datasets, for 100 epochs of 10 clients."""
    common = {"model": "resnet18", "clients": 10}
    both = [cell for dataset in ("cifar10", "cifar100") for cell in cells(dataset, 15_600, 0.01)]
    return tuple({**cell, **common} for cell in both)


D5 = Claim(
    "D5",
    PAPER,
    "Fig. 4",
    "with error feedback DGP trains like the baseline; without it accuracy falls, or training fails",
    "a figure; no numbers",
    experiment=Experiment(
        measure=Measure("feedback", curve),
        sweeps={
            "small": Sweep(
                cells("digits", 100, 0.1),
                note="`cnn` on the digits in place of four models on CIFAR-10 and CIFAR-100; 4 clients, 100 rounds of "
                "one step.",
            ),
            "paper": Sweep(
                paper(),
                note="ResNet18 only, 10 clients, 100 epochs of batches of 32, one step a round, without the paper's "
                "momentum and its falling learning rate.",
            ),
        },
        keys=("dataset", "arm"),
        series="round",
        metrics=(Column("accuracy", "accuracy", 3),),
        plot=Plot(("accuracy",), x=2, x_name="round", split=0),
        judge=judge_feedback,
    ),
)
