"""What the channel paper claims: Defending Against Data Reconstruction Attacks, an information theory view (CHN)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from prunella.benchmarks.engine.claim import Label, Plot, Point, Settings, curves, declared, paired, seeds_of
from prunella.benchmarks.engine.rules import HOLDS, Judgement, at_least, at_most, falls, positive, worst
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.channel_denoised import C3, KAPPAS, LEAST
from prunella.benchmarks.papers.channel_inversion import BATCHED, CHANNELS, MEASURE, OPACUS, TIMED
from prunella.benchmarks.papers.plane import MEMBERSHIP, NATURAL
from prunella.benchmarks.papers.priprune_defense import EQUAL
from prunella.benchmarks.papers.priprune_defense import SMALL as TRADED
from prunella.benchmarks.papers.scheme_inversion import DENSE
from prunella.benchmarks.papers.tradeoff import TRADEOFF
from prunella.privacy.ledger.bounds import dp_capacity

PRIVATE = ("dp-sgd", "dp-psac")
# What the paper does not print, clients, learning rate and images a seed, is ours.
PATIENT: Settings = {"images": 10, "iterations": 4800}
LENET: Settings = {**TRADED, **PATIENT, "dataset": "cifar10", "model": "lenet"}
LENET |= {"rounds": 10_000, "local_steps": 1, "batch_size": 64}
LENET_NOTE = """LeNet on CIFAR-10, 10,000 steps of batches of 64; 4 clients, a learning rate of 0.05 and 10 images a
seed, which the paper does not print."""

INVERSION: Settings = {"dataset": "cifar10", "model": "lenet-zhu", "clients": 40, "images": 2, "iterations": 300}

# Table 2: training time over plain SGD's. The paper does not say which channel "Ours" is.
TABLE_2: dict[Label, float] = {
    **{("lenet", NATURAL): 1.1043, ("resnet10", NATURAL): 1.0433},
    **{("lenet", OPACUS): 1.5716, ("resnet10", OPACUS): 2.2385},
}
CHANNEL_MOST, PRIVATE_LEAST = 1.1043, 1.5716
POINT = 0.01  # the smallest effect that matters, on accuracy and on improvements, which are shares


def judge_time(points: Sequence[Point]) -> Judgement:
    """C5: every channel at most +10.43 %, Opacus at least +57.16 %, the paper's extremes."""
    ratios = seeds_of(points, "ratio")
    channels = {"/".join(label): seeds for label, seeds in ratios.items() if label[1] in CHANNELS}
    private = {label[0]: [r - PRIVATE_LEAST for r in seeds] for label, seeds in ratios.items() if label[1] == OPACUS}
    dear = at_most(channels, CHANNEL_MOST, "a channel's time over plain SGD's")
    return worst([dear, positive(private, f"DP-SGD's time above {PRIVATE_LEAST} of plain SGD's")])


C5 = declared(
    """C5 | Channel | Table 2 | a channel adds 4 to 10 % to training time, DP-SGD 57 to 485 %
    published: over SGD: LeNet +10.43 and +57.16 %, ResNet10 +4.33 and +123.85 %, AlexNet +8.52 and +173.66 %, VGG16
    +5.38 and +485.00 %
    small: LeNet and ResNet10 on a processor, one thread, batches of 64 random images; the paper times 25 epochs of
    four models on a GPU.
    * Ratios are medians over turns in which every arm runs once, in processor time of one thread; the spread is over
    three such runs.
    * The paper does not say which channel it timed; its number stands beside Natural. DP-SGD is Opacus'; this
    project's own, `dp-sgd (ours)`, is timed where the model has no batch norm, on batches of one size: on Poisson
    batches, which a run has under an ε, it costs more than Opacus (docs/defenses.md).""",
    TIMED,
    "model: defense",
    "ratio 3 time over plain SGD; milliseconds 1 ms a step; fit_seconds 2 s to fit, once",
    Plot(("ratio",), split=0),
    judge_time,
    ({"model": m, "steps": s, "repeat": r} for m, s, r in (("lenet", 4, 7), ("resnet10", 1, 3))),
    ({"model": m, "steps": 8, "repeat": 5} for m in ("lenet", "resnet10", "alexnet", "vgg16")),
    {"ratio": TABLE_2},
)


