"""DGP's claims on privacy: Tables 1, 2, 5, 6 and 7 of its paper, declared on small models, and Table 1 as printed."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from prunella.benchmarks.engine.claim import Label, Plot, Point, Settings, Size, declared, numbers, paired, seeds_of
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND, Judgement, at_least, at_most, falls, positive, worst
from prunella.benchmarks.engine.views import NONE
from prunella.benchmarks.papers.defended import DEFENDED, TRAINING, behind, inverting, training

UNRECOGNISED = 0.5
LEAD = 0.005  # of accuracy, over Top-k: the published leads are 0.004 to 0.056
LOST, SMALLEST = 0.02, 0.02  # of accuracy; the smallest effect on SSIM that matters

# Table 1, SSIM on ResNet18. ATS here is the paper's ATS-T, the likeness to the image before the transformation.
TABLE_1 = """
                 r-gap ig    gradinversion rob
none             0.965 0.954 0.918         0.933
ats              0.870 0.566 0.563         0.514
soteria          0.252 0.368 0.362         0.933
precode          -     0.257 0.247         0.929
gaussian         0.259 0.333 0.305         0.899
top-k            0.249 0.769 0.697         0.038
outpost          0.250 0.640 0.612         0.221
dgp              0.248 0.287 0.199         0.051
"""
DEFENSES = (NONE, "ats", "soteria", "precode", "gaussian", "top-k", "outpost", "dgp")
ATTACKS: dict[str, Settings] = {
    "ig": inverting("cnn", "ig", 2, 1, 100),
    "gradinversion": inverting("cnn", "gradinversion", 2, 1, 150),
    "r-gap": inverting("cnn6", "r-gap", 2),
    "rob": inverting("prunella.attacks.rob:cnn", "rob", 8, 8),
}
FOUR = tuple(ATTACKS)
# What is known to break a defense that the paper's four attacks do not break here (docs/defenses.md, attacks/rob.py).
AMPLIFIED = "rob, amplified"
BREAKS = {"precode": "representation", "gaussian": AMPLIFIED, "dgp": "portfolio"}
BREAKING: dict[str, Settings] = {
    "portfolio": inverting("cnn", "portfolio", 8),
    "representation": inverting("cnn", "representation", 2, 1, 100),
    AMPLIFIED: {**inverting("prunella.attacks.rob:amplified_cnn", "rob", 8, 8), "named": AMPLIFIED},
}
PAPER_ATTACKS: dict[str, Settings] = {
    **{name: inverting("resnet18", name, 7, 1, 2500) for name in ("ig", "gradinversion")},
    "r-gap": inverting("cnn6", "r-gap", 7),
    "rob": inverting("prunella.attacks.rob:resnet18", "rob", 9, 9),
}
PAPER_BREAKING: dict[str, Settings] = {
    "portfolio": inverting("resnet18", "portfolio", 7),
    "representation": inverting("resnet18", "representation", 7, 1, 2500),
    AMPLIFIED: {**inverting("prunella.attacks.rob:amplified_resnet18", "rob", 9, 9), "named": AMPLIFIED},
}
SEEDS = (0, 1, 2, 3, 4)
CANNOT = {("precode", "r-gap"), ("precode", "rob")}
SMALL = training("cnn", rounds=10, learning_rate=0.1)
EPOCHS = """10 clients, 100 epochs of batches of 32, one step a round; learning rate 0.1 for LeNet (Zhu) and 0.01 for
the others. The paper lowers the rate twice and has momentum, which starts anew in every round here: neither is set."""
PRIVACY = "7 images a seed, 2500 iterations; Rob: one batch of 9."
SCORES = "psnr 1 PSNR in dB; rebuilt 2 images from 20 dB"


def epochs_100(model: str) -> Settings:
    """The paper's training: see ``EPOCHS``."""
    rate = 0.1 if model == "lenet-zhu" else 0.01
    return training(model, clients=10, rounds=15_600, local_steps=1, batch_size=32, learning_rate=rate)


def table_1(
    attacks: Mapping[str, Settings], breaking: Mapping[str, Settings], federation: Settings
) -> tuple[Settings, ...]:
    """Every defense under every attack that can look at it on CIFAR-10 and what breaks it, and in one federation."""
    found = []
    for defense in DEFENSES:
        looked = [cell for name, cell in attacks.items() if (defense, name) not in CANNOT]
        looked += [breaking[BREAKS[defense]]] if defense in BREAKS else []
        found += [behind(cell, "cifar10", defense) for cell in looked]
        found += [behind(federation, federation["dataset"], defense)]
    return tuple(found)


