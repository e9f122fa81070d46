"""The message that ``Defend`` is at, as the loop inside the app finds it, and what an answer out of the loop must be.

Errors: ``DefenseError`` for an answer that did not come out of the guarded loop.
"""

import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from prunella.core.errors import DefenseError, PrunellaError
from prunella.core.files import write_json
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, apply_mask
from prunella.flower.arrays import is_buffer
from prunella.flower.scheme import LocalScheme, SchemeOrder, Settled
from prunella.flower.site import Site
from prunella.privacy.accounting import Charge
from prunella.privacy.chain import Chain, ChainState, compose, start
from prunella.privacy.defense import DataDefense, UpdateDefense, ignore_gradient
from prunella.privacy.ledger.ledger import spend

# Of the app, over all runs, while an ε holds: a failure can be a bit about the data, which no noise covers.
FAILURES = 20
logger = logging.getLogger(__name__)
_UNUSED, _NONE = PrivateGenerator(bytes(32)), torch.empty(0)  # where nothing is drawn or fitted


def wide(tensor: Tensor) -> Tensor:
    """In the precision that defenses work in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def needs_loop(chain: Chain) -> list[str]:
    """The defenses that see batches or the gradients of single steps."""
    observing = [name for name, defense in chain.updates() if defense.observe is not ignore_gradient]
    return [link.name for link in chain.links if not isinstance(link.defense, UpdateDefense)] + observing


def _beside(like: Tree, tree: Tree) -> Tree:
    return {name: tensor.to(like[name].device) if name in like else tensor for name, tensor in tree.items()}


def resumed(chain: Chain, like: Tree, saved: ChainState) -> ChainState:
    """State for the weights ``like``, on their device: as saved, and fresh for names that are new."""
    updates = Chain(tuple(link for link in chain.links if not isinstance(link.defense, DataDefense)))
    fresh = start(updates, _NONE, like, {}, _UNUSED)
    state: ChainState = {}
    for name in chain.names:
        old, new = saved.get(name, {}), fresh.get(name, {})
        known = {tree: {key: old.get(tree, {}).get(key, t) for key, t in new[tree].items()} for tree in new}
        state[name] = {**{tree: _beside(like, old[tree]) for tree in old}, **known}
    checked = {name: {tree: state[name][tree] for tree in fresh[name]} for name in fresh}
    return {**state, **{n: {**state[n], **trees} for n, trees in start(updates, _NONE, like, checked, _UNUSED).items()}}


class Closing(Protocol):
    """The guard of a loop (``flower.loop``)."""

    def close(self) -> None: ...

    def release(self) -> None: ...


@dataclass
class Handled:
    """The train message that ``Defend`` is at: what came, what the defenses remember, and what the loop made of it."""

    site: Site
    received: Tree
    mask: Mask
    tracked: tuple[str, ...]
    state: ChainState
    order: SchemeOrder = SchemeOrder()
    local: LocalScheme = field(default_factory=LocalScheme)
    guard: Closing | None = None
    kept: dict[str, Tree] = field(default_factory=dict)  # by the client for the scheme, from round to round
    locations: Mask | None = None  # ADGP's set of the round
    fresh: Tree | None = None  # the weights that the run started from, where the scheme goes back to them
    parameters: frozenset[str] = frozenset()  # those of the guarded model, each another
    steps: int = 0
    given: Tree = field(default_factory=dict)
    left: Tree | None = None
    asked: bool = False  # the app has been handed the message
    accounted: bool = False  # the app has charged its own steps (``flower.account``)
    refused: str = ""  # why this project stopped the app, in words that may leave (``flower.gate``)
    _before: ChainState | None = None  # the state that training starts with
    question: str = field(default_factory=lambda: secrets.token_hex(16))  # never asked before: fresh draws

    def refuse(self, error: PrunellaError) -> PrunellaError:
        """``error``, whose text is kept: an app may raise anything under any name."""
        self.refused = str(error)
        return error

    def pay(self, new: Charge) -> None:
        """Charge, on the disk when this returns. Raises ``DefenseError`` past the budget."""
        try:
            spend(self.site.accounts.ledger(), new, self.site.privacy)
        except DefenseError as error:
            raise self.refuse(error) from None
        self.site.accounts.charge(new)

    def begin(self, start: Tree | None = None) -> Tree:
        """The weights that local training starts from, where they are not those received. The scheme may have it
        ``start`` elsewhere."""
        if self.tracked:
            weights = {name: wide((start or self.received)[name]) for name in self.tracked}
            generator = self.site.generator(self.question, "compose")
            self._before = self.state if self._before is None else self._before
            self.state = resumed(self.site.chain, weights, self._before)
            composed, self.state = compose(self.site.chain, weights, self.state, generator)
            inside = {name: self.mask[name] for name in weights}
            self.given = {n: t.to(self.received[n].dtype) for n, t in apply_mask(composed, inside).items()}
            self.given |= self._tied()
        return self.given

    def _tied(self) -> Tree:
        """What begins elsewhere than received under one name begins there under its others: tied weights."""
        moved = [name for name, tensor in self.given.items() if not torch.equal(tensor, self.received[name])]
        others = {name: tensor for name, tensor in self.received.items() if name not in self.given}
        return {o: self.given[n] for n in moved for o, t in others.items() if torch.equal(t, self.received[n])}


HANDLED: ContextVar[Handled | None] = ContextVar("handled", default=None)
LOCKED: ContextVar[Path | None] = ContextVar("locked", default=None)  # the directory of the message being handled


@contextmanager
def alone(site: Site) -> Iterator[None]:
    """While no other process handles a message in the site's directory."""
    with site.store.alone():
        token = LOCKED.set(site.store.home)
        try:
            yield
        finally:
            LOCKED.reset(token)


