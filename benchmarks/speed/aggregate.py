"""What aggregating costs a server: replies decoded, checked and added one at a time, beside the memory traffic of it.

Replies of ResNet18 (11 M parameters) at 80 % removed go through ``MaskedMean.aggregate_train``, as in a round: coded
bytes in, new weights out. A few different ones are made by a real local step and come again from other nodes until
there are ``--replies``; making them is not timed, nor is what Flower does before a message is there. Buffers are left
out, and so is the one gradient on noise by which a server tries the new weights. ``--kind dgp``: every client shares
other coordinates, so each reply brings a mask, and sums cannot stay small.

``growth`` is the peak of resident memory above what the process held before the first reply, read from Linux'
high-water mark, which is reset there.

``traffic`` is what has to be moved for replies that share one mask: a reply's bytes are read, its kept values are
written once and read once, the double-precision sums over the kept coordinates are read and written; once a round the
dense sums of values and of weights are written and read, the old weights read and the new ones written. ``dense`` is
what an aggregator that knows nothing of masks but skips withheld coordinates has to move: the dense update and its mask
written and read, dense sums read and written. ``needed`` and ``needed_dense`` are the times a memcpy in the same run,
on one thread, takes for as many bytes (a copy reads and writes, so it moves each byte twice), the fastest of several;
the ratios are the time taken over them. Zeroing memory, and checks that read an update again, count as time only.

    python -m prunella.benchmarks.speed.aggregate [--replies 200] [--model resnet18] [--kind magnitude] [--json]
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from prunella.benchmarks.speed.bench import command, fastest, show_table
from prunella.benchmarks.speed.updates import KINDS, LocalTraining, Update, examples, real_update
from prunella.core.config import Run
from prunella.core.parallel import threads
from prunella.core.trees import Mask, Tree, all_finite, apply_mask, count, size
from prunella.strategies.round.roster import Member
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.wire.encode import dense_bytes, fingerprint
from prunella.wire.records import from_dense, record_bytes, to_coded, to_dense

MEBI = 2**20


class Nodes:
    """The part of a Grid that choosing clients needs."""

    def __init__(self, replies: int) -> None:
        self.ids = range(1, replies + 1)

    def get_node_ids(self) -> range:
        return self.ids


class Bare(ServerModel):
    """Of weights without a network, which nothing can be computed with."""

    def computes(self, params: Tree, buffers: Tree) -> bool:
        return all_finite(params)


class Fixed(MaskedMean):
    """Under a mask that stands beforehand."""

    base: Mask

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        return self.base


def contents(update: Update, weight: int) -> RecordDict:
    """What a client would send."""
    provenance = ConfigRecord({"round": 1, "mask": fingerprint(update.base), "applied": ["none"]})
    metrics = MetricRecord({"num-examples": weight, "train-seconds": 1.0})
    arrays = to_coded(update.update, update.shared, update.base)
    return RecordDict({"update": arrays, "provenance": provenance, "metrics": metrics})


def message(content: RecordDict, node: int) -> Message:
    TaskIdentity.node_id = node
    return Message(content, dst_node_id=1, message_type="train")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def memory(field: str) -> int:
    """Bytes of a line of this process's status, such as VmRSS or VmHWM (its peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def traffic(coordinates: int, kept: int, blob: int, replies: int) -> int:
    """Bytes that must be moved when every reply shares the same coordinates.

    >>> traffic(coordinates=10, kept=2, blob=5, replies=1)
    453
    """
    once = 2 * (8 + 8) * coordinates + 2 * 4 * coordinates
    return replies * (blob + 2 * 4 * kept + 2 * 8 * kept) + once


def dense_traffic(coordinates: int, blob: int, replies: int) -> int:
    """Bytes that must be moved when replies are dense in memory: updates, one-byte masks, double sums.

    >>> dense_traffic(coordinates=10, blob=5, replies=1)
    665
    """
    each = blob + 2 * 4 * coordinates + 2 * coordinates + 2 * 8 * coordinates
    return replies * each + 2 * (8 + 8) * coordinates + 2 * 4 * coordinates


def copy_bandwidth(size: int, repeat: int = 9) -> float:
    """Bytes a second that a memcpy reads and writes together."""
    here, there = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return 2 * size / fastest({"copy": lambda: np.copyto(there, here)}, repeat)["copy"]