def resisted(ssim: Mapping[Label, Sequence[float]], attacks: Sequence[str] = ()) -> Judgement:
    """DGP stays under an SSIM of ``UNRECOGNISED`` under all of these attacks, every other defense not at its worst."""
    rows: dict[str, dict[str, Sequence[float]]] = {}
    for (name, attack), seeds in ssim.items():
        if attack in attacks or not attacks:
            rows.setdefault(name, {})[attack] = seeds
    own = {f"dgp under {attack}": seeds for attack, seeds in rows.pop("dgp").items()}
    rows.pop(NONE)
    beaten = {}
    for name, row in rows.items():
        attack = max(row, key=lambda each, row=row: fmean(row[each]))  # type: ignore[misc]
        beaten[f"{name} under {attack}"] = [value - UNRECOGNISED for value in row[attack]]
    return worst([at_most(own, UNRECOGNISED, "SSIM"), positive(beaten, f"SSIM above {UNRECOGNISED} at its worst")])


def judge_table_1(points: Sequence[Point]) -> Judgement:
    """A defense resists an attack that stays under an SSIM of ``UNRECOGNISED``, where the paper's words and numbers
    agree for every defense of its table. DGP resists every attack at the accuracy of none, every other fails one. The
    attacks are the paper's four and what ``BREAKS`` a defense; the same words of the four alone are told, not judged.
    """
    ssim, accuracy = seeds_of(points, "ssim"), {p.label[0]: p for p in points if p.label[1] == TRAINING}
    sides = {"dgp": list(zip(accuracy["dgp"].values["accuracy"], accuracy[NONE].values["accuracy"], strict=True))}
    four = resisted(ssim, FOUR)
    told = f"under the paper's four attacks alone, not judged, privacy {four.word}: {four.reason}"
    kept = at_least(sides, "accuracy, dgp over none", -LOST)
    return worst([resisted(ssim), kept, Judgement(HOLDS, told)])


def shares(total: float, ratio: float) -> dict[str, float]:
    """k1 and k2 from their sum and p = k1 / k2.

    >>> {name: round(share, 3) for name, share in shares(0.8, 1 / 15).items()}
    {'dgp.top': 0.05, 'dgp.bottom': 0.75}
    """
    return {"dgp.top": round(total * ratio / (1 + ratio), 6), "dgp.bottom": round(total / (1 + ratio), 6)}


TOTALS, RATIOS = (0.48, 0.8, 0.96), (1 / 15, 1 / 7, 1 / 3)


def table_2(size: Size) -> tuple[Settings, ...]:
    """k1 + k2 at p = 1/15 under Rob, p at 80 % under IG, and a federation each."""
    attacks, trained, images = PAPER_ATTACKS, epochs_100("resnet18"), "cifar10"
    if size == "small":
        attacks = {"rob": {**ATTACKS["rob"], "images": 16}, "ig": {**ATTACKS["ig"], "images": 4}}
        trained, images = SMALL, "digits"
    chosen = [("k1 + k2", total, shares(total, 1 / 15), "rob") for total in TOTALS]
    chosen += [("p", round(ratio, 3), shares(0.8, ratio), "ig") for ratio in RATIOS]
    found = []
    for swept, value, raw, attack in chosen:
        both = behind(attacks[attack], "cifar10", "dgp", raw), behind(trained, images, "dgp", raw)
        found += [{**cell, "swept": swept, "value": value} for cell in both]
    return tuple(found)


def judge_table_2(points: Sequence[Point]) -> Judgement:
    """SSIM falls with k1 + k2 under Rob and with p under IG. Accuracy is reported and not judged: the published
    differences are half a point, which a federation of this size does not resolve."""
    parts = []
    for swept, attack in (("k1 + k2", "rob"), ("p", "ig")):
        mine = [p for p in points if p.label[0] == swept and p.label[2] == attack]
        parts.append(falls({attack: [(float(p.label[1]), p.values["ssim"]) for p in mine]}, "SSIM", SMALLEST))
    for swept in ("k1 + k2", "p"):
        runs = [p for p in points if p.label[0] == swept and p.label[2] == TRAINING]
        means = ", ".join(f"{p.mean('accuracy'):.3f}" for p in runs)
        parts.append(Judgement(HOLDS, f"accuracy over {swept}, not judged: {means}"))
    return worst(parts)


