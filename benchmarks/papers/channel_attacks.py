"""The channel paper on attacks: against DP-SGD in the defense plane (C4), over the batch (C6), by eigenvalue (C7)."""

from collections.abc import Mapping, Sequence
from typing import Any

from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Plot, Point, Settings, Sweep, curves
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND, Judgement, at_least, falls, worst
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers import channel_inversion
from prunella.benchmarks.papers.channel_batch import BATCHED
from prunella.benchmarks.papers.membership import MEMBERSHIP
from prunella.benchmarks.papers.priprune_defense import SMALL as TRADED
from prunella.benchmarks.papers.scheme_inversion import DENSE
from prunella.privacy.ledger.bounds import dp_capacity

PAPER = "Channel"
NATURAL, PRIVATE = "channel-natural", ("dp-sgd", "dp-psac")
STRENGTHS: dict[str, tuple[float, ...]] = {
    NATURAL: (50.0, 300.0),
    **{name: (0.8, 0.2066) for name in PRIVATE},
}
PAPER_STRENGTHS: dict[str, tuple[float, ...]] = {
    NATURAL: (50.0, 100.0, 200.0, 300.0),
    **{name: (0.8, 0.57, 0.46, 0.2066) for name in PRIVATE},
}
# What the paper does not print, clients, learning rate and images a seed, is ours.
PATIENT: Settings = {"images": 10, "iterations": 4800}
LENET: Settings = {
    **TRADED,
    **PATIENT,
    "dataset": "cifar10",
    "model": "lenet",
    "rounds": 10_000,
    "local_steps": 1,
    "batch_size": 64,
}
LENET_NOTE = (
    "LeNet on CIFAR-10, 10,000 steps of batches of 64; 4 clients, a learning rate of 0.05 and 10 images a seed, which "
    "the paper does not print."
)

MATCHED = tuple(
    ", ".join(f"{dp_capacity(1.0, noise**2, 64, as_printed=printed):.0f}" for noise in PAPER_STRENGTHS["dp-sgd"])
    for printed in (True, False)
)
CAPACITIES = (
    "Theorem 4 as printed turns noise multipliers {} at clip 1 and a batch of 64 into {} nats, and the paper holds "
    "them against kappas of 100, 200, 300 and 1500. Its proof drops a factor of 1/2: they let {} nats through at most, "
    "and DP stands against channels of twice its capacity (`privacy/ledger/bounds.py`)."
).format(", ".join(map(str, PAPER_STRENGTHS["dp-sgd"])), *MATCHED)
PLANE: Settings = {**TRADED, "scheme": DENSE, "rate": 0.0, "rounds": 16, "examples": 64}


def plane_cell(common: Settings, defense: str, strength: float) -> Settings:
    """A federation behind a channel of so many nats, or DP of clip 1 and that noise multiplier."""
    options: Mapping[str, Any] = {f"{NATURAL}.kappa": strength}
    if defense in PRIVATE:
        options = {f"{defense}.clip": 1.0, f"{defense}.noise-multiplier": strength}
    return {**common, "defenses": defense, "options": options, "strength": strength, "arm": defense}


def plane(common: Settings, strengths: Mapping[str, Sequence[float]]) -> tuple[Settings, ...]:
    """No defense, and every defense at each of its strengths."""
    none = {**common, "defenses": NONE, "options": {}, "strength": NONE, "arm": NONE}
    return none, *(plane_cell(common, name, one) for name, several in strengths.items() for one in several)


PLANE_CELLS = plane(PLANE, STRENGTHS)


def improvements(points: Sequence[Point]) -> dict[tuple[str, str], tuple[float, float]]:
    """(defense, strength) to IMP_DRA and IMP_MIA, of means over seeds, over no defense."""
    plain = next(p for p in points if p.label[1] == NONE)
    mse, auc = plain.mean("mse_strongest"), plain.mean("auc")
    return {
        (p.label[1], p.label[0]): (1 - mse / p.mean("mse_strongest"), 1 - p.mean("auc") / auc)
        for p in points
        if p is not plain
    }


