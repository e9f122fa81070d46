"""The board: every chain of defenses in every scenario, and what the chain costs.

A cell is a chain in a scenario (``benchmarks.scenarios.meeting``) or, where that is "costs", a federation under it
(``benchmarks.scenarios.price``).
The page shows the attack with the highest mean PSNR over all seeds and images of a point, which an attacker knows who
has read the board. The control of a cell is the same scenario without a defense, whose images come back.

    prunella reproduce board                            everything, in hours; it can be stopped and goes on
    prunella reproduce board --budget 30min --jobs 2    as far as that goes: a seed everywhere before the next
    prunella reproduce board --submit my_module:NAME    a defense or an attack of your own beside the stored board
    prunella reproduce defenses                         more defenses, in the two worst cases alone
    prunella reproduce models                           some of the chains on larger models and a vision transformer
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from prunella.attacks import Attack
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Own, Plot, Settings, Size, declared
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.defended import behind, training
from prunella.benchmarks.scenarios.meeting import MATCHING, STRONG, meet
from prunella.benchmarks.scenarios.price import price
from prunella.benchmarks.scenarios.scenario import LARGER, SCENARIOS, full
from prunella.benchmarks.scenarios.standing import COST, PICTURED, draw, table
from prunella.core.errors import ConfigError, with_article
from prunella.core.foreign import lookup
from prunella.privacy.defense import Entry
from prunella.tasks.data import recommended_rate

CHAINS = (
    *(NONE, "dgp", "top-k", "random", "outpost", "gaussian", "priprune"),
    *("channel-natural", "channel-white", "dp-sgd", "precode"),
    *("dgp,mask-hiding", "channel-natural,dgp", "channel-natural,priprune"),
)
# Without leakage-guard, which attacks every update of every shadow client, and ats: what explains its update is the
# transformed image, which is unlike the original in decibels and legible all the same.
MORE = (
    *("adgp", "largest", "mix", "soteria", "channel-personalized", "top-k,mask-hiding"),
    *("dp-psac", "dp-fed", "fed-ltp-client", "fed-spa"),
)
# One of each kind, on models whose every cell takes minutes.
SOME = (NONE, "top-k", "gaussian", "priprune", "channel-natural", "dp-sgd", "dgp,mask-hiding")
NAMED = tuple(name for name, one in SCENARIOS.items() if one.model not in LARGER)
SEEDS = (0, 1, 2, 3, 4)
EVERY = 10_000  # test images at most: local copies may have fewer
FULL_ROUNDS = 5  # times the rounds of a federation, at full size
LENGTHS = {"mnist": (20, 10), "cifar10": (15, 20)}  # rounds and local steps of a federation


def federation(dataset: str, longer: int = 1) -> Settings:
    """The settings of a dataset's federation. What one round's accuracy says by chance is kept small, so that points
    are the chain's: the learning rate falls to zero, and the model is tested on all images."""
    rounds, steps = longer * LENGTHS[dataset][0], LENGTHS[dataset][1]
    own = {"learning_rate": recommended_rate(dataset), "learning_rate_horizon": rounds, "tested": EVERY}
    return training("cnn", rounds=rounds, local_steps=steps, **own)


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell."""
    if settings["scenario"] == COST:
        return price(settings, seed, data)
    return meet(settings, seed, data)


def cells(
    chains: Iterable[str],
    attack: str = STRONG,
    costs: bool = True,
    scenarios: Iterable[str] = NAMED,
    size: Size = "small",
) -> tuple[Settings, ...]:
    """Every chain in every one of the scenarios and, with ``costs``, in a federation on every dataset."""
    found, every = list[Settings](), tuple(chains)
    for name in scenarios:
        scenario = SCENARIOS[name] if size == "small" else full(SCENARIOS[name])
        about = {**scenario.settings(name), "raw": {}, "attack": attack}
        found += [{**about, "defenses": chain} for chain in every]
    about = {"scenario": COST, "draws": "board", "attack": STRONG}
    for dataset in LENGTHS if costs else ():
        run = federation(dataset, FULL_ROUNDS if size == "paper" else 1)
        found += [{**behind(run, dataset, chain), **about} for chain in every]
    return tuple(found)


MEASURE = Measure(
    "board",
    make,
    version=2,
    control={"defenses": NONE, "raw": {}, "attack": STRONG},
    told=MATCHING,
    least={"psnr": PSNR_FLOOR},
)


def board(
    sweep: Sequence[Settings],
    name: str = "board",
    where: str = "docs/choose.md",
    paper: Sequence[Settings] = (),
    seeds: tuple[int, ...] = SEEDS,
) -> Claim:
    """A board of these cells, and of those at full size."""
    there = {key: SCENARIOS[key] for key in SCENARIOS if any(cell["scenario"] == key for cell in sweep)}
    words = " ".join(f"`{key}`: {one.says}, {one.model} on {one.dataset}." for key, one in there.items())
    size = "" if any(one.model in LARGER for one in there.values()) else " of 20 to 110 thousand weights"
    tested = "* `tested` is how many test images count at most: the local copies of these have 5,000."
    pruned = """* Precode under `pruned-0.8` is no network that works: the smallest weights are its bottleneck's, the
        mask removes all of them, and nothing of an image gets into the update."""
    claim = declared(
        f"""{name} | Prunella | {where} | what the strongest attacks rebuild behind every defense, and its price
        small: Untrained or shortly trained models{size}, so that attacks are at their
        strongest; intervals are over seeds and images, and images of one update are not independent.
        paper: Twenty images for a seed or more, ten times the attacker's passes, federations of five times the rounds.
        * {words}
        * An update that an attack gives no answer for counts as the mean images of its classes.
        {pruned if "pruned-0.8" in there else ""}
        {tested if any(cell["scenario"] == COST for cell in sweep) else ""}
        * The time of an attack is of all updates of a cell, what it learns included, on one thread.""",
        MEASURE,
        "scenario dataset defenses: attack",
        "psnr 1 PSNR; ssim 2 SSIM; null 1 null PSNR; rebuilt 2 share rebuilt; traces 2 share with traces; "
        "seconds 0 processor seconds; accuracy 3 accuracy; megabytes_up 2 MB up; megabytes_down 2 MB down; "
        "time 2 time; epsilon 2 ε",
        Plot(("psnr",), split=0),
        small=sweep,
        paper=paper,
        seeds=seeds,
    )
    return replace(claim, experiment=replace(claim.experiment, own=Own(draw, table)))


def submission(name: str) -> Claim:
    """The board's rows of somebody's own defense or attack. Raises ``ConfigError`` where it is neither."""
    found, asked = lookup("defense or attack", name, {}), f"board --submit {name}"
    if isinstance(found, Entry):
        return board(cells((NONE, name)), asked)
    if isinstance(found, Attack):
        return board(cells(CHAINS, name, costs=False), asked)
    raise ConfigError(f"{name} is {with_article(found)}, not a privacy.defense.Entry or an attacks.Attack")


_ALL, _WORST = (*CHAINS, *MORE), sorted(PICTURED.values())
_LARGER = tuple(name for name in SCENARIOS if name not in NAMED)
_SOLVED = ("one-image-conv-2", "one-image-vit")
BOARD = board(cells(CHAINS), paper=cells(CHAINS, size="paper"))
DEFENSES = board(
    cells(_ALL, scenarios=_WORST), "defenses", "docs/defenses.md", cells(_ALL, scenarios=_WORST, size="paper")
)
MODELS = board(
    # At this size an undefended ResNet18 in batch-norm's training mode keeps its image: of a defense there that says
    # nothing, so that its cells, ten minutes and more each, are left out until an attack passes the control.
    (*cells(SOME, costs=False, scenarios=_SOLVED), *cells((NONE,), costs=False, scenarios=("one-image-resnet18",))),
    "models",
    paper=cells(SOME, costs=False, scenarios=_LARGER, size="paper"),
    seeds=(0, 1, 2),
)
