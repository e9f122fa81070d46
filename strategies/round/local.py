"""The client's half of a round, as a pure function: compose, train under the defenses, release.

Used by the client, by the server's public canary and by benchmarks, so that all three measure the same thing.
PRI Alg. 1 lines 5-10, in this order: data stage, training with the gradient stage, update stage.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import nn

from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, apply_mask, invert, map_trees, scale, subtract, zeros_like
from prunella.privacy.chain import Chain, ChainState, check_model, compose, observe, present, release
from prunella.privacy.defense import Outgoing, Step
from prunella.pruning.powerprop import Power
from prunella.strategies.round.plan import LocalPlan
from prunella.strategies.round.small import Small, small_network
from prunella.tasks.data import Examples
from prunella.tasks.per_example import per_example_gradients
from prunella.tasks.sensitivity import representation_sensitivity
from prunella.tasks.training import Sgd, drawing, loss_and_gradient, mode, sgd_step

PLAIN = LocalPlan()


@dataclass(frozen=True)
class Received:
    """What the server sent: weights inside the base mask, the mask, batch-norm buffers."""

    params: Tree
    mask: Mask
    buffers: Tree


@dataclass(frozen=True)
class LocalResult:
    """What one round of local work gives: what may leave, and the defense state that stays.

    ``base`` is the mask the local weights ended under: the received one, unless the scheme moves it. ``small``: the
    network without dead channels was trained, so that ``importance`` is zero outside it.
    """

    outgoing: Outgoing
    base: Mask
    buffers: Tree
    importance: Tree
    state: ChainState
    applied: tuple[str, ...]
    steps: int
    small: bool = False


@dataclass(frozen=True)
class Trained:
    """Weights after some steps, and the mean squared (defended) gradient of every coordinate on the way."""

    params: Tree
    buffers: Tree
    squares: Tree
    state: ChainState
    steps: int
    small: bool = False


@dataclass(frozen=True)
class Procedure:
    """What does not change during a run: the model's structure, the optimiser's settings, the defense chain.

    ``expected_batch`` is what a defense with an epsilon divides by under Poisson sampling; None: the batch's own size.
    ``power`` is the scheme's, where it has one (``LocalPlan.power``). With ``shape``, one image's, the network is
    trained without its dead channels where the result is the same (``strategies.round.small``); it is not given where
    somebody wants the squared gradients of pruned weights. ``allows`` is asked before every step, with the network that
    is trained, its weights, its buffers, the step's number in the round from 0 and whether no step but a start or a
    moved mask made the weights; where it says no, training ends.
    """

    module: nn.Module
    sgd: Sgd
    chain: Chain
    expected_batch: int | None = None
    power: Power | None = None
    shape: tuple[int, ...] | None = None
    allows: Callable[[nn.Module, Tree, Tree, int, bool], bool] | None = None

    def descend(self, hidden: Tree, gradient: Tree, velocity: Tree, mask: Mask) -> tuple[Tree, Tree]:
        """SGD's step and velocity; ``hidden`` are the weights, or those of the power."""
        pulled = gradient if self.power is None else self.power.pulled(gradient, hidden)
        return sgd_step(hidden, pulled, velocity, self.sgd, mask)


def step_of(procedure: Procedure, params: Tree, buffers: Tree, batch: Examples, mask: Mask, number: int) -> Step:
    """One local step as the defenses that look at single examples see it; nothing is computed yet."""
    module, expected = procedure.module, procedure.expected_batch or max(1, len(batch))
    return Step(
        params=params,
        mask=mask,
        number=number,
        batch=expected,
        per_example=lambda: per_example_gradients(module, params, buffers, batch.x, batch.y, expected),
        representation=lambda: representation_sensitivity(module, params, buffers, batch.x),
    )


