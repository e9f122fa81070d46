"""What an active server's planted models copy out of a batch, and whether the client notices them.

A client takes one step on ``BATCH`` test images, labels known, weights otherwise untrained, behind a chain. ``honest``
is what `representation` and `sgi`, whichever is better, rebuild of a model in which nothing is planted.

``psnr`` is the mean over the batch, a flat grey image in place of what an attack does not give, ``best`` the best
image, ``rebuilt`` the share from ``PSNR_FLOOR`` on. fishing asks for one image, of a class that the batch has once.
``noticed``: ``client.planted`` would have refused to train, in which case nothing of the row happens; it is left out of
the chain here, so that the row says what it prevents.

The control is the same model without a defense: one image of the batch is rebuilt.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from prunella.attacks.fishing import plant
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Own, Plot, Point, Settings, declared, each, seeds_of
from prunella.benchmarks.engine.images import chosen_images, task_of
from prunella.benchmarks.engine.plots import save
from prunella.benchmarks.engine.rules import Judgement, at_least, worst
from prunella.benchmarks.engine.views import NONE, Sender, answer, draws, seen, sender
from prunella.benchmarks.papers.defended import completed, scores
from prunella.client.planted import planted_layers
from prunella.core.errors import AttackError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples
from prunella.tasks.task import Task, initial

BATCH, ITERATIONS = 8, 300
HONEST, FISHING = "honest", "fishing"
DATASETS = ("mnist", "cifar10")
CHAINS = (NONE, "top-k", "top-k,mask-hiding", "dgp", "dgp,mask-hiding", "gaussian", "dp-sgd")
MODELS = {
    HONEST: ("cnn", "sgi"),
    "rob": ("prunella.attacks.rob:cnn", "rob"),
    "rob, amplified": ("prunella.attacks.rob:amplified_cnn", "rob"),
    "rob, sparse": ("prunella.attacks.rob:sparse_cnn", "rob"),
    "rob, shielded": ("prunella.attacks.rob:shielded_cnn", "rob"),
    "loki, amplified": ("prunella.attacks.loki:amplified_cnn", "loki"),
    "scale-mia, amplified": ("prunella.attacks.scale_mia:amplified_conv_2", "scale-mia"),
    FISHING: ("cnn", "fishing"),
}
"""By what is planted: the model and the attack."""
FAILED = ("scale-mia, amplified", "cifar10")  # its codes decode to 14 dB without a defense, so that a row shows nothing


def images_of(dataset: str, data: Path | None, seed: int) -> Examples:
    """The seed's batch, of the first test images in its order: the last is the only one of its class."""
    test = chosen_images(dataset, data, seed, 20 * BATCH, "planted-images")
    wanted = test.y[0]
    others = (test.y != wanted).nonzero().flatten()[: BATCH - 1]
    return test.take(torch.cat([others, torch.zeros(1, dtype=torch.int64)]))


def client_of(settings: Settings, task: Task, images: Examples, seed: int) -> Sender:
    """A client that received the planted model."""
    params, buffers = initial(task, seed)
    if settings["planted"] == FISHING:
        params = plant(task.build(), params, task.classes, int(images.y[-1]))
    received = Received(params, full_mask(params), buffers)
    return sender(task, received, settings["defenses"], settings["raw"], images.x, BATCH)


