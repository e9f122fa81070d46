"""The replies to a round of masked sums: added up as they come, opened when all are there, merged as one mean.

It stands where ``strategies.round.collector`` does. There is no contribution of one client to look at, so a reply is
checked for its round, its mask and its length only: a client that sends nonsense spoils the round, and nobody can say
whose it was. Such a sum is noticed where it is not one of values within the range (``vector.from_sum``), and the round
does not count.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from logging import WARNING

from flwr.app import ConfigRecord, Message
from flwr.common.logger import log
from torch import Tensor

from prunella.core.config import Run
from prunella.core.errors import PrunellaError, WireError
from prunella.core.trees import Tree, map_trees
from prunella.core.untrusted import clean
from prunella.strategies.round.downlink import Downlink
from prunella.strategies.round.replies import Expected, ReplyError, require_answer, require_round
from prunella.strategies.round.replies import read_ledger as ledger_of
from prunella.strategies.round.stats import RoundStats
from prunella.strategies.secure_sum.exchange import Exchange, model_of
from prunella.strategies.secure_sum.letters import read_bytes, record_of, unpack_masked
from prunella.strategies.secure_sum.participant import attested_by
from prunella.strategies.secure_sum.summation import Summation
from prunella.strategies.secure_sum.vector import form_of, from_sum, length


@dataclass(frozen=True)
class OpenedSum:
    """A round's sum as the server reads it: the weighted means of the updates and of the buffers' changes, float64, the
    sum of the example counts, and the clients whose updates are in it."""

    update: Tree
    change: Tree
    examples: int
    clients: tuple[int, ...]


class SumCollector:
    """The sum of the round that ``downlink`` has sent. ``ledgers`` are what clients say of their privacy, by number."""

    def __init__(self, run: Run, downlink: Downlink, exchange: Exchange, stats: RoundStats) -> None:
        self._run, self._downlink, self._exchange, self._stats = run, downlink, exchange, stats
        self.opened: OpenedSum | None = None
        self.attested: dict[int, bytes] = {}  # by client, its statement on the model it trained
        self.ledgers: dict[int, dict[str, float | int | str]] = {}

    def collect(self, replies: Iterable[Message]) -> None:
        """Add the replies up and open their sum."""
        party, whole = self._exchange.party, self._downlink.expected()
        if party is None:
            return
        form = form_of(self._exchange.settings, len(party.clients))
        count = length(whole.mask, whole.buffers)
        summation = Summation(party, self._exchange.peers, count, form)
        model = model_of(whole.params, whole.mask, whole.buffers)
        missing = set(self._downlink.asked)
        for reply in replies:
            begin = time.perf_counter()
            node = self._downlink.node_of(reply)
            missing.discard(node)
            self._add(reply, node, whole, model, summation)
            self._stats.aggregate_seconds += time.perf_counter() - begin
        for node in missing:
            self._downlink.record_mask(node, None)
            self._stats.fail("timeout")
        if len(summation.survivors) < max(party.threshold, self._run.min_clients):
            log(WARNING, "round %d: %d masked updates came, and %d must: the round does not count",
                whole.round, len(summation.survivors), max(party.threshold, self._run.min_clients))  # fmt: skip
            return
        try:
            total = summation.result(self._exchange.open(self.attested))
            update, change, examples = from_sum(total, whole.mask, whole.buffers, len(summation.survivors), form)
        except PrunellaError as error:
            self._stats.fail(error.reason if isinstance(error, WireError) else "malformed")
            log(WARNING, "round %d: the sum was not opened, so the round does not count: %s", whole.round, error)
            return
        self.opened = OpenedSum(update, change, examples, tuple(sorted(summation.survivors)))
        self._stats.replies = len(summation.survivors)

    def _add(self, reply: Message, node: int, whole: Expected, model: str, summation: Summation) -> None:
        """One client's masked words, where they fit."""
        member = self._downlink.asked.get(node)
        try:
            if member is None:
                raise ReplyError("unknown-client", "nobody asked this node")
            require_answer(reply)
            provenance = reply.content.config_records.get("provenance", ConfigRecord())
            require_round(provenance, whole)
            ledger, data = ledger_of(reply.content), unpack_masked(reply.content)
            statement = read_bytes(record_of(reply.content), "model")
            if not attested_by(summation.party, member.client, statement, model):
                raise WireError("stale", "the update is not of the model that was sent")
            summation.add(member.client, data)
            self.attested[member.client] = statement
        except (ReplyError, WireError) as error:
            self._downlink.record_mask(node, None)
            self._stats.fail(error.reason)
            log(WARNING, "round %d: a masked update left out (%s): %s", whole.round, error.reason, clean(str(error)))
            return
        self._downlink.record_mask(node, whole.mark)
        self._stats.up += len(data)
        self.ledgers[member.client] = ledger
        self._stats.ledgers.append(ledger)

    @property
    def counts(self) -> bool:
        """Whether the sum was opened: whether the round counts."""
        return self.opened is not None

    def merged(self) -> tuple[Tree, Tree]:
        """The next weights, not yet masked, and buffers: those of before where the round does not count."""
        whole = self._downlink.expected()
        if self.opened is None:
            return whole.params, whole.buffers
        return map_trees(moved, whole.params, self.opened.update), map_trees(moved, whole.buffers, self.opened.change)


def moved(before: Tensor, by: Tensor) -> Tensor:
    """``before`` + ``by`` in the dtype of ``before``; a count of batches is a whole number again."""
    moved = before.double() + by
    return (moved if before.is_floating_point() else moved.round()).to(before.dtype)