def table_5(size: Size) -> tuple[Settings, ...]:
    """With and without DGP on CIFAR-10: Rob on two models and IG on one; at the paper's size on three and four."""
    small = size == "small"
    robbed = ("lenet-zhu", "resnet18") if small else ("cnn6", "lenet-zhu", "resnet18")
    many = 8 if small else 9
    cells = [(n, inverting(f"prunella.attacks.rob:{n.replace('-', '_')}", "rob", many, many)) for n in robbed]
    if small:
        cells += [("lenet-zhu", {**inverting("lenet-zhu", "ig", 2, 1, 1200), "tolerance": 1e-9})]
    else:
        cells += [(name, inverting(name, "ig", 7, 1, 2500)) for name in (*robbed, "vgg11-bn")]
    return tuple(
        {**behind(cell, "cifar10", defense), "architecture": name} for name, cell in cells for defense in (NONE, "dgp")
    )


# SSIM under Rob and IG, without a defense and behind DGP.
TABLE_5 = """
          rob/none rob/dgp ig/none ig/dgp
cnn6      0.9273   0.1335  0.7735  0.4375
resnet18  0.9328   0.0511  0.9539  0.2866
vgg11-bn  -        -       0.8084  0.3269
lenet-zhu 0.9293   0.2364  0.6745  0.3785
"""


def judge_table_5(points: Sequence[Point]) -> Judgement:
    """DGP lowers SSIM in every pair and leaves less than ``UNRECOGNISED``."""
    by = seeds_of(points, "ssim")
    sides = {f"{n}, {a}": ((n, NONE, a), (n, "dgp", a)) for n, defense, a in by if defense == "dgp"}
    left = {name: by[own] for name, (_, own) in sides.items()}
    lower = at_least(paired(by, sides), "SSIM taken away", SMALLEST)
    return worst([lower, at_most(left, UNRECOGNISED, "SSIM behind DGP")])