def noticed(one: Sender, seed: int) -> bool:
    """Whether the client would have refused to train."""
    task, got = one.task, one.received
    draw = rehearsal(seed, purpose="planted-probes")
    return bool(planted_layers(task.build(), got.params, got.buffers, task.shape, task.classes, draw))


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell."""
    model, attack = MODELS[settings["planted"]]
    task, images = task_of({**settings, "model": model}, data), images_of(settings["dataset"], data, seed)
    one, truth = client_of(settings, task, images, seed), PrivateBatch(images.x, images.y)
    view, shown = seen(one, images, draws(seed, 0, "planted"))
    found: Reconstruction | None = None
    try:
        iterations = settings["iterations"] if attack in ("sgi", "fishing") else 0
        found = answer(attack, view, task, iterations, stream(seed, purpose="planted-attack"))
    except AttackError:
        if settings["defenses"] == NONE:
            raise
    whole, _ = completed(found, truth)
    rows = [scores(whole, truth, shown, number) for number in range(BATCH)]
    kept = each([{key: row[key] for key in ("psnr", "ssim", "rebuilt")} for row in rows])
    return {attack: {**kept, "best": max(row["psnr"] for row in rows), "noticed": float(noticed(one, seed))}}


def judge(points: Sequence[Point]) -> Judgement:
    """Every planting is noticed and no honest model is; undefended, each rebuilds its images better than an honest
    server does."""
    of = {key: seeds_of(points, key) for key in ("noticed", "best")}
    seen_of, best_of = ({label[:3]: values for label, values in found.items()} for found in of.values())
    pairs: dict[str, dict[str, list[tuple[float, float]]]] = {"noticed": {}, "best": {}}
    for dataset, planted, chain in seen_of:
        honest = (dataset, HONEST, chain)
        if planted != HONEST and chain == NONE:
            name = f"{dataset} {planted}"
            pairs["noticed"][name] = list(zip(seen_of[dataset, planted, chain], seen_of[honest], strict=True))
            pairs["best"][name] = list(zip(best_of[dataset, planted, chain], best_of[honest], strict=True))
    return worst(
        [
            at_least(pairs["noticed"], "noticed, planted over honest", 1.0),
            at_least(pairs["best"], "best image in dB, planted over honest", 0.5),
        ]
    )


def _cell(point: Point) -> str:
    low, high = point.interval("psnr") or (point.mean("psnr"),) * 2
    return f"{point.mean('psnr'):.1f} [{low:.0f}, {high:.0f}] {point.mean('rebuilt'):.0%}"


def table(points: Sequence[Point]) -> str:
    """What is planted by defense, a table a dataset."""
    text = "Mean PSNR in dB over the images of a batch, [its interval], and the share of images from"
    parts = [f"{text} {PSNR_FLOOR:.0f} dB on."]
    for dataset in dict.fromkeys(point.label[0] for point in points):
        of = {point.label[1:3]: point for point in points if point.label[0] == dataset}
        planted, chains = (list(dict.fromkeys(key[i] for key in of)) for i in (0, 1))
        heads = [dataset, *chains, "noticed by the client"]
        rows = []
        for what in planted:
            asked = sum(seed for chain in chains for seed in of[what, chain].values["noticed"])
            noticed = f"{asked:.0f} of {sum(len(of[what, chain].values['noticed']) for chain in chains)}"
            rows.append([what, *(_cell(of[what, chain]) for chain in chains), noticed])
        lines = [heads, ["---"] * len(heads), *rows]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return "\n\n".join(parts)


def draw(points: Sequence[Point], path: Path) -> None:
    """The same as shades, a panel a dataset."""
    from matplotlib.figure import Figure

    datasets = list(dict.fromkeys(point.label[0] for point in points))
    figure = Figure(figsize=(6.5 * len(datasets), 4.6), layout="constrained")
    for axes, dataset in zip(figure.subplots(1, len(datasets), squeeze=False)[0], datasets, strict=True):
        of = {point.label[1:3]: point.mean("psnr") for point in points if point.label[0] == dataset}
        planted, chains = (list(dict.fromkeys(key[i] for key in of)) for i in (0, 1))
        shades = [[of[what, chain] for chain in chains] for what in planted]
        shown = axes.imshow(shades, cmap="Greys", vmin=0, vmax=100, aspect="auto")
        for row, column in itertools.product(range(len(planted)), range(len(chains))):
            leak = shades[row][column]
            weight = "bold" if leak >= PSNR_FLOOR else "normal"
            colour = "white" if leak > 55 else "black"
            axes.text(column, row, f"{leak:.0f}", ha="center", va="center", color=colour, weight=weight, fontsize=9)
        axes.set_xticks(range(len(chains)), chains, rotation=30, ha="right", fontsize=8)
        axes.set_yticks(range(len(planted)), planted, fontsize=8)
        axes.set_title(f"{dataset}: mean PSNR in dB, bold from {PSNR_FLOOR:.0f} dB on", fontsize=9)
    figure.colorbar(shown, ax=figure.axes, label="dB", shrink=0.8)
    save(figure, path, "planted")


def cells(planted: Sequence[str] = tuple(MODELS)) -> tuple[Settings, ...]:
    return tuple(
        {"planted": what, "dataset": dataset, "defenses": chain, "raw": {}, "iterations": ITERATIONS}
        for what in planted
        for dataset in DATASETS
        for chain in CHAINS
        if (what, dataset) != FAILED
    )


_DECLARED = declared(
    f"""planted | Prunella | docs/attacks.md | a planted model copies more of a batch than an honest server rebuilds,
    and the client notices every one of them
    small: Batches of {BATCH} images, a step of untrained weights.
    dropped: Scale-MIA on CIFAR-10, whose control failed
    * What is noticed is not trained: the client's check is left out of these chains.""",
    Measure("planted", make, control={"defenses": NONE, "raw": {}}, least={"best": PSNR_FLOOR}),
    "dataset planted defenses: attack",
    "psnr 1 PSNR; best 1 best image; rebuilt 2 share rebuilt; noticed 2 noticed",
    Plot(("psnr",), split=0),
    judge,
    cells(),
)
PLANTED_TABLE: Claim = replace(_DECLARED, experiment=replace(_DECLARED.experiment, own=Own(draw, table)))
