"""What is attacked: named settings with a version, each with the weights, the images and the attacker's budget fixed.

A scenario is one update of one client (or several updates of the same images, where it has ``rounds``), as a server
sees it that knows the model, the chain of defenses and its settings, and has public images: training images, where test
images are attacked. A change of any setting is another scenario: raise ``version``, and its numbers are measured again.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from prunella.benchmarks.engine.images import part
from prunella.benchmarks.engine.shadows import POOL, Population
from prunella.benchmarks.engine.views import RATE, Draw, Sender, after_rounds, seen
from prunella.core.errors import DefenseError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import apply_mask, full_mask
from prunella.core.types import ServerView
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import keep_by_score
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples
from prunella.tasks.task import Task, initial, prunable
from prunella.tasks.training import loss_and_gradient

LARGER: Mapping[str, int] = {"conv-2": 2, "vit": 2, "resnet18": 1}  # models of the worst case, and updates attacked
BATCH, STEP = 32, 0.02  # other clients' images a step, and its learning rate between attacked rounds


@dataclass(frozen=True)
class Scenario:
    """One line of ``SCENARIOS``."""

    says: str
    dataset: str
    model: str = "cnn"
    batch: int = 1  #: images of a step
    steps: int = 1  #: local steps of an update
    known_labels: bool = True
    trained: int = 0  #: steps of SGD on public images that the weights have behind them
    rate: float = 0.0  #: share of the weights that a global mask has removed, the smallest of the first weights
    rounds: int = 1  #: in which the same images are sent; between them the weights follow other clients
    updates: int = 4  #: attacked, for each seed, of a client and images of their own
    passes: int = 1000  #: of images through the model, what matching a gradient may cost for each update
    version: int = 1

    @property
    def images(self) -> int:
        """Of an update."""
        return self.batch * self.steps

    def settings(self, name: str) -> dict[str, Any]:
        """Of a cell: all but the words."""
        return {"scenario": name, **{key: value for key, value in asdict(self).items() if key != "says"}}


SCENARIOS: Mapping[str, Scenario] = {
    "one-image": Scenario("one image in one step of the first weights: the worst case", "cifar10"),
    "one-digit": Scenario("the same on digits, whose margins are black", "mnist"),
    "trained": Scenario("one image in one step of weights that have learnt", "mnist", trained=300),
    "pruned-0.8": Scenario("one image under a global mask that has removed 80 %", "mnist", rate=0.8),
    "many-rounds": Scenario("one image, sent in four rounds", "mnist", rounds=4, updates=2, version=3),
    "batch-norm": Scenario(
        "four images in one step of a network with batch norm, whose statistics travel",
        "mnist",
        model="cnn-bn",
        batch=4,
        updates=2,
        passes=3000,
        version=2,
    ),
    "unknown-labels": Scenario(
        "four images in one step, labels unknown",
        "mnist",
        batch=4,
        updates=2,
        known_labels=False,
        passes=3000,
        version=2,
    ),
    "batch-8": Scenario("eight images in one step", "mnist", batch=8, updates=1, passes=6000, version=2),
    "fedavg-4x4": Scenario(
        "four local steps of four images each", "mnist", batch=4, steps=4, updates=1, passes=16000, version=2
    ),
    **{
        f"one-image-{model}": Scenario("the worst case", "cifar10", model=model, updates=updates, version=2)
        for model, updates in LARGER.items()
    },
}


def full(scenario: Scenario) -> Scenario:
    """At full size: as many updates as have twenty images of a seed, and ten times the attacker's passes."""
    return replace(scenario, updates=math.ceil(20 / scenario.images), passes=10 * scenario.passes)


def of(settings: Mapping[str, Any]) -> Scenario:
    """The scenario of a cell's settings, whatever ``SCENARIOS`` says today."""
    return Scenario("", **{key: settings[key] for key in asdict(Scenario("", "")) if key != "says"})


def received(scenario: Scenario, task: Task, seed: int, public: Examples) -> Received:
    """What the server sends: the weights of a run with this seed, trained and pruned as the scenario says."""
    params, buffers = initial(task, seed)
    mask = full_mask(params)
    if scenario.rate:
        mask = keep_by_score(magnitude(params), prunable(task.build()), scenario.rate)
    sent = Received(apply_mask(params, mask), mask, buffers)
    for turn in range(scenario.trained):
        sent = followed(sent, task, public, stream(seed, round=turn, purpose="scenario-training"), RATE)
    return sent


def followed(sent: Received, task: Task, others: Examples, draw: torch.Generator, step: float) -> Received:
    """After a step of SGD on other clients' images, inside the mask."""
    batch = others.take(torch.randint(len(others), (BATCH,), generator=draw))
    _, gradient, buffers = loss_and_gradient(task.build(), sent.params, sent.buffers, batch.x, batch.y)
    moved = {name: weight - step * gradient[name] for name, weight in sent.params.items()}
    return Received(apply_mask(moved, sent.mask), sent.mask, buffers)


def sent(
    scenario: Scenario, one: Sender, private: Examples, others: Examples, seed: int, draw: Callable[[int], Draw]
) -> list[ServerView]:
    """The client's updates of all rounds, the oldest first, as the server sees them."""
    views = list[ServerView]()
    for turn in range(scenario.rounds):
        view = seen(one, private, draw(turn), scenario.steps).view
        views.append(view if scenario.known_labels else replace(view, labels=None))
        if turn + 1 < scenario.rounds:
            one = after_rounds(one, [private], lambda _, turn=turn: draw(turn)("defense"))  # type: ignore[misc]
            drawn = stream(seed, round=turn, purpose="scenario-others")
            one = replace(one, received=followed(one.received, one.task, others, drawn, STEP))
    return views


def clients(
    scenario: Scenario, population: Population, images: Examples, public: Examples
) -> Iterable[tuple[Examples, list[ServerView]]]:
    """Every attacked client's images and updates, none where its defense withheld one. ``images`` are first those that
    are attacked, then those that defenses are fitted on."""
    attacked = scenario.updates * scenario.images
    rest = images.take(torch.arange(attacked, attacked + POOL))
    for number in range(scenario.updates):
        private = part(images, number * scenario.images, scenario.images)

        def draw(turn: int, number: int = number) -> Draw:
            return lambda purpose: rehearsal(population.seed, round=turn, client=number, purpose=f"scenario-{purpose}")

        try:
            one = population.client(rest)
            yield private, sent(scenario, one, private, public, population.seed, draw)
        except DefenseError:
            yield private, []