def kappa_cells(common: Settings) -> tuple[Settings, ...]:
    """Federations behind the Natural channel at every kappa, and without one."""
    dense = {**common, "scheme": DENSE, "rate": 0.0, "arm": "natural"}
    behind: list[Settings] = [
        {"defenses": NATURAL, "options": {f"{NATURAL}.kappa": float(k)}, "kappa": k} for k in KAPPAS
    ]
    return tuple({**dense, **one} for one in (*behind, {"defenses": NONE, "options": {}, "kappa": NONE}))


KAPPA_CELLS, PAPER_CELLS = kappa_cells(TRADED), kappa_cells(LENET)
KAPPA_SHOWN = "accuracy 3 accuracy; mse_strongest 4 MSE, better attack; psnr_strongest 1 PSNR, better attack, dB; "
KAPPA_SHOWN += "nmi_strongest 3 NMI, better attack; nmi_random 3 NMI of noise"


def grows_and_leaks(points: Sequence[Point], down: str, over: str) -> Judgement:
    """Over the first entry of the label accuracy grows and MSE of the better attack falls."""
    rows = [point for point in points if point.label[0] != NONE]
    grows = curves(rows, "accuracy", 0, lambda _: "accuracy", -1.0)
    leaks = curves(rows, "mse_strongest", 0, lambda _: "MSE")
    return worst([falls(grows, f"from the {down} down, accuracy", POINT), falls(leaks, f"over {over}, MSE", LEAST)])


def judge_kappa(points: Sequence[Point]) -> Judgement:
    """C1: over kappa accuracy grows and MSE of the better attack falls."""
    return grows_and_leaks(points, "largest kappa", "kappa")


C1 = declared(
    f"""C1 | Channel | Figs. 9 to 11 | accuracy grows with the capacity kappa and so does the leak
    published: figures; kappa 50, 100, 200, 300
    small: MNIST, a CNN of 108,282 weights, the Natural channel, 4 clients, 6 rounds of 10 steps; 2 images a seed at
    batch 1 with known labels, attacked after the last round.
    paper: {LENET_NOTE}
    * kappa bounds what one step tells about one image, in nats. An MNIST image has 784 pixels, most of them constant,
    where the paper's have 3072: the same kappa asks for less noise here.""",
    TRADEOFF,
    "kappa: channel",
    KAPPA_SHOWN,
    Plot(("mse_strongest",), over="accuracy"),
    judge_kappa,
    KAPPA_CELLS,
    PAPER_CELLS,
)
ROUNDS = (3, 6, 12, 18)  # of ten steps: as 1667, 3333, 6667 and 10,000 relate
PAPER_ROUNDS = (1666, 3333, 6666, 10_000)  # of one step
AT = KAPPAS.index(300)


def judge_rounds(points: Sequence[Point]) -> Judgement:
    """C2: over n accuracy grows and MSE of the better attack falls."""
    return grows_and_leaks(points, "most rounds", "n")


