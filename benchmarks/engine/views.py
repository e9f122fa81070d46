"""What the server sees of one local step of one client behind a defense chain, outside a federation.

A ``Sender`` is a client that is about to train: a task, what it received (weights, mask, buffers), a chain by name with
its settings by section, and the chain's state. ``seen`` takes it through ``strategies.round.local.local_update``, the
code a real client runs, for one step of ``RATE`` on one batch, or some. A data defense is fitted on ``pool``; one that
learns (PriPrune) may train on images that are not attacked first (``after_rounds``). The leakage guard decides as
it does in a client.

Views know labels and batch size, and have no ``shared``: which coordinates arrived is read off the update, since zeros
of gradient defenses are to be recovered from the values, too. Errors: those of the chain, ``DefenseError`` for an
update that was withheld.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from prunella.attacks import find_attack
from prunella.attacks.self_attack import guarded
from prunella.benchmarks.engine.images import part
from prunella.benchmarks.engine.machine import device
from prunella.core.errors import AttackError
from prunella.core.randomness import PrivateGenerator, rehearsal
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.privacy.chain import ChainState, build_chain, present, start
from prunella.privacy.leakage_guard import NAME as GUARD
from prunella.privacy.leakage_guard import unguarded
from prunella.server.checkpoint import Checkpoint
from prunella.strategies.round.local import LocalResult, Procedure, Received, local_update
from prunella.tasks.data import Examples
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd

RATE = 0.1
NONE = "none"
Draw = Callable[[str], PrivateGenerator]  # fresh for a purpose: the same draws whenever it is asked


def model_of(model: str, names: Sequence[str]) -> str:
    """The model a chain runs on: ``precode`` needs its bottleneck in it.

    >>> model_of("cnn", ["precode"]), model_of("cnn", ["dgp"])
    ('precode-cnn', 'cnn')
    """
    return f"precode-{model}" if "precode" in names else model


def attack_settings(attack: str, model: str, iterations: int = 0, **asked: Any) -> Any:
    """An attack's settings for a model: Euclidean distance and L-BFGS on sigmoid networks (for attacks that have a
    choice), its own elsewhere. 0 iterations are the attack's own number; what is asked as None stays as it is."""
    how: Any = find_attack(attack).settings()
    strong = {"objective": "euclidean", "optimizer": "lbfgs"} if "zhu" in model and hasattr(how, "objective") else {}
    asked |= {"iterations": iterations or None}
    return dataclasses.replace(how, **strong, **{key: value for key, value in asked.items() if value is not None})


def answer(
    name: str,
    view: ServerView,
    task: Task,
    iterations: int,
    draw: Generator,
    earlier: Sequence[ServerView] = (),
    **asked: Any,
) -> Reconstruction:
    """What an attack by that name makes of a view, at its ``attack_settings``, on the CPU; ``earlier`` views where it
    takes some. Raises as the attack does."""
    more = {"earlier": earlier} if earlier else {}
    how = attack_settings(name, task.model, iterations, **asked)
    found: Reconstruction = find_attack(name).reconstruct(view, task, how, draw, **more)
    return on_cpu(found)


def answers(
    name: str, views: Sequence[ServerView], task: Task, iterations: int, draws: Sequence[Generator], **asked: Any
) -> list[Reconstruction | AttackError]:
    """``answer`` of every view, together where the attack can do that, or what it raised."""
    line, found = find_attack(name), list[Reconstruction | AttackError]()
    if line.each is not None:
        with suppress(AttackError):  # of one of them: each is asked alone
            how = attack_settings(name, task.model, iterations, **asked)
            return [on_cpu(one) for one in line.each(views, task, how, draws)]
    for view, draw in zip(views, draws, strict=True):
        try:
            found.append(answer(name, view, task, iterations, draw, **asked))
        except AttackError as error:
            found.append(error)
    return found


def on_cpu(found: Reconstruction) -> Reconstruction:
    return dataclasses.replace(found, x=found.x.cpu(), y=None if found.y is None else found.y.cpu())


