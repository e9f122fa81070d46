"""DGP against a Top-k that prunes as much as privacy asks for (DGP Table 7): D7, cells of ``papers.defended``."""

from collections.abc import Sequence

from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Label, Plot, Point, Settings, Sweep
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND, Judgement, at_least, worst
from prunella.benchmarks.papers.defended import DEFENDED, TRAINING, behind, training
from prunella.benchmarks.papers.dgp_attacks import ATTACKS, EPOCHS, SMALL, UNRECOGNISED, epochs_100

PAPER = "DGP"
CHAINS: dict[str, Settings] = {"dgp": {}, "top-k": {"top-k.keep": 0.05}}
FEDERATIONS = {"digits": SMALL, "mnist": training("cnn", rounds=10, learning_rate=0.05)}
# Accuracy on CIFAR-100: Top-k 95 %, DGP 80 %.
TABLE_7 = {
    "resnet18": (0.7368, 0.7404),
    "lenet-zhu": (0.2675, 0.3242),
    "cnn6": (0.4519, 0.4724),
    "vgg11-bn": (0.6807, 0.6860),
}
PUBLISHED: dict[Label, float] = {
    ("cifar100", model, chain, TRAINING): pair[number]
    for model, pair in TABLE_7.items()
    for number, chain in enumerate(("top-k", "dgp"))
}


def small() -> tuple[Settings, ...]:
    """Both chains: a federation on every dataset, and D1's attacks on CIFAR-10."""
    runs = FEDERATIONS.items()
    federations = [behind(cell, dataset, chain, raw) for dataset, cell in runs for chain, raw in CHAINS.items()]
    return (*federations, *(behind(cell, "cifar10", c, raw) for c, raw in CHAINS.items() for cell in ATTACKS.values()))


def paper() -> tuple[Settings, ...]:
    return tuple(behind(epochs_100(m), "cifar100", c, raw) for m in TABLE_7 for c, raw in CHAINS.items())


def judge_accuracy(points: Sequence[Point]) -> Judgement:
    """D7: DGP at 80 % is not less accurate than Top-k at 95 % anywhere, seeds in pairs; and where attacks were run,
    privacy is alike: neither lets one reach an SSIM of ``UNRECOGNISED``; in trend, DGP does not."""
    accuracy = {p.label: p.values["accuracy"] for p in points if p.label[-1] == TRAINING}
    pairs = {
        f"{dataset}, {model}": list(zip(values, accuracy[dataset, model, "top-k", TRAINING], strict=True))
        for (dataset, model, chain, _), values in accuracy.items()
        if chain == "dgp"
    }
    parts = [at_least(pairs, "accuracy, DGP 80 % over Top-k 95 %")]
    attacked = [p for p in points if p.label[-1] != TRAINING]
    rebuilt = {c: [p.label[-1] for p in attacked if p.label[2] == c and p.mean("ssim") >= UNRECOGNISED] for c in CHAINS}
    if attacked:
        word = NOT if rebuilt["dgp"] else TREND if rebuilt["top-k"] else HOLDS
        named = ", ".join(f"{chain} {' and '.join(names) or 'none'}" for chain, names in rebuilt.items())
        parts.append(Judgement(word, f"attacks that reach an SSIM of {UNRECOGNISED}: {named}"))
    return worst(parts)


D7 = Claim(
    "D7",
    PAPER,
    "Table 7",
    "at like privacy, DGP 80 % is more accurate than Top-k 95 %",
    "CIFAR-100, Top-k/DGP: ResNet18 73.68/74.04 %, LeNet (Zhu) 26.75/32.42 %, CNN6 45.19/47.24 %, VGG11 68.07/68.60 %",
    experiment=Experiment(
        measure=DEFENDED,
        sweeps={
            "small": Sweep(
                small(),
                note="`cnn` on the digits and MNIST in place of four models on CIFAR-100; 4 clients, 10 "
                "rounds of 10 steps, error feedback on in both. Privacy: the attacks of D1 on CIFAR-10, untrained "
                "weights, 2 images a seed (Rob: 8).",
            ),
            "paper": Sweep(
                paper(),
                note=f"CIFAR-100, from the hub or a local copy. {EPOCHS}",
            ),
        },
        keys=("dataset", "model", "defenses"),
        series="attack",
        metrics=(
            Column("accuracy", "accuracy", 3, PUBLISHED),
            Column("ssim", "SSIM", 3),
            Column("psnr", "PSNR in dB", 1),
        ),
        plot=Plot(("accuracy", "ssim")),
        judge=judge_accuracy,
    ),
    remarks=(
        "`attack` is `training` where a row is a federation.",
        "A first table had CIFAR-10 in place of MNIST. There nothing was learned, with a defense or without one (0.10 "
        "after these 100 steps), so that no accuracies could be compared; the rest of that table is this one's.",
    ),
)