C2 = declared(
    f"""C2 | Channel | Figs. 12 and 13 | more optimization rounds n mean more accuracy and less defense
    published: figures; TotalInfo 5e5, 1e6, 2e6, 3e6 at kappa 300: n of 1667, 3333, 6667 and 10,000
    small: The federations of C1 at kappa 300 for 3, 6, 12 and 18 rounds of 10 steps: n of 30 to 180, which stand to
    each other as the paper's.
    paper: {LENET_NOTE}
    * The attack looks at one update, the next after n steps. What adds up over n by the paper's theory, n kappa, is a
    bound on all updates together, which an attack on one of them does not use.
    * The paper's figure may be of model inversion. On these federations that attack ends further from the class
    centres than the mean image it starts from, without any defense (0.039 against 0.013 after 6 rounds, seeds 0 to 2):
    nothing could be concluded from its failing behind a channel.""",
    TRADEOFF,
    "rounds: channel",
    KAPPA_SHOWN,
    Plot(("accuracy", "mse_strongest"), x=0, x_name="rounds of 10 steps"),
    judge_rounds,
    ({**KAPPA_CELLS[AT], "rounds": n} for n in ROUNDS),
    ({**PAPER_CELLS[AT], "rounds": n} for n in PAPER_ROUNDS),
)

PAPER_NOISES = (0.8, 0.57, 0.46, 0.2066)
PRINTED_NATS = tuple(
    ", ".join(f"{dp_capacity(1.0, noise**2, 64, as_printed=printed):.0f}" for noise in PAPER_NOISES)
    for printed in (True, False)
)
CAPACITIES = (
    "Theorem 4 as printed turns noise multipliers {} at clip 1 and a batch of 64 into {} nats, and the paper holds "
    "them against kappas of 100, 200, 300 and 1500. Its proof drops a factor of 1/2: they let {} nats through at most, "
    "and DP stands against channels of twice its capacity (`privacy/ledger/bounds.py`)."
).format(", ".join(map(str, PAPER_NOISES)), *PRINTED_NATS)
PLANE: Settings = {**TRADED, "scheme": DENSE, "rate": 0.0, "rounds": 30, "examples": 64}


def plane(
    common: Settings, kappas: Sequence[int], others: Sequence[int], capacities: Sequence[int], private: Sequence[str]
) -> tuple[Settings, ...]:
    """Dense federations without a defense, behind the channels at so many nats (``others``: White and Personalized),
    and under DP of clip 1 of so many nats by Theorem 4 as printed."""
    dense = {**common, "scheme": DENSE, "rate": 0.0}
    arms: list[tuple[str, Any, Mapping[str, Any]]] = [(NONE, NONE, {})]
    for name in CHANNELS:
        arms += [(name, k, {f"{name}.kappa": float(k)}) for k in (kappas if name == NATURAL else others)]
    for name in private:
        for nats in capacities:
            noise = round(math.sqrt(common["batch_size"] / nats), 4)
            arms += [(name, nats, {f"{name}.clip": 1.0, f"{name}.noise-multiplier": noise})]
    return tuple({**dense, "defenses": arm, "options": raw, "strength": n, "arm": arm} for arm, n, raw in arms)


PAIRS = (100, 200, 300)  # nats
WIDE: Settings = {**PLANE, "images": 10, "population": True}
PLANE_CELLS = plane(WIDE, PAIRS, PAIRS, PAIRS, PRIVATE)


def improvements(points: Sequence[Point], attack: str) -> tuple[dict[Label, list[float]], dict[Label, list[float]]]:
    """IMP_DRA under an attack and IMP_MIA, over no defense, seed by seed, by label."""
    plain = next(p for p in points if p.label[1] == NONE)

    def over(metric: str, gain: Callable[[float, float], float]) -> dict[Label, list[float]]:
        rows = {label: seeds for label, seeds in seeds_of(points, metric).items() if label != plain.label}
        return {label: list(map(gain, seeds, plain.values[metric])) for label, seeds in rows.items()}

    return over(f"mse_{attack}", lambda own, none: 1 - none / own), over("auc", lambda own, none: 1 - own / none)


def beside_private(labels: Iterable[Label]) -> dict[str, tuple[Label, Label]]:
    """A Natural channel and DP of the same nats, by what the pair is called."""
    there = set(labels)
    pairs = {f"{dp[1]} {dp[0]}": ((dp[0], NATURAL), dp) for dp in labels if dp[1] in PRIVATE}
    return {name: pair for name, pair in pairs.items() if pair[0] in there}


