"""What this project claims beyond the papers."""

from collections.abc import Callable, Sequence

from prunella.benchmarks.engine.claim import SIZES, Claim, Label, Plot, Point, declared, paired
from prunella.benchmarks.engine.rules import Judgement, at_least
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.masks import X3
from prunella.benchmarks.papers.priprune_defense import DB
from prunella.benchmarks.papers.stale import X4
from prunella.benchmarks.scenarios.board import MEASURE, SEEDS, cells
from prunella.benchmarks.scenarios.standing import strongest

HIDING = "mask-hiding"
PRUNING = ("dgp", "top-k", "random", "priprune")
DATA, UPDATE = "channel-natural", ("dgp", "priprune")
ASKED = ("one-image", "one-digit")  # scenarios
SCORES = "psnr 1 PSNR in dB; ssim 2 SSIM; null 1 null PSNR; rebuilt 2 share rebuilt; seconds 0 processor seconds"
UPDATES = 8  # images for a seed, where the board has half as many
NOTE = """Cells as the board's: one image in one step of an untrained `cnn`, labels known, a client's first round, {}
images of a client each for a seed, and every attack that fits the chain."""
FULL_NOTE = "As the small cells, with twenty images for a seed and ten times the attacker's passes."
REMARK = """Judged by the attack that rebuilds most behind a chain, in the mean over all seeds and images; PSNR counts
up to 60 dB. `matching` is the portfolio without a shadow; see the board for the other attacks."""


def by_chain(points: Sequence[Point]) -> dict[Label, tuple[float, ...]]:
    """(scenario, chain) to the PSNR of the strongest attack, seed by seed."""
    return {pair: best.by_seed for pair, best in strongest(points).items()}


def judge_hidden(points: Sequence[Point]) -> Judgement:
    """Hiding the mask lowers what the strongest attack rebuilds, behind every defense; seeds in pairs."""
    best = by_chain(points)
    sides = {f"{s} {chain}": ((s, chain), (s, f"{chain},{HIDING}")) for s, chain in best if chain in PRUNING}
    return at_least(paired(best, sides), "PSNR taken away by hiding the mask", DB)


def judge_composed(points: Sequence[Point]) -> Judgement:
    """The strongest attack rebuilds no more through both defenses than through either alone; seeds in pairs."""
    best = by_chain(points)
    both = [(s, chain, single) for s, chain in best if "," in chain for single in chain.split(",")]
    sides = {f"{s} {chain} against {single}": ((s, single), (s, chain)) for s, chain, single in both}
    return at_least(paired(best, sides), "PSNR, either alone over both", -DB)


def claim(words: str, chains: Sequence[str], judge: Callable[[Sequence[Point]], Judgement]) -> Claim:
    """A claim over cells like the board's."""
    chosen = (NONE, *chains)
    small, paper = (cells(chosen, costs=False, scenarios=ASKED, size=size) for size in SIZES)
    small = tuple({**cell, "updates": UPDATES} for cell in small)
    shape = "scenario dataset defenses: attack", SCORES, Plot(("psnr",), split=0)
    text = f"{words}\n small: {NOTE.format(UPDATES)}\n paper: {FULL_NOTE}\n * {REMARK}"
    return declared(text, MEASURE, *shape, judge, small, paper, seeds=SEEDS)


X1 = claim(
    "X1 | Prunella | docs/defenses.md | hiding the mask lowers what the strongest attack rebuilds behind a defense "
    "that prunes",
    (*PRUNING, *(f"{chain},{HIDING}" for chain in PRUNING)),
    judge_hidden,
)
X2 = claim(
    "X2 | Prunella | docs/defenses.md | a data defense and an update defense together leak no more than either alone",
    (DATA, *UPDATE, *(f"{DATA},{chain}" for chain in UPDATE)),
    judge_composed,
)
CLAIMS = (X1, X2, X3, X4)
