"""A run's own client, played on public images: what a matched control attacks and what a learning attack learns on.

A shadow trains as the client of a recorded view did: from the same weights, mask and buffers, under the scheme's own
plan and the run's defenses, with the same steps, batch size, optimizer settings and rounding. What it sends has the
fields the recorded view has, and no more: labels, squared gradients and batch-norm buffers only where these were seen.
In place of a client's key it has draws of its own. A defense that learns (PriPrune) or remembers (error feedback) is
first trained on other public images, for as many rounds as the client can have had before, ``DEFENSE_ROUNDS`` at most;
an attack that asks for hundreds of clients gets ``_STATES`` of these, each many times with other images, noise and
masks. ``RunShadow.first`` is the client in its first round, which hides least: what a client keeps belongs to a run,
and the server says which run it is.

The server writes public images and the run's settings into its folder of traces (``write_public``), and beside a view
what else the client was sent (``write_sent``); ``shadow_beside`` makes a shadow of these files in any process.

Of masked sums the shadow is all clients of one: each trains on a part of the images, and their updates are summed as
the run sums them (``server.audit.summed``), every client with the same weight, since the server knows no other.

Departures: a scheme's plan finds no memory of its own and no held-out examples; LotteryFL's has nothing to decide,
since the view starts from the client's ticket. Errors: ``DefenseError`` where the defense withholds the update.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from prunella.core.config import Raw, Run, parse_run, parse_section
from prunella.core.errors import AttackError
from prunella.core.files import read_tree, write_tree
from prunella.core.randomness import PrivateGenerator, rehearsal
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, size, to_device, zeros_like
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.adgp import NAME as ADGP
from prunella.privacy.chain import ChainState, build_chain, start
from prunella.server.audit.job import PUBLIC, SENT
from prunella.server.audit.summed import shares, summed
from prunella.strategies import find, scheme_settings
from prunella.strategies.round.local import PLAIN, LocalResult, Procedure, Received, local_update
from prunella.strategies.round.plan import LocalPlan, RoundContext
from prunella.strategies.secure_sum.party import MOST
from prunella.strategies.secure_sum.vector import NAME as SECURE_SUM
from prunella.strategies.secure_sum.vector import SecureSum
from prunella.tasks.data import batches
from prunella.tasks.examples import Examples, poisson_batches
from prunella.tasks.task import Task, initial, layers, prunable
from prunella.tasks.training import Sgd
from prunella.wire.encode import Reference
from prunella.wire.records import sparse_from_coded, to_coded

DEFENSE_ROUNDS = 5
LEARNT_FROM = 64  # public images that a learning defense is trained on
_STATES, _KEPT = 16, 2**26  # trained defenses that the shadows share, and values in all: each may be a model's size


@dataclass(frozen=True)
class Sent:
    """An update as the server would receive it, and the truth behind it in the order of its use."""

    view: ServerView
    truth: PrivateBatch


@dataclass(frozen=True)
class SentRound:
    """What the server sent beside what the view of a client says: the mask, where the client moved it while it trained,
    and ADGP's location set. ``whose`` tells the draws of the attacked from those of its attacker. ``sites`` clients are
    summed in the view; ``before`` is how many rounds they had trained in, by default all that there were."""

    number: int
    mask: Mask | None = None
    locations: Mask | None = None
    whose: str = "shadow"
    sites: int = 1
    before: int | None = None

    @property
    def earlier(self) -> int:
        return max(0, self.number - 1) if self.before is None else self.before


def frozen_in(view: ServerView) -> frozenset[str]:
    """The tensors that the client behind ``view`` is taken not to have trained: those it names, and where it is
    undefended, those of which nothing was shared, though the mask keeps some."""
    if view.shared is None or not set(view.defenses) <= {"none"}:
        return frozenset(view.frozen)
    nothing = (name for name, seen in view.shared.items() if not seen.any())
    return frozenset(view.frozen).union(n for n in nothing if view.mask is None or view.mask[n].any())


def template_of(view: ServerView, defenses: tuple[str, ...]) -> ServerView:
    """``view`` without what the client sent, as the pattern of other clients' views under ``defenses``: they train what
    it trained. What only seems frozen, since a defense may have withheld it, the undefended do not train, whose success
    has to vouch for the attack; the defended do, whose success speaks against the defense."""
    counts = set(view.defenses) <= {"none"} or set(defenses) <= {"none"}
    importance = None if view.importance is None else zeros_like(view.importance)
    labels = None if view.labels is None else torch.zeros_like(view.labels)
    return replace(
        view,
        update=zeros_like(view.update),
        shared=view.mask,
        importance=importance,
        labels=labels,
        defenses=defenses,
        frozen=tuple(sorted(frozen_in(view))) if counts else (),
    )


def alike(a: ServerView, b: ServerView) -> bool:
    """Whether a control of one view's kind is one of the other's."""
    if (a.images_used, a.batch_size, a.steps) != (b.images_used, b.batch_size, b.steps):
        return False
    if (a.importance is None) != (b.importance is None) or (a.mask is None) != (b.mask is None):
        return False
    return a.mask is None or b.mask is None or all(torch.equal(a.mask[name], bits) for name, bits in b.mask.items())


def attacked(run: Run, raw: Raw, module: nn.Module, start: Tree, update: Tree) -> Tree:
    """An update as the attacks take it, which expect plain SGD: what the run's scheme does to it is taken out."""
    undone = find(run.strategy).client.undone
    return update if undone is None else undone(scheme_settings(run.strategy, raw), start, update, prunable(module))