def judge_attack(points: Sequence[Point], attack: str) -> Judgement:
    """Fig. 15: at the same nats, by the paper's formulas, a Natural channel is as accurate as DP and has at least its
    GDC, the mean of the two improvements. Fig. 16: over all settings DP improves membership inference more than Natural
    does, Natural inversion more than DP."""
    inversion, members = improvements(points, attack)
    accuracy = seeds_of(points, "accuracy")
    gdc = {label: [sum(pair) / 2 for pair in zip(inversion[label], members[label], strict=True)] for label in inversion}
    natural, private = ([label for label in gdc if label[1] in names] for names in ((NATURAL,), PRIVATE))
    matched = beside_private(gdc)

    def mean(of: dict[Label, list[float]], labels: list[Label]) -> list[float]:
        return [fmean(row) for row in zip(*(of[label] for label in labels), strict=True)]

    split = {
        "membership, DP over Natural": list(zip(mean(members, private), mean(members, natural), strict=True)),
        "inversion, Natural over DP": list(zip(mean(inversion, natural), mean(inversion, private), strict=True)),
    }
    return worst(
        [
            at_least(paired(accuracy, matched), "accuracy, Natural over DP", -EQUAL),
            at_least(paired(gdc, matched), "GDC, Natural over DP", POINT),
            at_least(split, "improvement", POINT),
        ]
    )


INVERTED = "accuracy 3 accuracy; mse_strongest 4 MSE, strongest; psnr_strongest 1 PSNR, strongest, dB; psnr_denoised 1 "
INVERTED += "PSNR, denoised, dB; psnr_learnt 1 PSNR, learnt, dB; psnr_plain 1 PSNR, plain, dB"
STRONGEST = """`strongest` is whichever has the least error of IG (`plain`), of IG's picture behind a channel through a
linear denoiser (`denoised`) and corrected by a network (`learnt`), which both learn from 5000 public images, and of the
mean of the class, which needs no update."""


def judge_plane(points: Sequence[Point]) -> Judgement:
    """C4, under the strongest attack; the same words under the plain one are told, and not judged."""
    plain = judge_attack(points, "plain")
    told = Judgement(HOLDS, f"without denoising, not judged, {plain.word}: {plain.reason}")
    return worst([judge_attack(points, "strongest"), told])


C4 = declared(
    f"""C4 | Channel | Figs. 15 and 16 | the Natural channel has a better trade-off than DP-SGD and DP-PSAC, whose
    strength is membership inference
    published: figures; kappa 50 to 300, noise multipliers 0.8, 0.57, 0.46, 0.2066 at clip 1
    small: MNIST, a CNN of 108,282 weights in place of LeNet on CIFAR-10, 4 clients of 64 images each, 30 rounds of 10
    steps of 20: so few images that the undefended model gives its members away. Inversion: 10 images a seed at batch 1
    with known labels, after the last round. DP-SGD and DP-PSAC have the noise that Theorem 4 as printed gives as many
    nats as kappa, at batches of 20.
    paper: {LENET_NOTE}
    * kappa is of the population: the noise has the variance that lets kappa nats of an image through whose covariance
    is that of 5000 other images of all clients. Solved for a client's own 64 images, whose covariance has rank 63,
    kappa 300 was hardly any noise, 4.8 nats in each of 63 directions: that was an earlier table. The paper bounds what
    is told of images of the client's distribution, and does not say how many a client has. White's noise is so many
    times the variance in every direction, but a client of 64 images adds it in their 63 directions only.
    * {STRONGEST}
    * IMP_DRA is 1 - MSE without / MSE with a defense: where the undefended image comes back almost exactly, as here,
    it is near 1 for whatever disturbs the attack at all, and GDC tells defenses apart by membership alone.
    * At batch 1, which inversion looks at, DP-SGD's noise is 20 times that of a batch of 20 in the mean gradient: the
    equal capacities of channel and DP are for the batches they train on.
    * {CAPACITIES}
    * An AUC here has a standard error of about 0.02: 192 members against 1000 others. The table before, of 2 clients,
    16 rounds and one pair, was not judged: an undefended area of one seed was below 0.55. The length was chosen by the
    undefended areas alone (30 rounds: 0.658, 0.571, 0.649; 60: 0.683, 0.574, 0.654), before a defense was measured.""",
    MEMBERSHIP,
    "strength: defense",
    f"{INVERTED}; auc 3 AUC of membership",
    Plot(("mse_strongest", "auc"), x=0, x_name="accuracy", over="accuracy"),
    judge_plane,
    PLANE_CELLS,
    plane(
        {**LENET, "population": False, "examples": 5000},
        (50, 100, 200, 300),
        (500, 800, 1000, 1500),
        (100, 200, 300, 1500),
        PRIVATE,
    ),
)