def draws(seed: int, number: int = 0, kind: str = "claim") -> Draw:
    """The client's draws for image ``number`` of a measurement of that kind."""
    return lambda purpose: rehearsal(seed, round=number, purpose=f"{kind}-{purpose}")


@dataclasses.dataclass(frozen=True)
class Sender:
    """A client about to train: see the module. ``task`` has the model the chain runs on."""

    task: Task
    procedure: Procedure
    received: Received
    state: ChainState

    def trained(self, batches: Iterable[Examples], generator: PrivateGenerator) -> LocalResult:
        """Its round: a step a batch."""
        return local_update(self.procedure, self.received, iter(batches), self.state, generator)


class SeenView(NamedTuple):
    """What the server saw, and the batch [B, C, H, W] as the model was shown it."""

    view: ServerView
    shown: PrivateBatch


def sender(
    task: Task, received: Received, defenses: str, raw: Mapping[str, Any], pool: Tensor, batch: int, rate: float = RATE
) -> Sender:
    """A client that received ``received`` and is to train on batches of ``batch`` images behind ``defenses``.

    ``raw`` are settings by section (``{"channel-natural.kappa": 100.0}``); data defenses are fitted on ``pool`` [N, C,
    H, W]. Raises ``ConfigError`` for unknown names and settings.
    """
    chain = build_chain(defenses.split(","), dict(raw))
    state = start(chain, pool, received.params, {}, rehearsal(0, purpose="fit"))
    return Sender(task, Procedure(task.build(), Sgd(rate), chain, batch), received, state)


def initial_sender(
    task: Task, seed: int, defenses: str, raw: Mapping[str, Any], pool: Tensor, batch: int, rate: float = RATE
) -> Sender:
    """``sender`` of a client that received the weights every run with this seed starts from, unpruned."""
    params, buffers = initial(task, seed)
    return sender(task, Received(params, full_mask(params), buffers), defenses, raw, pool, batch, rate)


def received_of(saved: Checkpoint) -> Received:
    """What the clients get after the round of a checkpoint."""
    params = {name: saved.tree[name] for name in saved.mask}
    return Received(params, saved.mask, {name: t for name, t in saved.tree.items() if name not in params})


def after_rounds(one: Sender, earlier: Sequence[Examples], draw: Callable[[int], PrivateGenerator]) -> Sender:
    """After a round of one step on each of ``earlier``; the weights it receives stay those of ``one``."""
    for turn, batch in enumerate(earlier):
        one = dataclasses.replace(one, state=one.trained([batch], draw(turn)).state)
    return one


def seen(one: Sender, private: Examples, draw: Draw, steps: int = 1) -> SeenView:
    """So many steps on equal parts of ``private``, in order. Drawn for ``defense`` and ``guard``. What the model was
    shown is told of data defenses and, in one step, of all."""
    chain, size = one.procedure.chain, len(private) // steps
    parts = [part(private, turn * size, size) for turn in range(steps)]
    drawn = draw("defense")
    shown = torch.cat([present(chain, batch.x, one.state, drawn) for batch in parts])
    if chain.guard is not None:
        one = dataclasses.replace(one, state={**one.state, GUARD: unguarded(one.state[GUARD])})
    out = one.trained(parts, draw("defense"))
    view = ServerView(
        params=one.received.params,
        update=out.outgoing.update,
        buffers=one.received.buffers,
        received_buffers=out.buffers,
        num_examples=len(private),
        labels=private.y,
        steps=steps,
        batch_size=size,
        learning_rate=one.procedure.sgd.learning_rate,
        defenses=out.applied,
    )
    if chain.guard is not None:  # as the client does it: the attack that decides is seeded by the client
        truth = PrivateBatch(private.x, private.y)
        sent = guarded(out.outgoing, view, truth, one.task, chain.guard, draw("guard"))
        view = dataclasses.replace(view, update=sent.update)
    return SeenView(view.on(device()), PrivateBatch(shown, private.y))
