"""Clients score candidates for the run's first mask: the server's half (FedTiny's adaptive batch norm selection).

First each client asked tells batch norm's statistics of its images under every candidate, and the server averages them;
then each tells its loss under every candidate with the averaged statistics, and the lowest mean wins. A model without
batch norm takes the second turn alone. An answer that is wrong in any way is counted and left out. ``robust`` holds for
both turns as it does for buffers and evaluations: the statistics' merge is the aggregator's, and where it wants more
than one client, a candidate's loss is their median.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from prunella.core.errors import PrunellaError
from prunella.core.trees import Mask, Tree, all_finite, full_mask, subtract
from prunella.core.untrusted import figure
from prunella.strategies.round.replies import MAX_LOSS, ReplyError, leave_out, read_count, require_answer
from prunella.strategies.round.robust import Aggregator, pooled
from prunella.strategies.round.roster import Member
from prunella.strategies.round.stats import RoundStats
from prunella.wire.records import from_coded, mask_to_coded, record_bytes, to_coded, to_dense

SELECT = "train.select"
MASK, STATISTICS, LOSS = "mask", "statistics", "loss"
MAX_CANDIDATES = 64


@dataclass
class Selection:
    """One choice. ``params`` are the weights whole, ``masks`` the candidates, ``buffers`` what the run starts with."""

    params: Tree
    masks: tuple[Mask, ...]
    buffers: Tree
    aggregator: Aggregator
    stats: RoundStats
    asking: Callable[[Iterable[int]], None] = lambda clients: None
    statistics: tuple[Tree, ...] = field(default=())

    def choose(self, grid: Grid, asked: list[Member], seconds: float) -> int | None:
        """The number of the candidate with the lowest loss, the first of equal ones; None where nobody scored them."""
        if self.buffers:
            self._average(list(self._replies(grid, asked, STATISTICS, seconds)))
        losses: list[list[float]] = [[] for _ in self.masks]
        examples = []
        for reply in self._replies(grid, asked, LOSS, seconds):
            try:
                told = [_loss(reply, number) for number in range(len(self.masks))]
                examples.append(read_count(_metrics(reply)))
            except ReplyError as error:
                self._leave_out(error)
                continue
            for of_one, loss in zip(losses, told, strict=True):
                of_one.append(loss)
        if len(examples) < self.aggregator.quorum:
            return None
        equal = [1] * len(examples)  # the paper's mean is over devices
        means = [pooled(of_one, equal, self.aggregator.quorum) for of_one in losses]
        return means.index(min(means))

    def _replies(self, grid: Grid, asked: list[Member], what: str, seconds: float) -> Iterator[Message]:
        """The answers to one question, in the order of clients, one of each who was asked."""
        arrays = {"model": to_coded(self.params, full_mask(self.params))}
        arrays |= {"buffers": to_dense(self.buffers)} if self.buffers else {}
        arrays |= {f"{MASK}-{number}": mask_to_coded(mask) for number, mask in enumerate(self.masks)}
        for number, tree in enumerate(self.statistics):
            arrays[f"{STATISTICS}-{number}"] = to_coded(tree, full_mask(tree))
        told = ConfigRecord({"round": 0, "asked": what, "candidates": len(self.masks)})
        messages = []
        for member in asked:
            content = RecordDict({**arrays, "config": told})
            self.stats.down += sum(record_bytes(record) for record in arrays.values())
            messages.append(Message(content, dst_node_id=member.node, message_type=SELECT))
        self.asking([member.client for member in asked])
        came = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages, timeout=seconds)}
        for member in asked:
            reply = came.get(member.node)
            try:
                if reply is None:
                    raise ReplyError("timeout", "no answer came")
                self.stats.first.append((member.client, reply))
                require_answer(reply)
            except ReplyError as error:
                self._leave_out(error)
                continue
            self.stats.up += _bytes(reply.content.array_records.values())
            yield reply

    def _average(self, replies: list[Message]) -> None:
        """Batch norm's statistics for every candidate, from all valid answers; without any they stay as they are."""
        sums = [self.aggregator.buffers(self.buffers) for _ in self.masks]
        for reply in replies:
            try:
                found = [_statistics(reply, number, self.buffers) for number in range(len(self.masks))]
                weight = read_count(_metrics(reply))
            except PrunellaError as error:
                self._leave_out(error)
                continue
            for total, tree in zip(sums, found, strict=True):
                change = subtract(tree, self.buffers)
                total.add(change, full_mask(change), weight)
        self.statistics = tuple(total.result(self.buffers, "holders") for total in sums)

    def _leave_out(self, error: PrunellaError) -> None:
        log(WARNING, "first mask: an answer is left out (%s): %s", leave_out(error, self.stats), error)


def _bytes(records: Iterable[ArrayRecord]) -> int:
    return sum(record_bytes(record) for record in records)


def _statistics(reply: Message, number: int, like: Tree) -> Tree:
    record = reply.content.array_records.get(f"{STATISTICS}-{number}")
    if record is None:
        raise ReplyError("malformed", "batch norm's statistics of a candidate are missing")
    tree, kept = from_coded(record, like)
    negative = any(bool((t < 0).any()) for name, t in tree.items() if name.endswith("running_var"))
    if negative or not all_finite(tree) or not all(bool(mask.all()) for mask in kept.values()):
        raise ReplyError("nan", "batch norm's statistics of a candidate are not whole, finite and possible")
    return tree


def _loss(reply: Message, number: int) -> float:
    found = figure(_metrics(reply).get(f"{LOSS}-{number}"), 0.0, MAX_LOSS)
    if found is None:
        raise ReplyError("metrics", "a candidate's loss is missing or out of bounds")
    return found


def _metrics(reply: Message) -> MetricRecord:
    return reply.content.metric_records.get("metrics", MetricRecord())