def prepare(updates: list[Update], replies: int) -> tuple[Fixed, Tree, list[Message]]:
    """A strategy whose first round is sent, its weights, and the replies to it."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # Flower sets these in its own processes
    first = updates[0]
    params = apply_mask({name: torch.ones_like(t) for name, t in first.update.items()}, first.base)
    names = tuple(params)
    strategy = Fixed(Run(defenses="none"), Bare(nn.Identity(), (3, 32, 32), names, frozenset(names)))
    strategy.base = first.base
    strategy.roster.members = {node: Member(node, node) for node in range(1, replies + 1)}
    list(strategy.configure_train(1, to_dense(params), ConfigRecord(), cast(Grid, Nodes(replies))))
    coded = [contents(update, weight) for weight, update in enumerate(updates, start=1)]
    return strategy, params, [message(coded[i % len(coded)], i + 1) for i in range(replies)]


def aggregate(strategy: MaskedMean, messages: list[Message]) -> tuple[Tree, list[float]]:
    """The new weights, and the seconds of every reply and of the end. Raises ``ValueError`` when one was left out."""
    seconds: list[float] = []

    def timed() -> Iterator[Message]:
        for reply in messages:
            begin = time.perf_counter()
            yield reply
            seconds.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    arrays, _ = strategy.aggregate_train(1, timed())
    seconds.append(time.perf_counter() - begin - sum(seconds))
    if arrays is None or strategy.stats.replies != len(messages):
        raise ValueError(f"replies were left out: {strategy.stats.failures}")
    return from_dense(arrays), seconds


def measure(updates: list[Update], replies: int) -> dict[str, Any]:
    """Memory and time of a round with these updates, all under one base mask."""
    first = updates[0]
    strategy, params, messages = prepare(updates, replies)
    bandwidth, dense = copy_bandwidth(dense_bytes(params)), dense_bytes(params)
    reset_peak()
    before = memory("VmRSS")
    _, seconds = aggregate(strategy, messages)
    growth, total, median = memory("VmHWM") - before, sum(seconds), float(np.median(seconds[:-1]))
    blob, kept = record_bytes(messages[0].content.array_records["update"]), count(first.shared)
    needed = traffic(size(params), kept, blob, replies) / bandwidth
    needed_dense = dense_traffic(size(params), blob, replies) / bandwidth
    found = {"replies": replies, "parameters": size(params), "kept": kept / size(params), "blob": blob}
    found |= {"growth": growth, "dense_of_all": replies * dense, "seconds": total, "fastest_reply": min(seconds[:-1])}
    found |= {
        "median_reply": median,
        "needed": needed,
        "ratio": total / needed,
        "median_ratio": median * replies / needed,
    }
    found |= {"needed_dense": needed_dense, "dense_ratio": total / needed_dense}
    return {**found, "copy_megabytes_per_second": bandwidth / 2 / 1e6, "threads": threads()}


def show(result: dict[str, Any]) -> None:
    grown, dense = result["growth"] / MEBI, result["dense_of_all"] / MEBI
    fastest, median = 1000 * result["fastest_reply"], 1000 * result["median_reply"]
    rows = [
        ("memory growth", f"{grown:.0f} MiB (all replies dense: {dense:.0f})"),
        ("time", f"{result['seconds']:.2f} s; a reply {median:.1f} ms, the fastest {fastest:.1f}"),
        ("memory traffic of the kept values at the speed of memcpy", f"{result['needed']:.2f} s"),
        ("ratio", f"{result['ratio']:.2f}, of the median reply {result['median_ratio']:.2f}"),
        ("memory traffic of dense updates", f"{result['needed_dense']:.2f} s"),
        ("ratio", f"{result['dense_ratio']:.2f}"),
    ]
    show_table(f"{result['replies']} replies of {result['parameters']:,} parameters", "what, figure", rows)


def asked(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    images, _ = examples(None, options.seed)
    made = [
        real_update(options.model, options.kind, images, LocalTraining(seed, steps=1, batch=8))
        for seed in range(options.seed, options.seed + 3)
    ]
    if options.kind == "magnitude":  # one base mask, three updates under it
        first = made[0]
        made = [Update(first.base, {n: t * f for n, t in first.update.items()}, first.shared) for f in (1, 0.7, -1.3)]
    return measure(made, options.replies)


if __name__ == "__main__":
    kind = {"choices": KINDS, "default": "magnitude"}
    command(__doc__, asked, show, {"--replies": 200, "--model": "resnet18", "--kind": kind, "--seed": 0})
