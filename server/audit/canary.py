"""Canaries: public images on which the server may know the truth, with the defense and without.

The positive control of every audit is an undefended update of one canary image (batch 1, one step): if the attack
cannot rebuild that, its failure on a client says nothing. The same image sent through the run's own defense chain shows
what the defense changes, with no client involved. A defense that learns (PriPrune) is first trained on other canaries
by the run's own local training, so that it is not judged on its initial state.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Run
from prunella.core.randomness import PrivateGenerator, rehearsal, stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.adgp import NAME as ADGP
from prunella.privacy.chain import Chain, ChainState, build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.strategies.round.replies import Expected
from prunella.tasks.data import Examples, batches
from prunella.tasks.public import digits, in_shape
from prunella.tasks.task import Task
from prunella.tasks.training import Sgd

POOL = 64  # canaries that a learning defense is trained on
DEFENSE_ROUNDS = 5  # of that training


def load_pool(task: Task, test: Examples | None, seed: int) -> Examples:
    """Up to ``POOL`` public images in the task's shape: from the test set, or scikit-learn's digits resized."""
    source = test if test is not None else digits()
    order = torch.randperm(len(source.y), generator=stream(seed, purpose="canary"))[:POOL]
    return in_shape(Examples(source.x[order], source.y[order]), task)


@dataclass(frozen=True)
class Sent:
    """A canary's update as the server would receive it, and the truth behind it."""

    view: ServerView
    truth: PrivateBatch


def _once(x: Tensor, y: Tensor) -> Iterator[Examples]:
    yield Examples(x, y)


class Canary:
    """Makes controls for one run."""

    def __init__(self, run: Run, raw: dict[str, str | int | float | bool], task: Task, test: Examples | None) -> None:
        self.run, self.task = run, task
        self.pool = load_pool(task, test, run.seed)
        self.sgd = Sgd(run.learning_rate, run.momentum, run.weight_decay)
        self.chains = {"none": build_chain(["none"], {}), "defended": build_chain(run.defense_names, raw)}

    def _draws(self, round: int, purpose: str) -> PrivateGenerator:
        return rehearsal(self.run.seed, round=round, purpose=purpose)

    def _trained_defense(self, chain: Chain, received: Received, round: int) -> ChainState:
        procedure = Procedure(self.task.build(), self.sgd, chain)
        state = start(chain, self.pool.x, received.params, {}, self._draws(round, "canary-fit"))
        for turn in range(DEFENSE_ROUNDS):
            generator = self._draws(round, f"canary-warm-{turn}")
            shown = batches(self.pool, self.run.batch_size, self.run.local_steps, generator)
            state = local_update(procedure, received, shown, state, generator).state
        return state

    def send(self, expected: Expected, arm: str) -> Sent:
        """One canary image through one local step under the chain of ``arm`` (``none`` or ``defended``)."""
        chain, round = self.chains[arm], expected.round
        received = Received(expected.params, expected.mask, expected.buffers)
        index = round % len(self.pool.y)
        x, y = self.pool.x[index : index + 1], self.pool.y[index : index + 1]
        generator = self._draws(round, f"canary-{arm}")
        if arm == "defended":
            state = self._trained_defense(chain, received, round)
        else:
            state = start(chain, x, received.params, {}, generator)
        if ADGP in chain.names and expected.locations is not None:
            state = {**state, ADGP: {**state[ADGP], "locations": expected.locations}}
        result = local_update(Procedure(self.task.build(), self.sgd, chain), received, _once(x, y), state, generator)
        view = ServerView(
            params=expected.params,
            update=result.outgoing.update,
            mask=expected.mask,
            shared=result.outgoing.shared,
            buffers=expected.buffers,
            num_examples=1,
            steps=1,
            batch_size=1,
            learning_rate=self.run.learning_rate,
            weight_decay=self.run.weight_decay,
            defenses=result.applied,
        )
        return Sent(view, PrivateBatch(x.clone(), y.clone()))
