"""Clients like the attacked one, played on public images: for measurements outside a federation.

A ``Population`` is what all clients of a cell have in common; ``client`` is one of them, its data defense fitted on
images of its own, in its first round: there a defense that learns hides least, and a server may ask any client for it.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from prunella.benchmarks.engine.views import Sender, seen, sender
from prunella.core.randomness import rehearsal
from prunella.core.types import ServerView
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples
from prunella.tasks.task import Task

POOL = 256  # images that a data defense is fitted on
FITS = 8  # shadow clients, which take turns


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

    def client(self, images: Examples) -> Sender:
        """A client in its first round, fitted on ``images``."""
        return sender(self.task, self.received, self.defenses, self.raw, images.x[:POOL], self.batch)


@dataclass
class ShadowSender:
    """Shadow clients of a cell (``attacks.engine.shadow``); ``public`` are split into ``FITS`` clients' images."""

    population: Population
    public: Examples

    @functools.cached_property
    def fitted(self) -> list[Sender]:
        pools = [self.public.take(torch.arange(fit, len(self.public), FITS)) for fit in range(FITS)]
        return [self.population.client(pool) for pool in pools]

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        one = self.fitted[draw % FITS]
        draws = lambda purpose: rehearsal(self.population.seed, client=draw, purpose=f"shadow-{purpose}")  # noqa: E731
        return seen(one, shown, draws, self.population.steps if steps is None else steps).view
