"""``MaskedMean``: FedAvg under pruning masks, with sparse records both ways and every reply checked.

The Flower-aware half of the pruning schemes. The global model stays a plain dense ``ArrayRecord`` (parameters and
buffers by name), so the strategy also runs under Flower's own ``Strategy.start``. A scheme overrides what stands under
"what a scheme decides"; nothing else differs between schemes.

``mask`` is everybody's mask, and the global model is zero outside it. A client that has an entry in ``personal`` gets,
and is held to, that smaller mask instead.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import nn

from prunella.core.config import Run
from prunella.core.errors import PrunellaError
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, map_trees, size
from prunella.pruning.selection import density
from prunella.strategies.round.locations import LocationSets
from prunella.strategies.round.personal import PersonalMasks
from prunella.strategies.round.replies import (
    Contribution,
    Expected,
    Listener,
    ReplyError,
    read_evaluation,
    read_reply,
)
from prunella.strategies.round.robust import MEAN, Aggregator, Sum, pooled
from prunella.strategies.round.roster import Member, Roster, sample
from prunella.tasks.data import Examples
from prunella.tasks.task import Task
from prunella.wire.encode import decode_mask, dense_bytes, fingerprint
from prunella.wire.records import from_dense, record_bytes, to_coded, to_dense


@dataclass
class RoundStats:
    """What a round cost and lost, for metrics: bytes per direction, failures by reason, times, defense rate."""

    available: int = 0
    selected: int = 0
    sent: int = 0
    replies: int = 0
    down: int = 0
    up: int = 0
    dense: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    train_seconds: float = 0.0
    aggregate_seconds: float = 0.0
    withheld: float = 0.0
    ledgers: list[dict[str, float | int | str]] = field(default_factory=list)

    def fail(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1


@dataclass(frozen=True)
class Model:
    """The model as the server knows it: structure, input shape, and which names are what.

    ``public`` are examples that are nobody's secret, for the schemes that prune on data before training, and ``task``
    is what fresh weights are drawn from.
    """

    module: nn.Module
    shape: tuple[int, int, int]
    parameters: tuple[str, ...]
    prunable: frozenset[str]
    public: Examples | None = None
    task: Task | None = None

    def split(self, tree: Tree) -> tuple[Tree, Tree]:
        """Parameters and buffers of a dense tree."""
        params = {name: tree[name] for name in self.parameters}
        return params, {name: t for name, t in tree.items() if name not in params}


class MaskedMean(FedAvg):
    """Averages what clients share under a mask that stays as it is (here: full, which is FedAvg)."""

    def __init__(self, run: Run, model: Model, settings: Any = None, listener: Listener | None = None) -> None:
        super().__init__(fraction_train=run.fraction, min_train_nodes=run.min_clients)
        # Not in the constructor: Flower warns there about a choice that is meant.
        self.fraction_evaluate = 1.0 if run.evaluation == "clients" else 0.0
        self.run, self.model, self.settings, self.listener = run, model, settings, listener
        self.roster = Roster()
        self.mask: Mask | None = None
        self.personal = PersonalMasks()
        self.locations: LocationSets | None = None  # under ADGP
        self.aggregator: Aggregator = MEAN
        self.stats = RoundStats()
        self.buffers: Tree = {}
        self._expected: Expected | None = None
        self._asked: dict[int, Member] = {}
        self._sent: list[Metadata] = []
        self._own: dict[int, bytes | None] = {}
        self._held: dict[int, bytes] = {}

    def summary(self) -> None:
        """Log what this strategy is."""
        log(INFO, "\t└──> %s, rate %.2f, aggregation %s", type(self).__name__, self.run.rate, self.run.aggregation)

    # what a scheme decides -------------------------------------------------------------------------------------------
    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        """The mask before the first round."""
        return full_mask(params)

    def first_model(self, params: Tree, grid: Grid, members: list[Member]) -> tuple[Tree, Mask]:
        """Weights and mask before the first round, for a scheme that also chooses where to start."""
        return params, self.first_mask(params, grid, members)

    def assign(self, server_round: int, chosen: list[Member]) -> None:
        """Called before a round is sent, for a scheme that gives clients masks of their own."""

    def allowed(self, server_round: int, mask: Mask) -> Mask | None:
        """How far a client may move the mask it is sent; None: not at all."""
        return None

    def importance_names(self, server_round: int) -> frozenset[str]:
        """Tensors whose squared gradients clients must send this round."""
        return frozenset()

    def note(self, contribution: Contribution) -> None:
        """Called with every valid reply, in order, before it is dropped."""

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        """The mask of the next round, from the weights just aggregated."""
        return mask

    # one round -------------------------------------------------------------------------------------------------------
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample members and code the masked model for each; bits of the mask only for those who lack it."""
        members = self.roster.wait_for(grid, self.run.min_clients, self.run.round_seconds)
        params, buffers = self.model.split(from_dense(arrays))
        self.stats = RoundStats(dense=dense_bytes(params))
        self.buffers = buffers
        if self.mask is None:
            params, self.mask = self.first_model(params, grid, members)
        chosen = sample(members, self.run.fraction, self.run.min_clients, self.run.seed, server_round)
        self._expected = self._expect(server_round, params, self.mask, buffers)
        self._asked = {member.node: member for member in chosen}
        self.assign(server_round, chosen)
        if self.locations is not None:
            self.locations.begin(server_round, self.mask, self._expected.params, chosen)
            self._expected = replace(self._expected, locations=self.locations.current)
        self.stats.available, self.stats.selected = len(members), len(chosen)
        wanted = sorted(self.importance_names(server_round))
        config = ConfigRecord({**config, "round": server_round, "importance": wanted})
        messages = self._messages(chosen, config, "train")
        self._sent = [message.metadata for message in messages]
        return messages

    def _messages(self, members: list[Member], config: ConfigRecord, kind: str) -> list[Message]:
        whole = self._require_expected()
        self._own = {member.node: self.personal.coded(member.client) for member in members}
        everybodys = fingerprint(whole.mask)
        extra = {"buffers": to_dense(whole.buffers)} if whole.buffers else {}
        coded: dict[tuple[bytes, bool], ArrayRecord] = {}
        messages = []
        for member in members:
            expected = self.expected(member.node)
            mark = everybodys if expected is whole else fingerprint(expected.mask)
            knows = self._held.get(member.node) == mark
            arrays, told = dict(extra), config
            if self.locations is not None and kind == "train":
                records, more = self.locations.records(member.node, expected, knows)
                arrays, told = {**records, **extra}, ConfigRecord({**config, **more})
            else:
                if (mark, knows) not in coded:
                    coded[mark, knows] = to_coded(expected.params, expected.mask, expected.mask if knows else None)
                arrays["model"] = coded[mark, knows]
            self.stats.down += sum(record_bytes(record) for record in arrays.values())
            self.stats.sent += 1
            content = RecordDict({**arrays, "config": told})
            messages.append(Message(content, dst_node_id=member.node, message_type=kind))
        return messages

    def _expect(self, server_round: int, params: Tree, mask: Mask, buffers: Tree) -> Expected:
        required = {name: kept for name, kept in full_mask(mask).items() if name not in self.model.prunable}
        allowed = self.allowed(server_round, mask)
        names = self.run.defense_names
        return Expected(server_round, apply_mask(params, mask), mask, buffers, allowed, required, names)

    def _require_expected(self) -> Expected:
        if self._expected is None:
            raise PrunellaError("aggregate_train was called before configure_train")
        return self._expected

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, count, add and drop the replies one by one; then revise the mask."""
        whole = self._require_expected()
        total, buffers = self.aggregator.params(whole.params), self.aggregator.buffers(whole.buffers)
        missing = set(self._asked)
        for reply in replies:
            begin = time.perf_counter()
            node = self._node_of(reply)
            missing.discard(node)
            expected = self.expected(node)
            contribution = self._read(reply, node, expected)
            if contribution is not None:
                total.add_kept(contribution.kept, contribution.spoken, contribution.weight)
                self._add_buffers(buffers, contribution, expected)
                self._count(contribution, expected)
                if self.locations is not None and not self.locations.note(reply, node, whole.mask):
                    self.stats.fail("locations")
            self.stats.aggregate_seconds += time.perf_counter() - begin
        for node in missing:
            self._held.pop(node, None)
            self.stats.fail("timeout")
        if 0 < self.stats.replies < self.aggregator.quorum:
            log(WARNING, "round %d: %d valid replies, and robust=%s outvotes a liar among %d only: what is "
                "merged by middle values stays", server_round, self.stats.replies, self.run.robust,
                self.aggregator.quorum)  # fmt: skip
        params = total.result(whole.params, self.run.aggregation)
        self.mask = self.revise_mask(server_round, params, whole.mask)
        merged = {**apply_mask(params, self.mask), **buffers.result(whole.buffers, "holders")}
        return to_dense(merged), MetricRecord({"clients": self.stats.replies})

    def _add_buffers(self, total: Sum, contribution: Contribution, expected: Expected) -> None:
        if expected.buffers:
            change = map_trees(lambda new, old: new - old, contribution.buffers, expected.buffers)
            total.add(change, full_mask(change), contribution.weight)

    def _node_of(self, reply: Message) -> int:
        """The node a reply is of. For a dead one the SuperLink answers itself, so the question tells who was asked."""
        asked = {sent.message_id: sent.dst_node_id for sent in self._sent}
        unreachable = reply.has_error() and reply.metadata.src_node_id not in self._asked
        source = reply.metadata.src_node_id
        return asked.get(reply.metadata.reply_to_message_id, source) if unreachable else source

    def _read(self, reply: Message, node: int, expected: Expected) -> Contribution | None:
        try:
            if node not in self._asked:
                raise ReplyError("unknown-client", "nobody asked this node")
            return read_reply(reply, expected, self.importance_names(expected.round))
        except ReplyError as error:
            self._held.pop(node, None)
            self.stats.fail(error.reason)
            client = self._asked[node].client if node in self._asked else node
            log(WARNING, "round %d: reply of client %d left out (%s): %s", expected.round, client, error.reason, error)
            return None

    def _count(self, contribution: Contribution, expected: Expected) -> None:
        stats, base = self.stats, contribution.base
        self._held[contribution.node] = expected.mark if base is expected.mask else fingerprint(base)
        stats.replies += 1
        stats.up += contribution.bytes
        stats.train_seconds += min(contribution.seconds, self.run.round_seconds)  # what the client says it took
        kept = expected.kept if base is expected.mask else count(base)
        stats.withheld += 1 - size(contribution.kept.values) / kept if kept else 0.0
        stats.ledgers.append(contribution.ledger)
        self.note(contribution)
        if self.listener is not None:
            self.listener(contribution)

    # evaluation on clients -------------------------------------------------------------------------------------------
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The aggregated model to every member, when clients evaluate."""
        if self.fraction_evaluate == 0.0 or self.mask is None:
            return []
        params, buffers = self.model.split(from_dense(arrays))
        self._expected = self._expect(server_round, params, self.mask, buffers)
        return self._messages(self.roster.refresh(grid), ConfigRecord({**config, "round": server_round}), "evaluate")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What clients measured, ``pooled``; an answer that is none is counted and left out."""
        checked = []
        for reply in replies:
            try:
                checked.append(read_evaluation(reply))
            except ReplyError as error:
                self.stats.fail(error.reason)
        if len(checked) < self.aggregator.quorum:
            return None
        examples, least = [answer.examples for answer in checked], self.aggregator.quorum
        loss = pooled([answer.loss for answer in checked], examples, least)
        accuracy = pooled([answer.accuracy for answer in checked], examples, least)
        return MetricRecord({"num-examples": sum(examples), "loss": loss, "accuracy": accuracy})

    def view_start(self, expected: Expected, contribution: Contribution) -> Tree:
        """The weights a client's training began from, as the server knows them; an attack measures the update there."""
        return expected.params

    def member(self, node: int) -> Member | None:
        """The member behind a node of this round."""
        return self._asked.get(node)

    def expected(self, node: int | None = None) -> Expected:
        """What was sent this round, to a node or under everybody's mask: all a view needs beside the contribution."""
        whole = self._require_expected()
        own = self._own.get(node) if node is not None else None
        if own is None:
            return whole
        return self._expect(whole.round, whole.params, decode_mask(own, whole.params), whole.buffers)

    # what outlives a round -------------------------------------------------------------------------------------------
    def density(self) -> float:
        """Share of the prunable weights kept: by everybody's mask, or the mean of the clients' own."""
        if self.mask is None:
            return 1.0
        own = self.personal.densities(self.mask, self.model.prunable)
        return sum(own.values()) / len(own) if own else density(self.mask, self.model.prunable)

    def remembered(self) -> Tree:
        """What a resumed run must find again beside weights and mask, as tensors by name."""
        return self.personal.tree() | (self.locations.tree() if self.locations is not None else {})

    def recall(self, saved: Tree) -> None:
        """The inverse of ``remembered``."""
        if self.locations is not None and self.mask is not None:
            self.locations.load(saved, self.mask)
            saved = {}
        self.personal.load(saved)
