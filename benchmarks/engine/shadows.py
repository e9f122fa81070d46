"""Clients like the attacked one, played on public images: for measurements outside a federation.

A ``Population`` is what all clients of a cell have in common; ``client`` is one of them before its first attacked step,
its data defense fitted on images of its own. It is in its first round, where a defense that learns (``LEARNS``) hides
least and which a server may ask any client for, or has taken ``earlier`` steps on some of these images.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from prunella.benchmarks.engine.images import part
from prunella.benchmarks.engine.views import Sender, after_rounds, seen, sender
from prunella.core.randomness import rehearsal, stream
from prunella.core.types import ServerView
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples
from prunella.tasks.task import Task

LEARNS = {"priprune"}
POOL = 256  # images that a data defense is fitted on
FITS = 8  # shadow clients, which take turns


@dataclass(frozen=True)
class Population:
    """What every client of a cell has in common. ``batch`` images a step, ``steps`` steps in an update; ``earlier``
    steps before it, of one whose defense learns."""

    task: Task
    received: Received
    defenses: str
    raw: Mapping[str, Any]
    seed: int
    batch: int = 1
    steps: int = 1
    earlier: int = 0

    def client(self, images: Examples, number: int, kind: str) -> Sender:
        """A client of its own before its first attacked round, fitted on ``images``."""
        one = sender(self.task, self.received, self.defenses, self.raw, images.x[:POOL], self.batch)
        if not LEARNS & set(self.defenses.split(",")):
            return one
        order = torch.randperm(len(images), generator=stream(self.seed, client=number, purpose=f"{kind}-order"))
        earlier = [part(images.take(order[: self.earlier]), turn) for turn in range(self.earlier)]
        return after_rounds(
            one, earlier, lambda turn: rehearsal(self.seed, round=turn, client=number, purpose=f"{kind}-warm")
        )


@dataclass
class ShadowSender:
    """Shadow clients of a cell (``attacks.engine.shadow``); ``public`` are split into ``FITS`` clients' images."""

    population: Population
    public: Examples

    @functools.cached_property
    def fitted(self) -> list[Sender]:
        pools = [self.public.take(torch.arange(fit, len(self.public), FITS)) for fit in range(FITS)]
        return [self.population.client(pool, fit, "shadow") for fit, pool in enumerate(pools)]

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        one = self.fitted[draw % FITS]
        draws = lambda purpose: rehearsal(self.population.seed, client=draw, purpose=f"shadow-{purpose}")  # noqa: E731
        return seen(one, shown, draws, self.population.steps if steps is None else steps).view