def train(
    procedure: Procedure,
    start: Tree,
    received: Received,
    batches: Iterator[Examples],
    state: ChainState,
    generator: PrivateGenerator,
    taken: int = 0,
) -> Trained:
    """Local SGD from ``start``; pruned weights stay zero. ``squares`` covers pruned coordinates too, for regrowth.
    ``taken`` steps of the round were before: its first step is one to the chain, however often training starts."""
    chain, params, buffers = procedure.chain, start, received.buffers
    check_model(chain, buffers)
    velocity: Tree = {}
    hidden = start if procedure.power is None else procedure.power.hidden(start)
    squares, steps = zeros_like(start), 0
    for batch in batches:
        number = taken + steps
        if procedure.allows is not None and not procedure.allows(procedure.module, params, buffers, number, not steps):
            break
        x = present(chain, batch.x, state, generator)
        step = step_of(procedure, params, buffers, Examples(x, batch.y), received.mask, number)
        gradient = params  # not used by a defense with an epsilon, which makes it itself: x may be empty
        with mode(procedure.module, True), drawing(procedure.module, generator):
            if chain.private is None:
                _, gradient, buffers = loss_and_gradient(procedure.module, params, buffers, x, batch.y)
            gradient, state = observe(chain, gradient, received.params, state, generator, step)
        squares = map_trees(lambda s, g: torch.addcmul(s, g, g), squares, gradient)
        hidden, velocity = procedure.descend(hidden, gradient, velocity, received.mask)
        params = hidden if procedure.power is None else procedure.power.shown(hidden)
        steps += 1
    return Trained(params, buffers, scale(squares, 1 / max(steps, 1)), state, steps)


def _small(procedure: Procedure, start: Tree, received: Received) -> Small | None:
    """The network to train in place of the dense one, if there is one: no defense and no power may want the rest."""
    if procedure.shape is None or procedure.power is not None or procedure.chain.watches:
        return None
    return small_network(procedure.module, procedure.shape, start, received.buffers, received.mask)


def _train_what_lives(
    procedure: Procedure,
    start: Tree,
    received: Received,
    batches: Iterator[Examples],
    state: ChainState,
    generator: PrivateGenerator,
) -> Trained:
    """``train`` without the dead channels of the mask, where that is the same."""
    small = _small(procedure, start, received)
    if small is None:
        return train(procedure, start, received, batches, state, generator)
    begin = small.cut(start)
    inside = Received(begin, small.cut(received.mask), small.cut(received.buffers))
    watched = small.watched(procedure.chain, received.params, received.mask)
    within = replace(procedure, module=small.module, chain=watched)
    done = train(within, begin, inside, batches, state, generator)
    params, buffers = small.aged(start, received.buffers, received.mask, procedure.sgd, done.steps)
    params, buffers = small.back(params, done.params), small.back(buffers, done.buffers)
    return Trained(params, buffers, small.back(zeros_like(start), done.squares), done.state, done.steps, True)


def _train_as_planned(
    procedure: Procedure,
    received: Received,
    plan: LocalPlan,
    batches: Iterator[Examples],
    state: ChainState,
    generator: PrivateGenerator,
) -> tuple[Trained, Mask]:
    """Compose and train. Where the plan readjusts, the mask moves half-way and the velocity starts from zero."""
    mask = received.mask if plan.mask is None else plan.mask
    begin = received.params if plan.start is None else plan.start
    procedure = replace(procedure, power=plan.power)
    composed, state = compose(procedure.chain, begin, state, generator)
    start, under = apply_mask(composed, mask), replace(received, mask=mask)
    if plan.readjust is None:
        return _train_what_lives(procedure, start, under, batches, state, generator), mask
    first = train(procedure, start, under, islice(batches, plan.before), state, generator)
    params, mask = plan.readjust(first.params, first.squares, mask)
    under = Received(received.params, mask, first.buffers)
    second = train(procedure, params, under, batches, first.state, generator, first.steps)
    return replace(second, steps=first.steps + second.steps), mask


def importance_that_leaves(chain: Chain, squares: Tree, shared: Mask, base: Mask) -> Tree:
    """Mean squared gradients, zero where the chain withheld the value: of a coordinate inside the base mask."""
    outside = invert(base)  # importances inside tell what is filled, and the gradients that a guard's noise covers
    hides = chain.fills or chain.guard is not None
    return apply_mask(squares, outside if hides else map_trees(torch.logical_or, shared, outside))


def local_update(
    procedure: Procedure,
    received: Received,
    batches: Iterator[Examples],
    state: ChainState,
    generator: PrivateGenerator,
    plan: LocalPlan = PLAIN,
) -> LocalResult:
    """One round of a client. The chain's base mask is the one training ended under.

    The importance of a coordinate whose value the chain withholds is withheld with it.
    """
    done, base = _train_as_planned(procedure, received, plan, batches, state, generator)
    local = apply_mask(done.params, base)
    update = apply_mask(subtract(local, received.params), base)
    outgoing = Outgoing(update=update, shared=base, participates=base, local=local)
    outgoing, state, applied = release(procedure.chain, outgoing, done.state, generator)
    importance = importance_that_leaves(procedure.chain, done.squares, outgoing.shared, base)
    return LocalResult(outgoing, base, done.buffers, importance, state, applied, done.steps, done.small)