def judge_plane(points: Sequence[Point]) -> Judgement:
    """C4. Fig. 15: for every setting of DP-SGD and DP-PSAC a Natural channel is at least as accurate and has at least
    its GDC, the mean of the two improvements; in trend, for more than half of them. Fig. 16: in the mean over
    settings DP improves membership inference more than Natural does, Natural inversion more than DP."""
    gains = improvements(points)
    accuracy = {(p.label[1], p.label[0]): p.mean("accuracy") for p in points}
    gdc = {key: sum(pair) / 2 for key, pair in gains.items()}
    natural, private = ([key for key in gains if (key[0] == NATURAL) is kind] for kind in (True, False))
    beaten = [dp for dp in private if any(accuracy[n] >= accuracy[dp] and gdc[n] >= gdc[dp] for n in natural)]
    word = HOLDS if len(beaten) == len(private) else TREND if 2 * len(beaten) > len(private) else NOT
    text = f"a Natural channel is as accurate and has the GDC of {len(beaten)} of {len(private)} settings of DP"
    for name in STRENGTHS:
        own = [key for key in gains if key[0] == name]
        text += f"; {name}: GDC {min(gdc[k] for k in own):.2f} to {max(gdc[k] for k in own):.2f}"
        text += f" at accuracies {min(accuracy[k] for k in own):.2f} to {max(accuracy[k] for k in own):.2f}"
    means = [[sum(gains[k][i] for k in keys) / len(keys) for keys in (natural, private)] for i in (0, 1)]
    split = means[1][1] > means[1][0], means[0][0] > means[0][1]
    said = f"improvement of inversion {means[0][0]:.3f} under Natural and {means[0][1]:.3f} under DP, of membership "
    said += f"inference {means[1][0]:+.3f} and {means[1][1]:+.3f}"
    return worst([Judgement(word, text), Judgement(HOLDS if all(split) else TREND if any(split) else NOT, said)])


C4 = Claim(
    name="C4",
    paper=PAPER,
    where="Figs. 15 and 16",
    says="the Natural channel has a better trade-off than DP-SGD and DP-PSAC, whose strength is membership inference",
    published="figures; kappa 50 to 300, noise multipliers 0.8, 0.57, 0.46, 0.2066 at clip 1",
    experiment=Experiment(
        measure=MEMBERSHIP,
        sweeps={
            "small": Sweep(
                PLANE_CELLS,
                note="MNIST, a CNN of 108,282 weights in place of LeNet on CIFAR-10, 4 clients of 64 images each, 16 "
                "rounds of 10 steps of 20: so few that the undefended model gives its members away. Inversion: 2 "
                "images a seed at batch 1 with known labels, after the last round. White and Personalized are left "
                "out, and of the paper's four strengths the two in the middle.",
            ),
            "paper": Sweep(plane({**LENET, "scheme": DENSE, "rate": 0.0}, PAPER_STRENGTHS), note=LENET_NOTE),
        },
        keys=("strength",),
        series="defense",
        metrics=(
            Column("accuracy", "accuracy", 3),
            Column("mse_strongest", "MSE, better attack", 4),
            Column("psnr_strongest", "PSNR, better attack, dB", 1),
            Column("auc", "AUC of membership", 3),
        ),
        plot=Plot(("accuracy", "mse_strongest", "auc"), split=1),
        judge=judge_plane,
    ),
    remarks=(
        "IMP_DRA is 1 - MSE without / MSE with a defense: where the undefended image comes back almost exactly, as "
        "here, it is near 1 for whatever disturbs the attack at all, and GDC tells defenses apart by membership alone.",
        "At batch 1 DP-SGD's noise is 64 times that of a batch of 64 in the mean gradient: the paper's equal "
        "capacities of channel and DP are for that batch.",
        CAPACITIES,
        "An AUC here has a standard error of about 0.02: 192 members against 1000 others.",
    ),
)

BATCHES, PAPER_BATCHES = (1, 16, 256), (1, 4, 16, 64, 256)
GRADIENTS: dict[str, Settings] = {
    NONE: {},
    "dp-sgd": {"dp-sgd.clip": 1.0, "dp-sgd.noise-multiplier": 1.3},
    "gaussian": {"gaussian.deviation": 0.001},
}
BATCH: Settings = {"dataset": "cifar10", "model": "lenet-zhu", "clients": 40, "images": 2, "iterations": 300}


def batch_cells(common: Settings, batches: Sequence[int]) -> tuple[Settings, ...]:
    """Every defense of the gradient at every batch size."""
    return tuple(
        {**common, "defense": name, "options": options, "batch": batch}
        for name, options in GRADIENTS.items()
        for batch in batches
    )


