"""Fed-LTP less one part at a time (LTP 6.4): L4, from the cells of ``benchmarks.papers.private``."""

from collections.abc import Sequence

from prunella.benchmarks.engine.claim import Claim, Column, Experiment, Measure, Plot, Point, Settings, Sweep
from prunella.benchmarks.engine.rules import Judgement, at_least, at_most, worst
from prunella.benchmarks.papers.private import private_training

PAPER = "Fed-LTP"
TRAINING = Measure("private-training", private_training)
NO_TICKET = "fed-ltp, no ticket"
VARIANTS = ("fed-ltp, one-shot", "fed-ltp, iterative")
VALIDATED = tuple(f"{variant}, validated" for variant in VARIANTS)
PARTITIONS = ("iid", "dirichlet")


def ablations(common: Settings) -> tuple[Settings, ...]:
    """Both variants and no ticket on both partitions, both variants with validation where clients are alike."""
    whole = [(method, partition) for partition in PARTITIONS for method in (NO_TICKET, *VARIANTS)]
    return tuple({**common, "method": m, "partition": p} for m, p in (*whole, *((m, "iid") for m in VALIDATED)))


def judge_ablations(points: Sequence[Point]) -> Judgement:
    """L4. Fig. 6: the best accuracy with a ticket is not under that without, both variants and partitions. Fig. 7: the
    round that validation picks is not worse than the last. Fig. 9: epsilon of the same steps is lower than by advanced
    composition. Seeds in pairs. Fig. 8 is not measured."""
    by = {point.label: point.values for point in points}
    ticket = {
        f"{variant}, {partition}": list(
            zip(by[variant, partition]["best"], by[NO_TICKET, partition]["best"], strict=True)
        )
        for variant in VARIANTS
        for partition in PARTITIONS
    }
    picked = {
        method: list(zip(by[method, "iid"]["picked"], by[method, "iid"]["last"], strict=True)) for method in VALIDATED
    }
    ratios = {method: sum(by[method, "iid"]["trained"]) / sum(by[method, "iid"]["composed"]) for method in VALIDATED}
    return worst(
        [
            at_least(ticket, "best accuracy, with a ticket over without"),
            at_least(picked, "accuracy of the round that noisy validation picks over the last"),
            at_most(ratios, 1.0, "epsilon by moments over advanced composition"),
        ]
    )


def ablation(small: Settings, paper: Settings) -> Claim:
    """L4 at the settings of L1 and L2."""
    return Claim(
        name="L4",
        paper=PAPER,
        where="Figs. 6 to 9",
        says="the ticket, the Laplace validation, broadcasting by the server and zCDP accounting each help",
        published="figures; the text: the ticket gives about 5 % and 1 % (iterative, IID and non-IID), 5 % and 4 % "
        "(one-shot)",
        experiment=Experiment(
            measure=TRAINING,
            sweeps={
                "small": Sweep(
                    ablations(small),
                    note="The cells of L1, and three more: no ticket (the dense network, trained alike), and both "
                    "variants with validation, whose clients hold back a fifth of their images for it; Laplace noise "
                    "of 10 images a client, which the paper does not print.",
                ),
                "paper": Sweep(ablations(paper), note="Public examples are a quarter of Fashion-MNIST's test set."),
            },
            keys=("method",),
            series="partition",
            metrics=(
                Column("best", "best accuracy", 3),
                Column("last", "last accuracy", 3),
                Column("picked", "accuracy of the picked round", 3),
                Column("epsilon", "epsilon, validation included", 3),
                Column("trained", "epsilon of training", 3),
                Column("composed", "by advanced composition", 2),
            ),
            plot=Plot(("best", "last"), split=1),
            judge=judge_ablations,
        ),
        remarks=(
            "Fig. 8, tickets made or chosen by clients, is not measured: a mask found on private images is not covered "
            "by the noise on gradients, and this project refuses LotteryFL under a defense that has an epsilon.",
            "What the paper calls zCDP is the moments accountant of its Eq. (20), with amplification by sampling. What "
            "it is compared with is not printed; here it is advanced composition of the sampled steps.",
            "All clients answer a validation, also those that did not train in that round; every answer is charged.",
        ),
    )
