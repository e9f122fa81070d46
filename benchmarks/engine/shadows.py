"""Clients like the attacked one, played on public images: for measurements outside a federation.

A ``Population`` is what all clients of a cell have in common; ``client`` is one of them before its first attacked step,
its data defense fitted on images of its own. A defense that learns (``LEARNS``) has taken its first steps on some of
these.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from prunella.benchmarks.engine.images import part
from prunella.benchmarks.engine.views import LEARNS, Sender, after_rounds, seen, sender
from prunella.core.randomness import rehearsal, stream
from prunella.core.types import ServerView
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples
from prunella.tasks.task import Task

POOL, EARLIER = 256, 5  # images that a data defense is fitted on; steps of a defense that learns
FITS = 8


@dataclass(frozen=True)
class Population:
    """What every client of a cell has in common. ``batch`` images a step, ``steps`` steps in an update."""

    task: Task
    received: Received
    defenses: str
    raw: Mapping[str, Any]
    seed: int
    batch: int = 1
    steps: int = 1

    @property
    def learns(self) -> bool:
        return bool(LEARNS & set(self.defenses.split(",")))

    def client(self, images: Examples, number: int, kind: str) -> Sender:
        """A client of its own before its first attacked round: fitted on ``images``, after its first steps on some."""
        one = sender(self.task, self.received, self.defenses, self.raw, images.x[:POOL], self.batch)
        if not self.learns:
            return one
        order = torch.randperm(len(images), generator=stream(self.seed, client=number, purpose=f"{kind}-order"))
        earlier = [part(images.take(order[:EARLIER]), turn) for turn in range(EARLIER)]
        return after_rounds(
            one, earlier, lambda turn: rehearsal(self.seed, round=turn, client=number, purpose=f"{kind}-warm")
        )


@dataclass
class ShadowSender:
    """Shadow clients of a cell (``attacks.engine.shadow``); ``public`` are split into ``FITS`` clients' images. Of a
    defense that learns there are ``taught`` clients, which take turns, or as many as are asked for where that is 0."""

    population: Population
    public: Examples
    taught: int = 0

    @functools.cached_property
    def fitted(self) -> list[Sender]:
        pools = [self.public.take(torch.arange(fit, len(self.public), FITS)) for fit in range(FITS)]
        return [self.population.client(pool, fit, "shadow") for fit, pool in enumerate(pools)]

    @functools.cached_property
    def learners(self) -> list[Sender]:
        return [self.learner(number) for number in range(self.taught)]

    def learner(self, number: int) -> Sender:
        return self.population.client(self.public, FITS + number, "shadow")

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        if not self.population.learns:
            one = self.fitted[draw % FITS]
        else:
            one = self.learners[draw % self.taught] if self.taught else self.learner(draw)
        draws = lambda purpose: rehearsal(self.population.seed, client=draw, purpose=f"shadow-{purpose}")  # noqa: E731
        return seen(one, shown, draws, self.population.steps if steps is None else steps).view
