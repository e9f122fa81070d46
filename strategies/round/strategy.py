"""``MaskedMean``: FedAvg under pruning masks, with sparse records both ways and every reply checked.

This is what Flower calls. ``downlink`` says what is sent, ``collector`` what becomes of the replies. The global model
stays a plain dense ``ArrayRecord`` (parameters and buffers by name), so the strategy also runs under Flower's own
``Strategy.start``. A scheme is a subclass that overrides the methods under "what a scheme decides", and nothing else.

``mask`` is everybody's mask, and the global model is zero outside it. A client that has an entry in
``downlink.personal`` gets, and is held to, that smaller mask instead.
"""

from collections.abc import Callable, Iterable
from functools import partial
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from prunella.core.config import Run
from prunella.core.trees import Mask, Tree, apply_mask, full_mask
from prunella.pruning.widths import sub_mask
from prunella.strategies.round.collector import Collector
from prunella.strategies.round.downlink import Downlink
from prunella.strategies.round.pace import SpeedTiers
from prunella.strategies.round.replies import Contribution, Expected, Listener, ReplyError, read_evaluation
from prunella.strategies.round.robust import MEAN, NONE, Aggregator, pooled
from prunella.strategies.round.roster import Member, Roster
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.stats import RoundStats
from prunella.strategies.secure_sum.collector import OpenedSum, SumCollector
from prunella.strategies.secure_sum.exchange import Exchange
from prunella.wire.encode import dense_bytes
from prunella.wire.records import from_dense, to_dense
from prunella.wire.sparse import SparseTree


class MaskedMean(FedAvg):
    """Averages what clients share under a mask that stays as it is (here: full, which is FedAvg)."""

    def __init__(self, run: Run, model: ServerModel, settings: Any = None) -> None:
        super().__init__(fraction_train=run.fraction, min_train_nodes=run.min_clients)
        # Not in the constructor: Flower warns there about a choice that is meant.
        self.fraction_evaluate = 1.0 if run.evaluation == "clients" else 0.0
        self.run, self.model, self.settings = run, model, settings
        self.listener: Listener | None = None  # told of every valid reply
        #: told of whom a scheme is about to ask before the first round; of a round's messages their sender knows
        self.asking: Callable[[Iterable[int]], None] = lambda clients: None
        self.roster = Roster()
        self.pace = SpeedTiers(run)
        self.downlink = Downlink(run, model.prunable, self.allowed, partial(sub_mask, model.module, model.shape))
        self.aggregator: Aggregator = MEAN
        self.exchange: Exchange | None = None  # of masked sums
        self.opened: OpenedSum | None = None  # of the last round, if its sum was opened
        self.mask: Mask | None = None
        self.buffers: Tree = {}
        self.ledgers: dict[int, dict[str, float | int | str]] = {}  # of clients whose replies nobody is told of
        self.stats = RoundStats()

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

    def values(self, contribution: Contribution, expected: Expected) -> tuple[SparseTree, Mask]:
        """What of a valid reply is aggregated, and where the client takes part."""
        return contribution.sparse, contribution.participation

    def note(self, contribution: Contribution) -> None:
        """Called with every valid reply, in order, before it is dropped."""

    def revise_params(self, server_round: int, params: Tree) -> Tree:
        """The weights just aggregated, where the scheme's mean is another one. Called before ``revise_mask``."""
        return params

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        """The mask of the next round, from the weights just aggregated."""
        return mask

    def voice(self, contribution: Contribution) -> float:
        """What a client counts for, also beside its update. Under a robust rule its own word on its examples is not
        believed."""
        return contribution.weight if self.run.robust == NONE else 1.0

    def view_start(self, expected: Expected, contribution: Contribution) -> Tree:
        """The weights a client's training began from, as the server knows them; an attack measures the update there."""
        return expected.params

    def remembered(self) -> Tree:
        """What a resumed run must find again beside weights and mask, as tensors by name."""
        return self.downlink.tree()

    def recall(self, saved: Tree) -> None:
        """The inverse of ``remembered``."""
        self.downlink.load(saved, self.mask)

    # what Flower calls -----------------------------------------------------------------------------------------------
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample members and ask each to train the masked model."""
        members = self.roster.wait_for(grid, self.run.min_clients, self.run.round_seconds)
        params, self.buffers = self.model.split(from_dense(arrays))
        self.stats = RoundStats(available=len(members), dense=dense_bytes(params))
        if self.mask is None:
            params, self.mask = self.first_model(params, grid, members)
        chosen = self.pace.choose(members, server_round)
        self.stats.selected = len(chosen)
        if self.exchange is not None:
            chosen = self.exchange.gather(grid, server_round, chosen, self.stats)
        self.downlink.begin(server_round, params, self.mask, self.buffers)
        self.assign(server_round, chosen)
        wanted = sorted(self.importance_names(server_round))
        told = ConfigRecord({**config, "round": server_round, "importance": wanted})
        messages = self.downlink.train(chosen, told, self.stats)
        if self.exchange is not None:
            self.exchange.enclose(messages, self.downlink.asked)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the valid replies up, then revise the mask."""
        sent = self.downlink.expected()
        if self.exchange is not None:
            return self._open_sum(server_round, replies, self.exchange)
        names = self.importance_names(sent.round)
        collector = Collector(self.run, self.downlink, self.aggregator, self.stats, names, self.values)
        timed = self.pace.timed(replies, self.downlink.asked, self.downlink.node_of)
        for contribution in collector.collect(timed):
            self.note(contribution)
            if self.listener is not None:
                self.listener(contribution)
        return self._merged(server_round, collector)

    def _open_sum(
        self, server_round: int, replies: Iterable[Message], exchange: Exchange
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Add masked replies up. No reply can be looked at alone: nothing is noted, nobody is told of one."""
        collector = SumCollector(self.run, self.downlink, exchange, self.stats)
        collector.collect(replies)
        self.ledgers, self.opened = collector.ledgers, collector.opened
        return self._merged(server_round, collector)

    def _merged(self, server_round: int, collector: Collector | SumCollector) -> tuple[ArrayRecord, MetricRecord]:
        sent, counts = self.downlink.expected(), collector.counts
        params, buffers = collector.merged()
        if counts:
            params = self.revise_params(server_round, params)
        if counts and not self.model.computes(params, buffers):
            log(WARNING, "round %d: what was merged is no model that anybody can train from (values that are not "
                "finite): the round does not count. Lower learning-rate; and robust=median outvotes a client that "
                "sends such updates", server_round)  # fmt: skip
            params, buffers, counts = sent.params, sent.buffers, False
        self.stats.void = not counts
        revised = self.revise_mask(server_round, params, sent.mask)  # which also forgets what the round collected
        self.mask = revised if counts else sent.mask
        return to_dense({**apply_mask(params, self.mask), **buffers}), MetricRecord({"clients": self.stats.replies})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The aggregated model to every member, when clients evaluate."""
        if self.fraction_evaluate == 0.0 or self.mask is None:
            return []
        params, buffers = self.model.split(from_dense(arrays))
        self.downlink.begin(server_round, params, self.mask, buffers)
        told = ConfigRecord({**config, "round": server_round})
        return self.downlink.evaluate(self.roster.refresh(grid), told, self.stats)

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
