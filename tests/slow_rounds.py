"""Whole federations again, slowly: the batches that clients really drew, and plain loops of torch over them.

Nothing here is of ``strategies``, ``client`` or ``wire``; a scheme's test adds what is the scheme's own.
"""

from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import cross_entropy

from prunella.client.session import Session
from prunella.core.trees import Mask, Tree
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task


@dataclass
class Drawn:
    """The batches of one message to a client, and how many examples that client has."""

    client: int
    examples: int
    batches: list[Examples]


def record_batches(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """A list that fills up with what clients draw, message by message."""
    drawn: list[Drawn] = []
    before = Session.batches

    def batches(self: Session, *asked: object):
        found = list(before(self, *asked))  # type: ignore[arg-type]
        drawn.append(Drawn(self.node.client, len(self.data.examples), found))
        return iter(found)

    monkeypatch.setattr(Session, "batches", batches)
    return drawn


def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a request is keyed by its trees alone: two schemes that ask the same get the same batches."""
    monkeypatch.setattr(Session, "settings", "")


def loaded(task: Task, params: Tree) -> torch.nn.Module:
    module = task.build()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(params[name])
    return module


def weights_of(module: torch.nn.Module) -> Tree:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def local_sgd(task: Task, params: Tree, mask: Mask, batches: list[Examples], rate: float) -> tuple[Tree, Tree]:
    """Weights after SGD inside the mask, and the mean squared gradient of every coordinate on the way."""
    module = loaded(task, params)
    squares = {name: torch.zeros_like(t) for name, t in params.items()}
    for batch in batches:
        module.train()
        module.zero_grad()
        cross_entropy(module(batch.x), batch.y).backward()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                squares[name] += parameter.grad**2 / len(batches)
                parameter -= rate * parameter.grad
                parameter[~mask[name]] = 0
    return weights_of(module), squares


def mean_of(trees: list[Tree], examples: list[int]) -> Tree:
    """The mean over clients, each with the weight of its examples, in float64."""
    total = sum(examples)
    return {n: sum(t[n].double() * many / total for t, many in zip(trees, examples, strict=True)) for n in trees[0]}