@contextmanager
def rationed(site: Site) -> Iterator[None]:
    """Around the app. Its failures are counted on the disk, the process's end included, under a defense that has an ε
    and for as long as an ε covers all that left: an app's own (``flower.account``) may be charged in a later message.
    Weights that a server chose can make honest code fail on some examples and not on others.

    Raises ``DefenseError``, without asking the app, after ``FAILURES`` of them. What this project refused inside the
    app tells nothing and does not count.
    """
    if site.chain.private is None and not site.accounts.ledger().covered:
        yield
        return
    path = site.store.home / "failures.json"
    before = int(json.loads(path.read_text())) if path.exists() else 0
    if before >= FAILURES:
        logger.error("asked no more after %d failures: read this log, then remove %s", before, path)
        raise DefenseError(
            f"this site's app has failed {before} times under an ε, or before anything left that none covers, and that "
            "tells more than an ε counts: its owner "
            "has to read the client's log, and to remove failures.json from its state directory"
        )
    write_json(path, before + 1, mode=0o600)
    try:
        yield
    except PrunellaError as error:
        work = HANDLED.get()
        if isinstance(error, Settled) or (work is not None and work.refused):
            write_json(path, before, mode=0o600)
        raise
    write_json(path, before, mode=0o600)


def loop_missing(name: str, guarded: bool = False) -> DefenseError:
    """What to say where ``name`` needs the loop and did not find it, or found no step in a ``guarded`` one."""
    if guarded:
        return DefenseError(
            f"{name} works inside the training loop, and no step went through its guard: where the loader yields no "
            "batch (no examples, or fewer than one batch with drop_last) give this client more of them, or leave it "
            "out; else write guard.step(x, y, loss, optimizer) where the loop steps"
        )
    return DefenseError(
        f"{name} works inside the training loop, and no step went through it: write  guard = protected(msg, context, "
        "model)  and inside your loop  guard.step(x, y, loss, optimizer)  (from prunella import protected)"
    )


def check_loop(work: Handled, after: Tree) -> None:
    """Refuse an answer that did not come out of the guarded loop, where a defense of the chain needs it."""
    needed = needs_loop(work.site.chain) + work.order.needs_loop(work.site.policy)
    if not needed:
        return
    if work.left is None or not work.steps:
        raise loop_missing(needed[0], work.guard is not None)
    for name, tensor in after.items():
        wanted, known = work.left.get(name, work.received.get(name)), name in work.left
        if wanted is None or not known and (is_buffer(name, after) or not tensor.is_floating_point()):
            continue  # judged as such by Defend
        if torch.equal(wanted.to(tensor.dtype), tensor):
            continue
        if known:
            what = "is not what protected() left: answer with the model it was given"
            raise DefenseError(f"{name} of the answer {what}")
        raise DefenseError(
            f"{name} is no trained weight of the guarded model and changed, and no defense works on it: put the layer "
            "of such a buffer in eval(), or keep it out of the messages by register_buffer(..., persistent=False)"
        )
    work.local.require_moved(work.order.scheme)
    work.site.require_few(work.steps)
