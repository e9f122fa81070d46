"""The replies to one round: checked, counted, added up and dropped one by one, so that memory does not grow."""

import time
from collections.abc import Callable, Iterable, Iterator
from logging import WARNING

from flwr.app import Message
from flwr.common.logger import log

from prunella.core.config import Run
from prunella.core.trees import Mask, Tree, count, full_mask, size, subtract
from prunella.strategies.round.downlink import Downlink
from prunella.strategies.round.locations import coded_set
from prunella.strategies.round.masked_mean import Aggregation
from prunella.strategies.round.replies import Contribution, Expected, ReplyError, read_reply
from prunella.strategies.round.robust import Aggregator, Ordered
from prunella.strategies.round.stats import RoundStats
from prunella.wire.encode import fingerprint
from prunella.wire.sparse import SparseTree


class Collector:
    """Sums of the round that ``downlink`` has sent. ``importance_of`` names the tensors whose importance was asked for;
    ``values`` is the scheme's: what of a reply is added up, and where its client takes part."""

    def __init__(
        self,
        run: Run,
        downlink: Downlink,
        aggregator: Aggregator,
        stats: RoundStats,
        importance_of: frozenset[str],
        values: Callable[[Contribution, Expected], tuple[SparseTree, Mask]],
    ) -> None:
        whole = downlink.expected()
        self._run, self._downlink, self._aggregator, self._stats = run, downlink, aggregator, stats
        self._importance_of, self._values = importance_of, values
        self._params, self._buffers = aggregator.params(whole.params), aggregator.buffers(whole.buffers)

    def collect(self, replies: Iterable[Message]) -> Iterator[Contribution]:
        """Every valid reply, once it is added. The others are counted by reason, and so is who did not answer."""
        stats, downlink = self._stats, self._downlink
        missing = set(downlink.asked)
        for reply in replies:
            begin = time.perf_counter()
            node = downlink.node_of(reply)
            expected = downlink.expected(node)
            contribution = self._read(reply, node, expected, again=node not in missing)
            missing.discard(node)
            if contribution is not None:
                self._add(contribution, expected)
                yield contribution
                locations = downlink.locations
                if locations is not None:
                    if not locations.note(coded_set(reply), node, expected.mask):
                        stats.fail("locations")
            stats.aggregate_seconds += time.perf_counter() - begin
        for node in missing:
            downlink.record_mask(node, None)
            stats.fail("timeout")

    def _read(self, reply: Message, node: int, expected: Expected, again: bool) -> Contribution | None:
        member = self._downlink.asked.get(node)
        try:
            if member is None:
                raise ReplyError("unknown-client", "nobody asked this node")
            if again:
                raise ReplyError("malformed", "this client has answered already")
            return read_reply(reply, expected, self._importance_of)
        except ReplyError as error:
            self._downlink.record_mask(node, None)
            self._stats.fail(error.reason, str(error))
            client = node if member is None else member.client
            log(WARNING, "round %d: reply of client %d left out (%s): %s", expected.round, client, error.reason, error)
            return None

    def _add(self, contribution: Contribution, expected: Expected) -> None:
        self._params.add_sparse(*self._values(contribution, expected), contribution.weight)
        if expected.buffers:
            change = subtract(contribution.buffers, expected.buffers)
            self._buffers.add(change, full_mask(change), contribution.weight)
        stats, base = self._stats, contribution.base
        self._downlink.record_mask(contribution.node, expected.mark if base is expected.mask else fingerprint(base))
        stats.replies += 1
        stats.up += contribution.bytes
        if contribution.seconds is not None:  # what the client says it took
            stats.train_seconds += min(contribution.seconds, self._run.round_seconds)
            stats.timed += 1
        if kept := expected.kept if base is expected.mask else count(base):
            stats.withheld += 1 - size(contribution.sparse.values) / kept
            stats.seen += 1
        stats.ledgers.append(contribution.ledger)

    @property
    def counts(self) -> bool:
        """Whether as many replies came as a round has to have."""
        return self._stats.replies >= self._run.min_clients

    def merged(self) -> tuple[Tree, Tree]:
        """The next weights, not yet masked, and buffers: those of before where the round does not count."""
        whole, least, replies = self._downlink.expected(), self._aggregator.quorum, self._stats.replies
        if not self.counts:
            wanted, said = self._run.min_clients, "%d valid replies, and min-clients is %d: the round does not count"
            log(WARNING, f"round %d: {said}", whole.round, replies, wanted)
            return whole.params, whole.buffers
        if 0 < replies < least:
            log(
                WARNING,
                "round %d: %d valid replies, and robust=%s needs %d to outvote a liar: what it merges stays as it was",
                whole.round,
                replies,
                self._run.robust,
                least,
            )
        rule: Aggregation = "as_printed" if self._run.aggregation == "as_printed" else "holders"
        params = self._params.result(whole.params, rule)
        self._stats.still = self._params.still if isinstance(self._params, Ordered) else 0.0
        return params, self._buffers.result(whole.buffers, "holders")
