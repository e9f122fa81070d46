"""What this project claims beyond the papers."""

from collections.abc import Sequence

from prunella.benchmarks.engine.claim import Plot, Point, declared, paired, seeds_of
from prunella.benchmarks.engine.rules import Judgement, at_least, worst
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.defended import DEFENDED, behind, inverting
from prunella.benchmarks.papers.masks import X3
from prunella.benchmarks.papers.priprune_defense import DB
from prunella.benchmarks.papers.stale import X4
from prunella.privacy import DEFENSES

TOO_FEW = """100 iterations rebuild the controls and are too few behind many defenses: with 300, SGI has the image at 49
dB and more behind DGP, ADGP, Top-k, largest, random and mix (docs/defenses.md, one seed). So these are lower bounds."""
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
SCORES = "psnr 1 PSNR in dB; psnr_worst 1 worst image, dB; ssim 2 SSIM; rebuilt 2 images from 20 dB"
Cells = tuple[dict[str, object], ...]


def attacked(chains: Sequence[str], raw: dict[str, float]) -> Cells:
    """Every chain on both datasets under both attacks; settings only where a chain has their defense."""
    found = []
    for dataset in DATASETS:
        for chain in chains:
            own = {key: value for key, value in raw.items() if key.split(".")[0] in chain.split(",")}
            found += [behind(inverting("cnn", arm, IMAGES, 1, ITERATIONS), dataset, chain, own) for arm in ARMS]
    return tuple(found)


def stronger(points: Sequence[Point]) -> dict[tuple[str, ...], tuple[float, ...]]:
    """(dataset, chain) to the PSNR of the better of the two attacks, seed by seed."""
    psnr = seeds_of(points, "psnr")
    pairs = {(dataset, chain) for dataset, chain, _ in psnr}
    return {pair: tuple(map(max, *(psnr[(*pair, arm)] for arm in ARMS))) for pair in sorted(pairs)}


def judge_aware(points: Sequence[Point]) -> Judgement:
    """SGI rebuilds more than IG under every pruning defense without hiding, and hiding lowers what the better of the
    two rebuilds; by PSNR, both datasets."""
    best = stronger(points)
    aware = {f"{d} {chain}": ((d, chain, "sgi"), (d, chain, "ig")) for d, chain in best if chain in PRUNING}
    hidden = {f"{d} {chain}": ((d, chain), (d, f"{chain},{HIDING}")) for d, chain in best}
    hidden = {name: sides for name, sides in hidden.items() if sides[1] in best}
    over = at_least(paired(seeds_of(points, "psnr"), aware), "PSNR, SGI over IG", DB)
    return worst([over, at_least(paired(best, hidden), "PSNR taken away by hiding the mask", DB)])


def judge_composed(points: Sequence[Point]) -> Judgement:
    """The better attack rebuilds no more through both defenses than through either alone; by PSNR, seeds in pairs."""
    best = stronger(points)
    both = [(d, chain, single) for d, chain in best if "," in chain for single in chain.split(",")]
    sides = {f"{d} {chain} against {single}": ((d, single), (d, chain)) for d, chain, single in both}
    return at_least(paired(best, sides), "PSNR, either alone over both", -DB)


NOTE = """Four images a seed at batch 1, untrained `cnn`, known labels, 100 iterations; a client's first round, in which
real and pseudo-pruning send the same."""
X1 = declared(
    f"""X1 | Prunella | docs/defenses.md | the mask-aware attack rebuilds more than the plain one under every pruning
    defense; hiding the mask helps
    small: {NOTE} Zeros that Soteria and Outpost put into gradients are not withheld coordinates, which mask hiding
    could fill: those two stand without it.
    * ig takes what did not arrive for zero, sgi compares only where values are not zero. A digit's black margin has
    gradients that are zero without any defense: there sgi leaves out what ig knows.
    * {TOO_FEW}""",
    DEFENDED,
    "dataset defenses: attack",
    SCORES,
    Plot(("psnr",), split=0),
    judge_aware,
    attacked((NONE, *PRUNING, *(f"{chain},{HIDING}" for chain in HIDEABLE)), {}),
)
X2 = declared(
    f"""X2 | Prunella | docs/defenses.md | a data defense and an update defense together leak less than either
    small: {NOTE} The natural channel with kappa 100, which alone leaves a picture to improve on.
    * Judged by the better of the two attacks on each chain, which is what a client has to expect.
    * {TOO_FEW}""",
    DEFENDED,
    "dataset defenses: attack",
    f"{SCORES}; ssim_shown 2 SSIM to what was trained on",
    Plot(("psnr",), split=0),
    judge_composed,
    attacked((NONE, DATA, *UPDATE, *(f"{DATA},{chain}" for chain in UPDATE)), KAPPA),
)
CLAIMS = (X1, X2, X3, X4)