D1 = declared(
    f"""D1 | DGP | Table 1 | DGP resists IG, GI, R-GAP and Rob at the accuracy of no defense; every other defense fails
    one of them
    published: ResNet18, SSIM in the table; accuracy 93.62 % undefended, DGP 93.40 %, Precode 76.01 %
    small: CIFAR-10 at batch 1, untrained weights, known labels: `cnn` (IG, 100 iterations; GradInversion, 150;
    `representation`) in place of ResNet18, 2 images a seed; the portfolio at its own cost, 8 images; R-GAP on CNN6, as
    printed, 2 images a seed; Rob's imprint before `cnn`, 8 images in one batch for the paper's 9. Accuracy: `cnn` on
    the digits, 4 clients, 10 rounds of 10 steps. R-GAP cannot invert Precode's bottleneck, and there is no imprint
    module before a Precode model: those two are left out. DP is Gaussian noise of 0.01.
    paper: ResNet18 on CIFAR-10, R-GAP on CNN6. {PRIVACY} {EPOCHS}
    * Every defense is judged by what is strongest against it, the paper's four attacks or one that knows it: the
    portfolio of a run's audits, whose descents compare only where values arrived, `representation` reads the input of
    Precode's bottleneck off its gradient.
    * Gaussian noise under Rob has an SSIM of 0.016 where 0.899 is published. It is the scale of our module: that of
    `{AMPLIFIED}` has encode 2^20 times smaller and decode larger by as much, which is the same function bit by bit, but
    encode's gradient is 2^20 times as large. The noise is to it what a deviation of 1e-8 is to ours. Rob's authors
    scale theirs alike (`attacks/rob.py`).
    * Rob is the paper's module here. A server that plants one whose rows choose their size reads images through DGP
    and Top-k as well (the table `planted`).
    * Outpost equals Top-k under IG, where 0.640 and 0.769 are published: its noise has 0.8 times the variance of the
    layer's weights for its deviation, which for `cnn` as drawn is 0.014, 0.006 and 2e-5. With weights from U(-1/2,
    1/2), an option of its authors' code, it is 0.067 everywhere. DGP's paper does not say how its weights were drawn.
    Outpost's own paper is not among this project's: what it does was read from that code (`privacy/outpost.py`).
    * SSIM is against the client's image, also for ATS, whose own (ATS-T) stands under none of the paper's transformed
    images; `SSIM to what was trained on` is against the transformed one. Where an attack gave no answer a grey image
    stands in: `answered` is the share that it gave. R-GAP's search ends at the first perturbation of any kind.
    * A table of three seeds had SGI, 100 iterations, on 2 images in place of the portfolio: SSIM 0.97, 0.86 and 0.90
    behind DGP, and by three seeds that was undecided. All but that row is the same table with two seeds more.
    * In a first table R-GAP had 1 image a seed, and its control failed: it does not rebuild the first of seed 0
    undefended (16 dB; the next two seeds' at 67 and 68), so that the table was not judged. All that was changed then is
    the number of its images.""",
    DEFENDED,
    "defenses: attack",
    f"ssim 3 SSIM; {SCORES}; ssim_shown 2 SSIM to what was trained on; answered 2 answered; accuracy 3 accuracy",
    Plot(("ssim",)),
    judge_table_1,
    table_1(ATTACKS, BREAKING, {**SMALL, "dataset": "digits"}),
    table_1(PAPER_ATTACKS, PAPER_BREAKING, {**epochs_100("resnet18"), "dataset": "cifar10"}),
    {"ssim": numbers(TABLE_1)},
    SEEDS,
)
SSIM_2: dict[Label, float] = {
    ("k1 + k2", str(total), "rob"): ssim for total, ssim in zip(TOTALS, (0.146, 0.051, 0.029), strict=True)
}
SSIM_2 |= {("p", f"{ratio:.3f}", "ig"): ssim for ratio, ssim in zip(RATIOS, (0.287, 0.250, 0.234), strict=True)}
D2 = declared(
    f"""D2 | DGP | Table 2 | more pruned (k1 + k2) resists Rob better, a larger k1 / k2 resists IG better; both cost
    accuracy
    published: SSIM in the table; accuracy 93.42, 93.40, 92.91 % over k1 + k2 and 93.40, 93.21, 92.82 % over p
    small: k1 + k2 at p = 1/15, p = k1 / k2 at 80 %. CIFAR-10 under the attacks: Rob's imprint before `cnn`, 16 images
    a seed in batches of 8; IG on `cnn`, untrained, 4 images, 100 iterations. Accuracy: `cnn` on the digits, 4 clients,
    10 rounds of 10 steps.
    paper: ResNet18 on CIFAR-10. {PRIVACY} {EPOCHS}
    * Where Rob gives no image a grey one stands in (`answered` is the share that it gave), and a grey image is liker
    to a photograph than a wrong one: SSIM alone hides that Rob finds less and less.
    * Three seeds left all parts undecided; two were added, and nothing else was changed.""",
    DEFENDED,
    "swept value: attack",
    f"ssim 3 SSIM; {SCORES}; answered 2 answered; accuracy 3 accuracy",
    Plot(("ssim", "accuracy"), x=1, x_name="value", split=0, apart=("value",)),
    judge_table_2,
    table_2("small"),
    table_2("paper"),
    {"ssim": SSIM_2},
    SEEDS,
)
D6 = declared(
    f"""D6 | DGP | Table 5 | DGP lowers SSIM under Rob for two models and under IG for one, on CIFAR-10
    published: CIFAR-10, SSIM with and without DGP: under Rob CNN6 0.9273 and 0.1335, VGG11 0.9328 and 0.0464; under IG
    CNN6 0.7735 and 0.4375, ResNet18 0.9539 and 0.2866, VGG11 0.8084 and 0.3269; the others in the table; CIFAR-100
    alike
    small: CIFAR-10, untrained weights, known labels. Rob: one batch of 8 images; IG: LeNet (Zhu) only, 2 images, 1200
    iterations of L-BFGS on the Euclidean distance to a tolerance of 1e-9. Neither attack rebuilds undefended images on
    CNN6 here, and IG on ResNet18 and VGG11 does not fit two cores; CIFAR-100 is left out.
    dropped: CNN6 under Rob and under IG, whose controls failed
    paper: CIFAR-10; no imprint module stands before VGG11. {PRIVACY}
    * At the paper's size IG was tried on ResNet18 only, on an H200 (7 images of seed 0, at most 2500 iterations):
    undefended 7 dB and an SSIM of 0.00, where 0.954 is published. After 130 to 650 iterations nothing had improved for
    200. A control that fails; that table was not made.
    * A first table had CNN6 under Rob, and IG with 400 iterations. It was not judged: undefended, Rob reached 14 dB on
    CNN6 and IG 19.5 dB at one seed. CNN6 was taken out and IG given more iterations, until the control alone
    succeeded; what stands behind DGP had been seen (SSIM 0.02 to 0.12).""",
    DEFENDED,
    "architecture defenses: attack",
    f"ssim 3 SSIM; {SCORES}; answered 2 answered",
    Plot(("ssim",)),
    judge_table_5,
    table_5("small"),
    table_5("paper"),
    {"ssim": {(model, *pair.split("/")[::-1]): ssim for (model, pair), ssim in numbers(TABLE_5).items()}},
)

