"""Whether a server can tell which examples a client trained on, behind every defense.

``CLIENTS`` clients with ``EXAMPLES`` training images each, few enough to be learnt by heart, train a model together
through ``strategies.round.local`` and the masked mean; batches are a Poisson sample where a defense has an ε, as in a
client. Of each client the server keeps what it saw in the last ``KEPT`` rounds, as in a run whose audits are that far
apart. Members are client 0's examples, outsiders ``OUTSIDERS`` test images, as many as an FPR of 0.1 % takes.

``updates``  the score of ``attacks.membership`` that does best on client 1, which works with the server and tells it
             what it trained on; of ``UPDATES``, those that read what client 0 sent
``model``    the loss under the last weights, which everybody sees who gets the model

``auc``, and the true-positive rates ``loose`` at an FPR of 1 % and ``strict`` at 0.1 %, which by chance are 0.5 and the
FPR itself. ``memorised`` is the accuracy of the last weights on client 0's own examples, ``accuracy`` on the outsiders.
The control is the federation without a defense.

    prunella reproduce membership
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from prunella.attacks.membership import MODEL, UPDATES, Seen, candidate_scores
from prunella.attacks.score.membership import Separation, compare
from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Point, Settings, declared, seeds_of
from prunella.benchmarks.engine.images import chosen_images, client_images, first, task_of
from prunella.benchmarks.engine.machine import device
from prunella.benchmarks.engine.rules import Judgement, above
from prunella.benchmarks.engine.views import NONE, Sender, model_of, sender
from prunella.benchmarks.papers.defended import behind, training
from prunella.core.randomness import rehearsal
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, to_device
from prunella.strategies.round.local import Received
from prunella.strategies.round.masked_mean import MaskedSum
from prunella.tasks.data import Examples, Partition, batches, recommended_rate
from prunella.tasks.examples import poisson_batches
from prunella.tasks.task import Task, initial

CLIENTS, EXAMPLES, OUTSIDERS, KEPT = 4, 100, 1000, 3
LONG = {"rounds": 20, "local_steps": 20, "batch_size": 16}
DATASETS = ("mnist", "cifar10")
CHAINS = (
    *(NONE, "dgp", "top-k", "gaussian", "priprune", "channel-natural", "dp-sgd", "fed-ltp-client"),
    *("outpost", "channel-white", "dgp,mask-hiding"),
)
PRIVATE = ("dp-sgd", "fed-ltp-client")
BY_UPDATES, BY_MODEL = "updates", "model"


class _Turn(NamedTuple):
    """One client's round: what it is afterwards, what the server saw, and what of it counts in the mean."""

    after: Sender
    seen: Seen
    participates: Mask


def _turn(one: Sender, own: Examples, settings: Settings, seed: int, round: int, client: int) -> _Turn:
    private = one.procedure.chain.private is not None
    draws = [rehearsal(seed, round=round, purpose=f"membership-{what}-{client}") for what in ("batches", "defense")]
    sample = poisson_batches if private else batches
    done = one.trained(sample(own, settings["batch_size"], settings["local_steps"], draws[0]), draws[1])
    left = done.outgoing
    seen = Seen(one.received.params, one.received.buffers, apply_mask(left.update, left.shared))
    return _Turn(replace(one, state=done.state), seen, left.participates)


def federation(
    settings: Settings, seed: int, data: Path | None, own: Sequence[Examples]
) -> tuple[Task, Tree, list[list[Seen]]]:
    """The last weights, and what the server saw of every client in the last ``KEPT`` rounds."""
    names = settings["defenses"].split(",")
    task = task_of({**settings, "model": model_of(settings["model"], names)}, data)
    params, buffers = initial(task, seed)
    received = Received(*(to_device(tree, device()) for tree in (params, full_mask(params), buffers)))
    made = functools.partial(sender, task, received, settings["defenses"], settings["raw"])
    clients = [made(one.x, settings["batch_size"], settings["learning_rate"]) for one in own]
    saw: list[list[Seen]] = [[] for _ in own]
    for round in range(settings["rounds"]):
        mean = MaskedSum(params)
        for number, images in enumerate(own):
            one = replace(clients[number], received=replace(received, params=to_device(params, device())))
            turn = _turn(one, images, settings, seed, round, number)
            clients[number], saw[number] = turn.after, [*saw[number], turn.seen][-KEPT:]
            mean.add(to_device(turn.seen.update, "cpu"), to_device(turn.participates, "cpu"), 1.0)
        params = mean.result(params, "holders")
    return task, to_device(params, device()), saw


