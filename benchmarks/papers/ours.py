"""What this project claims beyond the papers."""

from collections.abc import Sequence

from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Plot, Point, Sweep
from prunella.benchmarks.engine.rules import Judgement, at_least, worst
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.defended import DEFENDED, behind, inverting
from prunella.benchmarks.papers.masks import X3
from prunella.benchmarks.papers.stale import X4
from prunella.privacy import DEFENSES

PAPER = "Prunella"
TOO_FEW = (
    "100 iterations rebuild the controls and are too few behind many defenses: with 300, SGI has the image at 49 dB "
    "and more behind DGP, ADGP, Top-k, largest, random and mix (docs/defenses.md, one seed). So these are lower bounds."
)
IMAGES, ITERATIONS = 4, 100
DATASETS = ("mnist", "cifar10")
ARMS = ("ig", "sgi")
HIDING = "mask-hiding"
HIDEABLE = tuple(
    name
    for name, line in DEFENSES.items()
    if line.stage == "update" and not (line.fills or line.guards or name == NONE)
)
PRUNING = (*HIDEABLE, "soteria", "outpost")
DATA, UPDATE = "channel-natural", ("dgp", "top-k", "priprune")
KAPPA = {"channel-natural.kappa": 100.0}
SCORES = (
    Column("psnr", "PSNR in dB", 1),
    Column("psnr_worst", "worst image, dB", 1),
    Column("ssim", "SSIM"),
    Column("rebuilt", "images from 20 dB", 2),
)
Cells = tuple[dict[str, object], ...]


def attacked(chains: Sequence[str], raw: dict[str, float]) -> Cells:
    """Every chain on both datasets under both attacks; settings only where a chain has their defense."""
    found = []
    for dataset in DATASETS:
        for chain in chains:
            own = {key: value for key, value in raw.items() if key.split(".")[0] in chain.split(",")}
            found += [behind(inverting("cnn", arm, IMAGES, 1, ITERATIONS), dataset, chain, own) for arm in ARMS]
    return tuple(found)


def by_seed(points: Sequence[Point], metric: str) -> dict[tuple[str, ...], tuple[float, ...]]:
    """(dataset, chain, attack) to the metric of every seed."""
    return {point.label: point.values[metric] for point in points}


def stronger(points: Sequence[Point]) -> dict[tuple[str, str], tuple[float, ...]]:
    """(dataset, chain) to the PSNR of the better of the two attacks, seed by seed."""
    psnr = by_seed(points, "psnr")
    pairs = {(dataset, chain) for dataset, chain, _ in psnr}
    return {pair: tuple(map(max, *(psnr[(*pair, arm)] for arm in ARMS))) for pair in sorted(pairs)}


def judge_aware(points: Sequence[Point]) -> Judgement:
    """SGI rebuilds at least as much as IG under every pruning defense without hiding, and hiding lowers what the better
    of the two rebuilds; by PSNR, seeds in pairs, both datasets."""
    psnr, best = by_seed(points, "psnr"), stronger(points)
    aware = {
        f"{dataset} {chain}": list(zip(psnr[dataset, chain, "sgi"], psnr[dataset, chain, "ig"], strict=True))
        for dataset, chain in best
        if chain in PRUNING
    }
    hidden = {
        f"{dataset} {chain}": list(zip(best[dataset, chain], best[dataset, f"{chain},{HIDING}"], strict=True))
        for dataset, chain in best
        if f"{chain},{HIDING}" in {name for _, name in best}
    }
    return worst([at_least(aware, "PSNR, SGI over IG"), at_least(hidden, "PSNR taken away by hiding the mask")])


def judge_composed(points: Sequence[Point]) -> Judgement:
    """The better attack rebuilds no more through both defenses than through either alone; by PSNR, seeds in pairs."""
    best, pairs = stronger(points), {}
    for dataset, chain in best:
        if "," in chain:
            for single in chain.split(","):
                pairs[f"{dataset} {chain} against {single}"] = list(
                    zip(best[dataset, single], best[dataset, chain], strict=True)
                )
    return at_least(pairs, "PSNR, either alone over both")


NOTE = (
    "Four images a seed at batch 1, untrained `cnn`, known labels, 100 iterations; a client's first round, in which "
    "real and pseudo-pruning send the same. "
)
X1 = Claim(
    "X1",
    PAPER,
    "docs/defenses.md",
    "the mask-aware attack rebuilds more than the plain one under every pruning defense; hiding the mask helps",
    "",
    experiment=Experiment(
        measure=DEFENDED,
        sweeps={
            "small": Sweep(
                attacked((NONE, *PRUNING, *(f"{chain},{HIDING}" for chain in HIDEABLE)), {}),
                note=NOTE + "Zeros that Soteria and Outpost put into gradients are not withheld coordinates, which "
                "mask hiding could fill: those two stand without it.",
            )
        },
        keys=("dataset", "defenses"),
        series="attack",
        metrics=SCORES,
        plot=Plot(("psnr",), split=0),
        judge=judge_aware,
    ),
    remarks=(
        "ig takes what did not arrive for zero, sgi compares only where values are not zero. A digit's black margin "
        "has gradients that are zero without any defense: there sgi leaves out what ig knows.",
        TOO_FEW,
    ),
)
X2 = Claim(
    "X2",
    PAPER,
    "docs/defenses.md",
    "a data defense and an update defense together leak less than either",
    "",
    experiment=Experiment(
        measure=DEFENDED,
        sweeps={
            "small": Sweep(
                attacked((NONE, DATA, *UPDATE, *(f"{DATA},{chain}" for chain in UPDATE)), KAPPA),
                note=NOTE + "The natural channel with kappa 100, which alone leaves a picture to improve on.",
            )
        },
        keys=("dataset", "defenses"),
        series="attack",
        metrics=(*SCORES, Column("ssim_shown", "SSIM to what was trained on")),
        plot=Plot(("psnr",), split=0),
        judge=judge_composed,
    ),
    remarks=("Judged by the better of the two attacks on each chain, which is what a client has to expect.", TOO_FEW),
)

CLAIMS = (X1, X2, X3, X4)