def judge_many(points: Sequence[Point]) -> Judgement:
    """At the same nats, by the paper's formulas, a Natural channel is as accurate as DP and improves inversion more."""
    inversion, _ = improvements(points, "strongest")
    sides = beside_private(inversion)
    return worst(
        [
            at_least(paired(seeds_of(points, "accuracy"), sides), "accuracy, Natural over DP", -EQUAL),
            at_least(paired(inversion, sides), "improvement of inversion, Natural over DP", POINT),
        ]
    )


MATCHED = declared(
    f"""matched | Channel | Fig. 15 | on clients with more images than pixels the Natural channel is as accurate as
    DP-SGD and DP-PSAC of as many nats, and hides images better
    published: figures; kappa 50 to 300, noise multipliers 0.8, 0.57, 0.46, 0.2066 at clip 1
    small: [C4](C4.md) with 2 clients of 5000 images each, 30 rounds of 10 steps of 20; 10 images a seed at batch 1 with
    known labels, after the last round.
    * An MNIST image has 784 pixels: a client's 5000 images have a covariance of full rank but for pixels that are
    always black, and kappa is of the client's own images, as the paper has it. In C4, whose clients have 64 so that
    something is learnt by heart, it is of the population.
    * Membership is not inferred: each image is seen 1.2 times.
    * {STRONGEST}
    * Measured before with 4 clients, which have 3937 to 6940 images of this copy, so that 84 to 250 were left to learn
    the covariance from, 4000 today (1000 more are played in both): what is rebuilt behind channels was up to 4 dB
    lower, and the verdict "does not hold".
    * {CAPACITIES}""",
    MEMBERSHIP,
    "strength: defense",
    INVERTED,
    Plot(("mse_strongest",), x=0, x_name="accuracy", over="accuracy"),
    judge_many,
    plane(
        {**WIDE, "clients": 2, "examples": 5000, "population": False, "members": False}, PAIRS, PAIRS, PAIRS, PRIVATE
    ),
)

BATCHES, PAPER_BATCHES = (1, 16, 256), (1, 4, 16, 64, 256)
GRADIENTS: dict[str, Settings] = {
    NONE: {},
    "dp-sgd": {"dp-sgd.clip": 1.0, "dp-sgd.noise-multiplier": 1.3},
    "gaussian": {"gaussian.deviation": 0.001},
}


def batch_cells(common: Settings, batches: Sequence[int]) -> tuple[Settings, ...]:
    """Every defense of the gradient at every batch size."""
    arms = [{**common, "defense": name, "options": options} for name, options in GRADIENTS.items()]
    return tuple({**arm, "batch": batch} for arm in arms for batch in batches)