def separations(
    module: nn.Module, task: Task, saw: Sequence[Seen], members: Examples, others: Examples
) -> dict[str, Separation]:
    """How well each score parts a client's examples from outsiders."""
    x, y = torch.cat([members.x, others.x]), torch.cat([members.y, others.y])
    scores = candidate_scores(module, task.classes, saw, x, y)
    return {name: compare(each[: len(members)], each[len(members) :]) for name, each in scores.items()}


def told(found: Separation) -> dict[str, float]:
    return {"auc": found.auc, "loose": found.loose / found.members, "strict": found.strict / found.members}


def placed(images: Examples) -> Examples:
    """On the device of the measurement."""
    return Examples(images.x.to(device()), images.y.to(device()))


def make(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell."""
    clients = [
        placed(first(client_images(settings["dataset"], data, Partition("iid", CLIENTS, seed=seed), client), EXAMPLES))
        for client in range(CLIENTS)
    ]
    others = placed(chosen_images(settings["dataset"], data, seed, OUTSIDERS, "membership-outsiders"))
    task, params, saw = federation(settings, seed, data, clients)
    module = task.build()
    rehearsed, found = (separations(module, task, saw[i], clients[i], others) for i in (1, 0))
    chosen = max(sorted(UPDATES & found.keys()), key=lambda name: (rehearsed[name].loose, rehearsed[name].auc))
    (loss,) = MODEL

    def accuracy(images: Examples) -> float:
        logits: Tensor = functional_call(module, params, images.x)
        return float((logits.argmax(dim=1) == images.y).double().mean())

    with torch.no_grad():
        learnt = {"accuracy": accuracy(others), "memorised": accuracy(clients[0])}
    return {BY_UPDATES: told(found[chosen]), BY_MODEL: told(found[loss]) | learnt}


def judge(points: Sequence[Point]) -> Judgement:
    """Members stand out less behind a defense with an ε than without a defense."""
    of = seeds_of(points, "auc")
    pairs = {
        f"{dataset}: none above {chain}": (of[dataset, NONE, BY_UPDATES], of[dataset, chain, BY_UPDATES])
        for dataset in dict.fromkeys(label[0] for label in of)
        for chain in PRIVATE
    }
    return above(pairs, "AUC, smaller behind a defense with an ε")


def cells(chains: Sequence[str] = CHAINS) -> tuple[Settings, ...]:
    """Every chain on both datasets, chain by chain."""
    return tuple(
        behind(training("cnn", **LONG, learning_rate=recommended_rate(dataset)), dataset, chain)
        for chain in chains
        for dataset in DATASETS
    )


MEMBERSHIP_TABLE: Claim = declared(
    f"""membership | Prunella | docs/attacks.md | which examples a client trained on can be told from what it sent, and
    less so behind a defense with an ε
    small: {CLIENTS} clients of {EXAMPLES} images each, so few that they are learnt by heart; members are one client's,
    outsiders {OUTSIDERS} test images.
    * By chance: an AUC of 0.5, and members found as often as the FPR says.""",
    Measure("membership", make, control={"defenses": NONE, "raw": {}}, told=BY_UPDATES, least={"auc": 0.55}),
    "dataset defenses: scores",
    "auc 3 AUC; loose 3 found at an FPR of 1 %; strict 3 found at 0.1 %; memorised 3 accuracy on members; "
    "accuracy 3 accuracy on outsiders",
    Plot(("loose", "auc"), split=0),
    judge,
    cells(),
)
