"""Federations whose clients have an epsilon, and those of Fed-LTP beside them: the cells of L1 and L2.

A cell is one method and partition, in process, real client and server code: DP-Fed and Fed-SPA are FedAvg under
``dp-fed`` and ``fed-spa``, Fed-LTP prunes on public examples first and trains under ``fed-ltp-client``. Public examples
are a quarter of the test set; accuracy is on at most a thousand of the others
(``benchmarks.engine.images.TESTED``).

``ABLATED`` (L4) has Fed-LTP less a part of it: without a ticket, and with the validation that picks a round by the
clients' noisy counts of held-out examples (Laplace noise of ``LAPLACE`` examples). A cell with validation has two more
columns, of its own run: every round's model is also tried on the server's test examples, which the run does not see.

best      accuracy of the global model, the largest over rounds (what the paper's "Acc" is), ``last`` after the last
mib       the coded messages of all clients and rounds, both ways, in MiB (2^20), over the clients: for one client
epsilon   the ledger's: the largest of any client, by the accountant named in the settings, at ``delta``
zcdp      the same charges without amplification by sampling, as zCDP composes them
picked    accuracy of the round with the highest noisy validation, ``last`` and ``best`` as above
composed  epsilon of the training alone by advanced composition of sampled steps, as accounted before moments
trained   epsilon of the same training by the accountant of the settings
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from prunella.benchmarks.engine.cells import Row
from prunella.benchmarks.engine.claim import Found, Settings
from prunella.benchmarks.engine.images import place
from prunella.benchmarks.engine.inprocess import accuracies, epsilons, failures, ran
from prunella.client.accounts import FILE, Accounts
from prunella.core.files import read_tree
from prunella.core.trees import Tree
from prunella.privacy.accounting import Charge, epsilon
from prunella.server.rounds import Federation
from prunella.tasks.training import evaluate

MIB = 2**20
METHODS: dict[str, dict[str, object]] = {
    "dp-fed": {"strategy": "fedavg", "defenses": "dp-fed"},
    "fed-spa, p = 1": {"strategy": "fedavg", "defenses": "fed-spa", "fed_spa__keep": 1.0},
    "fed-spa, p = 0.4": {"strategy": "fedavg", "defenses": "fed-spa", "fed_spa__keep": 0.4},
    "fed-ltp, one-shot": {"strategy": "fed-ltp-one-shot", "rate": 0.452, "defenses": "fed-ltp-client"},
    "fed-ltp, iterative": {"strategy": "fed-ltp-iterative", "rate": 0.262, "defenses": "fed-ltp-client"},
}

LAPLACE = 10.0
_VALIDATED = {"evaluation": "clients", "privacy__validation_noise": LAPLACE}
ABLATED: dict[str, dict[str, object]] = {
    "fed-ltp, no ticket": {"strategy": "fedavg", "defenses": "fed-ltp-client"},
    "fed-ltp, one-shot, validated": {**METHODS["fed-ltp, one-shot"], **_VALIDATED},
    "fed-ltp, iterative, validated": {**METHODS["fed-ltp, iterative"], **_VALIDATED},
}


def advanced(charges: Sequence[Charge], delta: float) -> float:
    """Epsilon at ``delta`` of k steps by the advanced composition theorem (Dwork, Rothblum, Vadhan 2010, Theorem III.3)
    over steps amplified by sampling: what the same noise is worth without a moments or zCDP accountant.

    Half of delta goes to the theorem, half to the steps. All charges must be of one noise and sampling rate.
    """
    (noise, sampling), *others = {(charge.noise, charge.sampling) for charge in charges if charge.steps}
    if others:
        raise ValueError("advanced composition here is of equal steps")
    steps = sum(charge.steps for charge in charges)
    one = Charge("", noise=noise, steps=1)
    step = math.log1p(sampling * math.expm1(epsilon([one], delta / (2 * steps * sampling), "pld")))
    return math.sqrt(2 * steps * math.log(2 / delta)) * step + steps * step * math.expm1(step)


def run_settings(settings: Settings, seed: int, data: Path | None) -> Settings:
    """The run's settings; clip and noise are those of whichever defense the method has."""
    chosen = {**METHODS, **ABLATED}[settings["method"]]
    section = str(chosen["defenses"]).replace("-", "_")
    kept = ("model", "partition", "fraction", "rounds", "local_steps", "batch_size", "learning_rate", "momentum")
    return {
        **{key: settings[key] for key in kept},
        **chosen,
        "dataset": place(settings["dataset"], data),
        "seed": seed,
        "audit_every": 0,
        "privacy__delta": settings["delta"],
        f"{section}__clip": settings["clip"],
        f"{section}__noise_multiplier": settings["noise"],
    }


def validated(told: Sequence[float], tested: Sequence[float], charges: Sequence[Charge], delta: float) -> Row:
    """The columns of a cell with validation: noisy accuracies as the clients told them, and on test examples."""
    training = [dataclasses.replace(charge, laplace=0.0) for charge in charges if charge.steps]
    return {
        "picked": tested[max(range(len(told)), key=told.__getitem__)],
        "trained": epsilon(training, delta, "rdp"),
        "composed": advanced(training, delta),
    }


def charged(home: Path) -> tuple[Charge, ...]:
    """Every charge in a client's account."""
    sets, _ = read_tree(home / FILE)
    return Accounts(home, torch.cat(list(sets.values()))).ledger().charges


def private_training(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell, as one series: the partition."""
    clients, tested = settings["clients"], list[float]()

    def test(federation: Federation, params: Tree, buffers: Tree) -> None:
        if federation.run.evaluation == "clients" and federation.test is not None:
            images = federation.test
            tested.append(evaluate(federation.model.module, params, buffers, images.x, images.y).accuracy)

    with ran(settings, seed, data, look=test, **run_settings(settings, seed, data)) as done:
        charges = [charged(done.folder.parent / "nodes" / str(client)) for client in range(clients)]
        accuracy, spent, failed = list(accuracies(done).values()), epsilons(done), failures(done)
    if failed or len(spent) != len(done.ledgers):
        raise RuntimeError(f"{settings['method']}: {failed:.0f} replies failed, {len(spent)} clients have an epsilon")
    sent = done.counters["wire_bytes_total|up"] + done.counters["wire_bytes_total|down"]
    true = tested or accuracy
    most = max(charges, key=lambda each: sum(charge.steps for charge in each))
    found = {"best": max(true), "last": true[-1], "mib": sent / MIB / clients, "epsilon": max(spent)}
    found["zcdp"] = max(epsilon(each, settings["delta"], "zcdp") for each in charges)
    found |= validated(accuracy, tested, most, settings["delta"]) if tested else {}
    return {str(settings["partition"]): found}