def judge_batch(points: Sequence[Point]) -> Judgement:
    """C6: over the batch the error falls under DP, grows under none and under constant noise, and grows more under
    constant noise than under none, from the smallest to the largest batch; seeds in pairs."""
    private, plain = ([p for p in points if (p.label[0] == "dp-sgd") is kind] for kind in (True, False))
    mse, (first, *_, last) = {label[:2]: seeds for label, seeds in seeds_of(points, "mse").items()}, map(str, BATCHES)
    rise = {(n,): [b - a for a, b in zip(mse[n, first], mse[n, last], strict=True)] for n in (NONE, "gaussian")}
    return worst(
        [
            falls(curves(private, "mse", 1), "MSE over the batch", LEAST),
            falls(curves(plain, "mse", 1, sign=-1.0), "MSE from the largest batch down", LEAST),
            at_least(paired(rise, {"gaussian over none": (("gaussian",), (NONE,))}), "rise of MSE", LEAST),
        ]
    )


C6 = declared(
    """C6 | Channel | Fig. 6 | a larger batch makes reconstruction harder without a defense and more so under constant
    noise, easier under DP-SGD
    published: a figure; no numbers
    small: CIFAR-10, LeNet (Zhu) at its initial weights, 2 batches a seed; one image with a soft label is rebuilt from
    the gradient of the batch and held against the mean of the batch, as in the paper's Appendix D. DP-SGD: clip 1,
    noise multiplier 1.3, as there; the constant noise, which is not printed, has a deviation of 0.001 on each
    coordinate.
    paper: As small, on LeNet, with 10 batches a seed.
    * The mean of many images is nearly flat: its likeness to what is rebuilt says little of any one of them. That a
    batch hides the single image is P2.""",
    BATCHED,
    "defense batch: attack",
    "mse 4 MSE to the mean of the batch; mse_flat 4 MSE of a flat grey image; psnr 1 PSNR in dB",
    Plot(("mse",), x=1, x_name="images a batch", split=0),
    judge_batch,
    batch_cells(INVERSION, BATCHES),
    batch_cells({**INVERSION, "model": "lenet", **PATIENT}, PAPER_BATCHES),
)

REMOVED = (0, 1, 10, NONE)
# ``channel`` and ``kappa`` are of the record: these cells were measured when they could have one.
REMOVED_CELLS = tuple({**INVERSION, "images": 4, "channel": NONE, "kappa": NONE, "removed": which} for which in REMOVED)


def judge_eigenvalue(points: Sequence[Point]) -> Judgement:
    """C7: the error falls from the direction of the largest eigenvalue to that of the 2nd, of the 11th, to none."""
    place = {str(direction): number for number, direction in enumerate(REMOVED)}
    rows = [(float(place[p.label[0]]), p.values["mse"]) for p in points]
    return falls({"ig": rows}, "from the largest eigenvalue down to none removed, MSE", LEAST)


C7 = declared(
    """C7 | Channel | Fig. 8 | leaving out the direction with the larger eigenvalue makes reconstruction harder
    published: a figure; no numbers; eigenvalues on CIFAR-10 222.21, 85.08 and 9.91 (largest, 1 and 10)
    small: LeNet (Zhu) at its initial weights, 4 images a seed at batch 1 with known label; the client has 500 images
    and their covariance. Pixels are not normalised: eigenvalues are smaller than the paper's and stand to each other
    alike.
    paper: As small, on LeNet, with 10 images a seed; CIFAR-10 only.
    * The attack rebuilds what the model was trained on; leaving out a direction changes that image by `MSE of what was
    trained on`, and that is all the defense there is. An attacker who knows the data's covariance guesses the mean of
    what is missing.""",
    MEASURE,
    "removed: attack",
    "mse 4 MSE; noise 4 MSE of what was trained on; psnr 1 PSNR in dB; ssim 2 SSIM; eigenvalue 2 eigenvalue",
    Plot(("mse", "ssim")),
    judge_eigenvalue,
    REMOVED_CELLS,
    ({**cell, "model": "lenet", **PATIENT} for cell in REMOVED_CELLS),
)
CLAIMS = (C1, C2, C3, C4, C5, C6, C7, MATCHED)
