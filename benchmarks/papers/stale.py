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

from prunella.benchmarks.engine.claim import Found, Plot, Point, Settings, declared, paired, seeds_of
from prunella.benchmarks.engine.images import means
from prunella.benchmarks.engine.rules import Judgement, at_least
from prunella.benchmarks.engine.views import Draw, Sender
from prunella.benchmarks.papers import tradeoff
from prunella.benchmarks.papers.priprune_defense import DB, FIXED, PRIPRUNE, RATE, cell, fixed_cell
from prunella.core.trees import map_trees
from prunella.privacy.chain import compose

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


def stale(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: every attack."""
    trained, met = tradeoff.federation(settings, seed, data), lambda arm, *one: told(*one) if arm == TOLD else one[0]
    found = tradeoff.attacked(settings, seed, data, trained, ARMS, met)
    return {arm: means(rows, "psnr", "nmi", "nmi_random") for arm, rows in found.items()}


def judge_stale(points: Sequence[Point]) -> Judgement:
    """X4: the attack in expectation rebuilds at least as much as SGI behind every such defense; by PSNR, seeds in
    pairs. What it would be with the client's weights is said beside it."""
    psnr = seeds_of(points, "psnr")
    defenses = list(dict.fromkeys(arm for arm, _ in psnr))
    pairs = paired(psnr, {name: ((name, EXPECTATION), (name, SGI)) for name in defenses})
    verdict = at_least(pairs, "PSNR, expectation over SGI", DB)
    reached = ", ".join(f"{statistics.fmean(psnr[name, TOLD]):.1f} behind {name}" for name in defenses)
    return Judgement(verdict.word, f"{verdict.reason}; SGI that is told the client's weights reaches {reached}")


STALE = dataclasses.replace(tradeoff.TRADEOFF, name="stale", make=stale, told=SGI)
X4 = declared(
    """X4 | Prunella | P6 to P8 | behind pseudo-pruning and PriPrune an attack that allows for the client's own weights
    rebuilds more than SGI
    small: The federations of P6 on PruneFL, with pseudo-pruning at 30 %, and one like them with PriPrune at this
    project's weights: MNIST, a CNN of 108,282 weights, 4 clients, 6 rounds of 10 steps (P7 and P8 have longer ones); 2
    images a seed at batch 1 with known labels, the same ones.
    * `told` is no attack that a server can make: it bounds what any that guesses the weights could reach.
    * Attacks that read several rounds together (`unrolling`) are measured in docs/attacks.md, not here.""",
    STALE,
    "arm: attack",
    "psnr 1 PSNR in dB; nmi 3 NMI; nmi_random 3 NMI of noise",
    Plot(("psnr", "nmi"), split=0),
    judge_stale,
    (*(fixed_cell("small", name, RATE, pseudo=True) for name in FIXED), cell("small", "prunefl", PRIPRUNE)),
)
