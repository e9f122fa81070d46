"""What PriPrune's paper claims (journal version; figures have no printed numbers)."""

from collections.abc import Callable, Sequence

from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Plot, Point, Settings, Size, Sweep, curves
from prunella.benchmarks.engine.rules import Judgement, at_least, falls, worst
from prunella.benchmarks.papers.priprune_bound import P2, P4, P5, P10
from prunella.benchmarks.papers.priprune_defense import CLAIMS as DEFENSES
from prunella.benchmarks.papers.scheme_inversion import LEAKAGE

PAPER = "PriPrune"
SCHEMES = ("random", "snip", "synflow", "grasp", "feddst", "prunefl")
RATES: dict[Size, tuple[float, ...]] = {"small": (0.1, 0.5, 0.9), "paper": (0.1, 0.3, 0.5, 0.7, 0.9)}
SMALL: Settings = {
    "dataset": "mnist",
    "model": "lenet-zhu",
    "clients": 4,
    "rounds": 2,
    "local_steps": 4,
    "batch_size": 20,
    "learning_rate": 0.25,
    "images": 2,
    "iterations": 300,
}
LARGE: Settings = {
    "dataset": "femnist",
    "model": "conv-2",
    "clients": 10,
    "rounds": 20_000,
    "local_steps": 1,
    "batch_size": 20,
    "learning_rate": 0.25,
    "images": 20,
    "iterations": 10_000,
}
NOTE = {
    "small": "MNIST in place of FEMNIST, LeNet (Zhu) in place of Conv-2, 4 clients, 2 rounds of 4 steps (the "
    "model is hardly trained: the worst case for the client), rates 0.1, 0.5 and 0.9; 2 images a seed at batch 1 with "
    "known labels and 300 iterations of L-BFGS on the Euclidean distance, where the paper takes 10 000 of gradient "
    "descent on the cosine.",
    "paper": "10 clients, all in every round, where the paper draws 10 of 193; images at batch 1 with known labels.",
}


def sweep(size: Size) -> Sweep:
    common = SMALL if size == "small" else LARGE
    cells = tuple({**common, "scheme": scheme, "rate": rate} for scheme in SCHEMES for rate in RATES[size])
    return Sweep(cells, note=NOTE[size])


def judge_rate(points: Sequence[Point]) -> Judgement:
    """P1: NMI and PSNR of SGI fall with the rate for every scheme."""
    sgi = [point for point in points if point.label[2] == "sgi"]
    return worst([falls(curves(sgi, metric, 1), metric.upper()) for metric in ("nmi", "psnr")])


def judge_sgi(points: Sequence[Point]) -> Judgement:
    """P3: SGI infers at least as much as GI at every rate and scheme, by NMI; seeds in pairs."""
    by = {point.label: point for point in points}
    pairs = {}
    for scheme, rate, series in by:
        if series == "sgi":
            sgi, gi = by[scheme, rate, "sgi"], by[scheme, rate, "gi"]
            pairs[f"{scheme} {rate}"] = list(zip(sgi.values["nmi"], gi.values["nmi"], strict=True))
    return at_least(pairs, "NMI, SGI over GI")


def experiment(judge: Callable[[Sequence[Point]], Judgement]) -> Experiment:
    return Experiment(
        measure=LEAKAGE,
        sweeps={"small": sweep("small"), "paper": sweep("paper")},
        keys=("scheme", "rate"),
        series="attack",
        metrics=(
            Column("nmi", "NMI"),
            Column("nmi_random", "NMI of noise"),
            Column("psnr", "PSNR in dB", 1),
            Column("psnr_worst", "worst image, dB", 1),
            Column("psnr_other", "dB of a flat or another image", 1),
            Column("kept", "kept", 2),
        ),
        plot=Plot(("nmi", "psnr"), x=1, x_name="base rate", split=0),
        judge=judge,
    )


REMARK = (
    "NMI is of 16 grey levels (the paper does not print its number of bins) and stands beside that of uniform noise; "
    "`kept` is the share of all parameters in the mask: PruneFL may keep less than its rate asks.",
)
CLAIMS = (
    Claim(
        "P1",
        PAPER,
        "Figs. 2 and 4a",
        "NMI and PSNR of SGI fall as the base rate grows, for all six pruning schemes",
        "figures; the text: 'a higher pruning rate generally leads to a decrease in NMI', clearer above 0.5",
        experiment=experiment(judge_rate),
        remarks=REMARK,
    ),
    P2,
    Claim(
        "P3",
        PAPER,
        "Fig. 3",
        "SGI infers at least as much as GI at every rate, for all schemes",
        "figures; the text: 'consistently outperforms the Gradient Inversion attack ... at each pruning rate level'",
        experiment=experiment(judge_sgi),
        remarks=REMARK,
    ),
    P4,
    P5,
    *DEFENSES,
    P10,
)