@dataclass(frozen=True)
class _Played:
    """A shadow's training and the batches it used."""

    result: LocalResult
    used: list[Examples]
    steps: int
    size: int

    def truth(self) -> PrivateBatch:
        x, y = torch.cat([batch.x for batch in self.used]), torch.cat([batch.y for batch in self.used])
        return PrivateBatch(x.cpu().clone(), y.cpu().clone())


class RunShadow:
    """``attacks.engine.shadow.Shadow`` of the client behind ``view``, in a run with the settings ``raw``."""

    def __init__(self, raw: Raw, task: Task, view: ServerView, round: SentRound, public: Examples) -> None:
        self.run, self.raw, self.task = parse_run(raw), raw, task
        self.like, self.round, self.public = view, round, public
        self.frozen = frozen_in(view)  # constants of the model, as its buffers are
        self.device = next(iter(view.params.values())).device
        self.chain = build_chain(view.defenses or ("none",), raw)
        self._trained: dict[int, ChainState] = {}

    @cached_property
    def _procedure(self) -> Procedure:
        rate = self.run.learning_rate if self.like.learning_rate is None else self.like.learning_rate
        sgd = Sgd(rate, self.like.momentum, self.like.weight_decay)
        return Procedure(self.task.build().to(self.device), sgd, self.chain)

    @cached_property
    def _received(self) -> Received:
        mask = to_device(self.round.mask or self.like.mask or full_mask(self.like.params), self.device)
        params = self.like.params
        if not self.frozen:
            return Received(params, mask, self.like.buffers)
        fixed = {name: params[name] for name in self.frozen}
        return Received(self._trainable(params), self._trainable(mask), {**self.like.buffers, **fixed})

    def _trainable(self, tree: Tree) -> Tree:
        return {name: tensor for name, tensor in tree.items() if name not in self.frozen}

    def _draws(self, draw: int, purpose: str) -> PrivateGenerator:
        purpose = f"{self.round.whose}-{purpose}"
        return rehearsal(self.run.seed, round=self.round.number, client=draw, purpose=purpose)

    def _plan(self, steps: int) -> LocalPlan:
        scheme = find(self.run.strategy)
        if scheme.client.plan is None:
            return PLAIN
        received = self._received
        context = RoundContext(
            run=self.run.model_copy(update={"local_steps": steps}),
            settings=scheme_settings(self.run.strategy, self.raw),
            round=self.round.number,
            params=received.params,
            mask=received.mask,
            prunable=prunable(self._procedure.module),
            kept={},
            fresh=lambda: to_device(initial(self.task, self.run.seed)[0], self.device),
            accuracy=lambda params: 0.0,
        )
        return scheme.client.plan(context)

    def _state(self, draw: int) -> ChainState:
        """The defenses of client ``draw``, trained. Those without a state need no training."""
        draw %= max(2, min(_STATES, _KEPT // max(1, size(self.like.params))))
        if draw not in self._trained:
            learnt, received = self.public.take(torch.arange(min(LEARNT_FROM, len(self.public)))), self._received
            learnt = Examples(learnt.x.to(self.device), learnt.y.to(self.device))
            state = start(self.chain, learnt.x, received.params, {}, self._draws(draw, "fit"))
            for turn in range(min(DEFENSE_ROUNDS, self.round.earlier) if any(state.values()) else 0):
                state = self._play(learnt, draw, f"warm-{turn}", state).result.state
            if ADGP in self.chain.names and self.round.locations is not None:
                locations = to_device(self.round.locations, self.device)
                state = {**state, ADGP: {**state[ADGP], "locations": locations}}
            self._trained[draw] = state
        return self._trained[draw]

    def first(self) -> "RunShadow":
        """The same client in the first round it trains in."""
        return RunShadow(self.raw, self.task, self.like, replace(self.round, before=0), self.public)

    def _play(
        self, shown: Examples, draw: int, purpose: str, state: ChainState, steps: int | None = None, size: int = 0
    ) -> _Played:
        steps = steps or self.like.steps or self.run.local_steps
        size = min(size or self.like.batch_size or self.run.batch_size, len(shown))
        each = batches if self.chain.private is None else poisson_batches
        used = list(each(shown, size, steps, self._draws(draw, f"{purpose}-batches")))
        used = [Examples(batch.x.to(self.device), batch.y.to(self.device)) for batch in used]
        procedure, draws = replace(self._procedure, expected_batch=size), self._draws(draw, purpose)
        result = local_update(procedure, self._received, iter(used), state, draws, self._plan(steps))
        return _Played(result, used, steps, size)

    def play(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> Sent:
        """What a client that holds ``shown`` sends, with its truth; of a sum, what its clients send, each with its part
        of ``shown`` and of the batch. Raises ``AttackError`` where these are too few, or nothing is trained."""
        if self.frozen >= self.like.params.keys():
            raise AttackError("nothing of the recorded update moved: there is no training to play")
        sites, size = self.round.sites, batch_size or self.like.batch_size or self.run.batch_size * self.round.sites
        if sites == 1:
            return self._sent(shown, draw, steps, size)
        parts = shares(len(shown), size, sites)
        each = [self._sent(shown.take(rows), draw * sites + i, steps, part) for i, (rows, part) in enumerate(parts)]
        truth = PrivateBatch(torch.cat([one.truth.x for one in each]), torch.cat([one.truth.y for one in each]))
        settings = parse_section(self.raw, SECURE_SUM, SecureSum)
        return Sent(summed([one.view for one in each], self._received.mask, settings), truth)

    def _sent(self, shown: Examples, draw: int, steps: int | None, size: int) -> Sent:
        like, done = self.like, self._play(shown, draw, "update", self._state(draw), steps, size)
        out, truth = done.result.outgoing, done.truth()
        update = attacked(
            self.run, self.raw, self._procedure.module, like.params, self._rounded(out.update, out.shared)
        )
        nothing = {name: torch.zeros_like(like.params[name]) for name in self.frozen}
        buffers = {name: done.result.buffers[name] for name in like.buffers}
        view = replace(
            like,
            update={**apply_mask(update, out.shared), **nothing},
            mask=like.mask if like.mask is None or self.frozen else done.result.base,
            shared={**out.shared, **{name: tensor.bool() for name, tensor in nothing.items()}},
            received_buffers=buffers if like.received_buffers else {},
            importance=None if like.importance is None else self._told(done.result, like.importance),
            num_examples=None if like.num_examples is None else min(done.steps * done.size, len(shown)),
            labels=None if like.labels is None else truth.y[: min(done.steps * done.size, len(shown))].to(self.device),
            steps=done.steps,
            batch_size=done.size,
            defenses=done.result.applied,
        )
        return Sent(view, truth)

    def _told(self, result: LocalResult, names: Iterable[str]) -> Tree:
        settings, known = scheme_settings(self.run.strategy, self.raw), layers(self._procedure.module)
        told = find(self.run.strategy).client.told(settings, self.round.number, result, known)
        nothing = {name: torch.zeros_like(self.like.params[name]) for name in self.frozen}
        return {name: {**nothing, **told}[name] for name in names}

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        """The view of a client that trained on ``shown``."""
        return self.play(shown, draw, steps, batch_size).view

    def _rounded(self, update: Tree, shared: Mask) -> Tree:
        """As it arrives: rounded for the wire where the run says so."""
        if self.run.values == "float32":
            return apply_mask(update, shared)
        update, shared = to_device(update, "cpu"), to_device(shared, "cpu")
        coded = to_coded(update, shared, shared, self.run.values)
        return to_device(sparse_from_coded(coded, update, Reference(shared)).dense(), self.device)


# the files ------------------------------------------------------------------------------------------------------------
def write_public(folder: Path, public: Examples, canaries: Examples, raw: Raw) -> None:
    """Write what every shadow of a run needs into its folder of traces."""
    tree = {"x": public.x, "y": public.y, "canary/x": canaries.x, "canary/y": canaries.y}
    write_tree(folder / PUBLIC, {n: t.contiguous() for n, t in tree.items()}, {"settings": json.dumps(dict(raw))})


def read_public(file: Path) -> tuple[Examples, Examples, Raw]:
    """Public images to learn from, canaries, and the run's settings."""
    tree, about = read_tree(file)
    canaries = Examples(tree["canary/x"], tree["canary/y"])
    return Examples(tree["x"], tree["y"]), canaries, json.loads(about["settings"])


def write_sent(folder: Path, mask: Mask | None, locations: Mask | None) -> None:
    """Write what the client of the view in ``folder`` was sent and its view does not say, if anything."""
    named = {"mask": mask, "locations": locations}
    tree = {f"{kind}/{n}": t for kind, masks in named.items() for n, t in (masks or {}).items()}
    if tree:
        write_tree(folder / SENT, {n: t.clone() for n, t in tree.items()})


def is_single(kind: str) -> bool:
    """Whether an audit is of the worst case (``server.audit.canary``)."""
    return kind.startswith("single")


def round_of(folder: Path, about: Mapping[str, object], whose: str) -> SentRound:
    """The round of the job in ``folder``, whose trace says ``about``."""
    tree = read_tree(folder / SENT)[0] if (folder / SENT).exists() else {}
    masks = {
        kind: {n.partition("/")[2]: t for n, t in tree.items() if n.startswith(f"{kind}/")}
        for kind in ("mask", "locations")
    }
    said = about.get("sites")
    sites = said if type(said) is int and 1 <= said <= MOST else 1
    return SentRound(int(str(about["round"])), masks["mask"] or None, masks["locations"] or None, whose, sites)


def shadow_beside(trace: Path, view: ServerView, task: Task, about: Mapping[str, object]) -> RunShadow | None:
    """The shadow of a view whose trace says ``about`` and lies in the folder of a run; None where it does not.

    An attack gets it: none of its draws is one of the control's, and its public images are no canaries."""
    file = trace.absolute().parent.parent / PUBLIC
    if not file.is_file() or "round" not in about:
        return None
    public, _, raw = read_public(file)
    shadow = RunShadow(raw, task, view, round_of(trace.parent, about, "shadow"), public)
    return shadow.first() if is_single(str(about.get("kind"))) else shadow