def judge_batch(points: Sequence[Point]) -> Judgement:
    """C6: over the batch the error falls under DP, grows under none and under constant noise, and grows more under
    constant noise than under none, from the smallest to the largest batch; seeds in pairs."""
    by = {p.label[:2]: p for p in points}

    private, plain = ([p for p in points if (p.label[0] == "dp-sgd") is kind] for kind in (True, False))
    ends = [str(BATCHES[0]), str(BATCHES[-1])]
    rise = {
        name: [b - a for a, b in zip(*(by[name, end].values["mse"] for end in ends), strict=True)]
        for name in (NONE, "gaussian")
    }
    more = {"gaussian over none": list(zip(rise["gaussian"], rise[NONE], strict=True))}
    return worst(
        [
            falls(curves(private, "mse", 1), "MSE over the batch"),
            falls(curves(plain, "mse", 1, sign=-1.0), "MSE from the largest batch down"),
            at_least(more, "rise of MSE"),
        ]
    )


C6 = Claim(
    name="C6",
    paper=PAPER,
    where="Fig. 6",
    says="a larger batch makes reconstruction harder without a defense and more so under constant noise, easier "
    "under DP-SGD",
    published="a figure; no numbers",
    experiment=Experiment(
        measure=BATCHED,
        sweeps={
            "small": Sweep(
                batch_cells(BATCH, BATCHES),
                note="CIFAR-10, LeNet (Zhu) at its initial weights, 2 batches a seed; one image with a soft label is "
                "rebuilt from the gradient of the batch and held against the mean of the batch, as in the paper's "
                "Appendix D. DP-SGD: clip 1, noise multiplier 1.3, as there; the constant noise, which is not "
                "printed, has a deviation of 0.001 on each coordinate.",
            ),
            "paper": Sweep(
                batch_cells({**BATCH, "model": "lenet", **PATIENT}, PAPER_BATCHES),
                note="As small, on LeNet, with 10 batches a seed.",
            ),
        },
        keys=("defense", "batch"),
        series="attack",
        metrics=(
            Column("mse", "MSE to the mean of the batch", 4),
            Column("mse_flat", "MSE of a flat grey image", 4),
            Column("psnr", "PSNR in dB", 1),
        ),
        plot=Plot(("mse", "mse_flat"), split=0),
        judge=judge_batch,
    ),
    remarks=(
        "The mean of many images is nearly flat: its likeness to what is rebuilt says little of any one of them. That "
        "a batch hides the single image is P2.",
    ),
)

REMOVED = (0, 1, 10, NONE)
REMOVED_CELLS = tuple(
    {**BATCH, "images": 4, "channel": NONE, "kappa": NONE, "removed": direction} for direction in REMOVED
)


def judge_eigenvalue(points: Sequence[Point]) -> Judgement:
    """C7: the error falls from the direction of the largest eigenvalue to that of the 2nd, of the 11th, to none."""
    place = {str(direction): number for number, direction in enumerate(REMOVED)}
    rows = [(float(place[p.label[0]]), p.mean("mse"), p.spread("mse")) for p in points]
    return falls({"ig": rows}, "from the largest eigenvalue down to none removed, MSE")


C7 = Claim(
    name="C7",
    paper=PAPER,
    where="Fig. 8",
    says="leaving out the direction with the larger eigenvalue makes reconstruction harder",
    published="a figure; no numbers; eigenvalues on CIFAR-10 222.21, 85.08 and 9.91 (largest, 1 and 10)",
    experiment=Experiment(
        measure=channel_inversion.MEASURE,
        sweeps={
            "small": Sweep(
                REMOVED_CELLS,
                note="LeNet (Zhu) at its initial weights, 4 images a seed at batch 1 with known label; the client has "
                "500 images and their covariance. Pixels are not normalised: eigenvalues are smaller than the paper's "
                "and stand to each other alike.",
            ),
            "paper": Sweep(
                tuple({**cell, "model": "lenet", **PATIENT} for cell in REMOVED_CELLS),
                note="As small, on LeNet, with 10 images a seed; CIFAR-10 only.",
            ),
        },
        keys=("removed",),
        series="attack",
        metrics=(
            Column("mse", "MSE", 4),
            Column("noise", "MSE of what was trained on", 4),
            Column("psnr", "PSNR in dB", 1),
            Column("ssim", "SSIM", 2),
            Column("eigenvalue", "eigenvalue", 2),
        ),
        plot=Plot(("mse", "ssim")),
        judge=judge_eigenvalue,
    ),
    remarks=(
        "The attack rebuilds what the model was trained on; leaving out a direction changes that image by `MSE of what "
        "was trained on`, and that is all the defense there is. An attacker who knows the data's covariance guesses "
        "the mean of what is missing.",
    ),
)