# Table 7: against a Top-k that prunes as much as privacy asks for.
CHAINS: dict[str, Settings] = {"dgp": {}, "top-k": {"top-k.keep": 0.05}}
FEDERATIONS = {"digits": SMALL, "mnist": training("cnn", rounds=10, learning_rate=0.05)}
# Accuracy on CIFAR-100: Top-k 95 %, DGP 80 %.
TABLE_7 = """
          top-k  dgp
resnet18  0.7368 0.7404
lenet-zhu 0.2675 0.3242
cnn6      0.4519 0.4724
vgg11-bn  0.6807 0.6860
"""
PUBLISHED: dict[Label, float] = {("cifar100", *point, TRAINING): value for point, value in numbers(TABLE_7).items()}


def small() -> tuple[Settings, ...]:
    """Both chains: a federation on every dataset, and D1's attacks on CIFAR-10, the portfolio among them."""
    runs, attacks = FEDERATIONS.items(), (*ATTACKS.values(), BREAKING["portfolio"])
    federations = [behind(cell, dataset, chain, raw) for dataset, cell in runs for chain, raw in CHAINS.items()]
    return (*federations, *(behind(cell, "cifar10", c, raw) for c, raw in CHAINS.items() for cell in attacks))


def paper() -> tuple[Settings, ...]:
    models = dict.fromkeys(model for _, model, *_ in PUBLISHED)
    return tuple(behind(epochs_100(m), "cifar100", c, raw) for m in models for c, raw in CHAINS.items())


def judge_accuracy(points: Sequence[Point]) -> Judgement:
    """D7: DGP at 80 % is more accurate than Top-k at 95 % everywhere; and where attacks were run,
    privacy is alike: both let one reach an SSIM of ``UNRECOGNISED``, or neither does; in trend, Top-k alone does."""
    accuracy = seeds_of([p for p in points if p.label[-1] == TRAINING], "accuracy")
    sides = {f"{d}, {m}": ((d, m, chain, t), (d, m, "top-k", t)) for d, m, chain, t in accuracy if chain == "dgp"}
    parts = [at_least(paired(accuracy, sides), "accuracy, DGP 80 % over Top-k 95 %", LEAD)]
    attacked = [p for p in points if p.label[-1] != TRAINING]
    rebuilt = {c: [p.label[-1] for p in attacked if p.label[2] == c and p.mean("ssim") >= UNRECOGNISED] for c in CHAINS}
    if attacked:
        alike = bool(rebuilt["dgp"]) == bool(rebuilt["top-k"])
        word = HOLDS if alike else NOT if rebuilt["dgp"] else TREND
        named = ", ".join(f"{chain} {' and '.join(names) or 'none'}" for chain, names in rebuilt.items())
        said = f"privacy is {'alike' if alike else 'not alike'}: attacks that reach an SSIM of {UNRECOGNISED}: {named}"
        parts.append(Judgement(word, said))
    return worst(parts)


D7 = declared(
    f"""D7 | DGP | Table 7 | at like privacy, DGP 80 % is more accurate than Top-k 95 %
    published: CIFAR-100, Top-k/DGP: ResNet18 73.68/74.04 %, LeNet (Zhu) 26.75/32.42 %, CNN6 45.19/47.24 %, VGG11
    68.07/68.60 %
    small: `cnn` on the digits and MNIST in place of four models on CIFAR-100; 4 clients, 10 rounds of 10 steps, error
    feedback on in both. Privacy: the attacks of D1 on CIFAR-10, untrained weights, 2 images a seed (Rob
    and the portfolio: 8).
    paper: CIFAR-100, from the hub or a local copy. {EPOCHS}
    * `attack` is `training` where a row is a federation.
    * A first table had CIFAR-10 in place of MNIST. There nothing was learned, with a defense or without one (0.10
    after these 100 steps), so that no accuracies could be compared; the rest of that table is this one's.""",
    DEFENDED,
    "dataset model defenses: attack",
    "accuracy 3 accuracy; ssim 3 SSIM; psnr 1 PSNR in dB",
    Plot(("accuracy", "ssim")),
    judge_accuracy,
    small(),
    paper(),
    {"accuracy": PUBLISHED},
)
