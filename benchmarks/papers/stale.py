"""What an attack makes of a client that trains from weights of its own: X4.

Under pseudo-pruning and PriPrune a client keeps what it withheld and starts the next round from it (PRI 5.1, Alg. 3):
the server does not know the weights of the gradient it attacks, and a coordinate that is shared again carries what was
held back. The claims P6 to P8 score SGI, which takes the server's weights and a clean step. A cell is a federation
of ``benchmarks.papers.tradeoff`` and three attacks on what its server sees next of client 0:

sgi          as in those claims
expectation  the attack that is told of the defense and matches the gradient in the mean over weights the client may
             have trained from (``attacks.expectation``)
told         SGI by somebody who knows the client's weights and sees the clean step where it is shared: no server does,
             and what it rebuilds more than ``sgi`` is what the mismatch hides

The positive control is SGI on the dense federation without a defense.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.leakage import Leakage, score
from prunella.benchmarks.engine.claim import (
    Claim,
    Column,
    Experiment,
    Found,
    Measure,
    Plot,
    Point,
    Settings,
    Sweep,
    rebuilds,
)
from prunella.benchmarks.engine.images import drawn, means, part, place
from prunella.benchmarks.engine.rules import Judgement, at_least
from prunella.benchmarks.engine.views import Draw, Sender, attack_settings, draws, seen
from prunella.benchmarks.papers import tradeoff
from prunella.benchmarks.papers.priprune_defense import FIXED, PRIPRUNE, RATE, cell, fixed_cell
from prunella.core.randomness import stream
from prunella.core.trees import map_trees
from prunella.core.types import PrivateBatch
from prunella.privacy.chain import compose
from prunella.tasks.data import Examples, make_task

SGI, EXPECTATION, TOLD = "sgi", "expectation", "told"
ARMS = {SGI: SGI, EXPECTATION: EXPECTATION, TOLD: SGI}


def told(one: Sender, draw: Draw) -> Sender:
    """The same client as the server would see it if it had sent the weights that the client trains from."""
    start, _ = compose(one.procedure.chain, one.received.params, one.state, draw("defense"))
    state: Any = {
        name: {**trees, "held": map_trees(torch.zeros_like, trees["held"])} if "held" in trees else trees
        for name, trees in one.state.items()
    }
    return dataclasses.replace(one, received=dataclasses.replace(one.received, params=start), state=state)


def attacked(settings: Settings, one: Sender, own: Examples, seed: int) -> dict[str, list[Leakage]]:
    """Scores of every image, by attack; the images of the other claims."""
    found: dict[str, list[Leakage]] = {arm: [] for arm in ARMS}
    for number, index in enumerate(drawn(own, seed)[: settings["images"]].tolist()):
        private, draw = part(own, index), draws(seed, number)
        for arm, name in ARMS.items():
            view = seen(told(one, draw) if arm == TOLD else one, private, draw).view
            how = attack_settings(name, one.task.model, settings["iterations"])
            generator = stream(seed, round=number, purpose="claim-attack")
            rebuilt = ATTACKS[name].reconstruct(view, one.task, how, generator)
            found[arm].append(score(rebuilt, PrivateBatch(private.x, private.y)))
    return found


def stale(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: every attack."""
    trained = tradeoff.federation(settings, seed, data)
    own = tradeoff.examples_of(settings, 0, seed, data)
    task = make_task(settings["model"], place(settings["dataset"], data), None)
    one = tradeoff.next_sender(settings, task, trained, own)
    found = attacked(settings, one, own, seed)
    return {arm: means(rows, "psnr", "nmi", "nmi_random") for arm, rows in found.items()}


def works(found: Found) -> bool:
    """SGI rebuilds the images of an undefended, dense client."""
    return rebuilds({SGI: found[SGI]})


CELLS = (*(fixed_cell("small", name, RATE, pseudo=True) for name in FIXED), cell("small", "prunefl", PRIPRUNE))


def judge_stale(points: Sequence[Point]) -> Judgement:
    """X4: the attack in expectation rebuilds at least as much as SGI behind every such defense; by PSNR, seeds in
    pairs. What it would be with the client's weights is said beside it."""
    psnr = {point.label: point.values["psnr"] for point in points}
    defenses = list(dict.fromkeys(arm for arm, _ in psnr))
    pairs = {name: list(zip(psnr[name, EXPECTATION], psnr[name, SGI], strict=True)) for name in defenses}
    verdict = at_least(pairs, "PSNR, expectation over SGI")
    reached = ", ".join(f"{statistics.fmean(psnr[name, TOLD]):.1f} behind {name}" for name in defenses)
    return Judgement(verdict.word, f"{verdict.reason}; SGI that is told the client's weights reaches {reached}")


X4 = Claim(
    "X4",
    "Prunella",
    "P6 to P8",
    "behind pseudo-pruning and PriPrune an attack that allows for the client's own weights rebuilds more than SGI",
    "",
    experiment=Experiment(
        measure=Measure("stale", stale, control=tradeoff.CONTROL, names=tradeoff.NAMES, works=works),
        sweeps={
            "small": Sweep(
                CELLS,
                note="The federations of P6 on PruneFL, with pseudo-pruning at 30 %, and of P7 and P8 with PriPrune: "
                "MNIST, a CNN of 108,282 weights, 4 clients, 6 rounds of 10 steps; 2 images a seed at batch 1 with "
                "known labels, the same ones.",
            )
        },
        keys=("arm",),
        series="attack",
        metrics=(Column("psnr", "PSNR in dB", 1), Column("nmi", "NMI", 3), Column("nmi_random", "NMI of noise", 3)),
        plot=Plot(("psnr", "nmi"), split=0),
        judge=judge_stale,
    ),
    remarks=(
        "`told` is no attack that a server can make: it bounds what any that guesses the weights could reach.",
        "Attacks that read several rounds together (`unrolling`) are measured in docs/attacks.md, not here.",
    ),
)
