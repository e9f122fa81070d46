"""What aggregating costs a server: replies decoded, checked and added one at a time, beside the memory traffic of it.

Replies of ResNet18 (11 M parameters) at 80 % removed go through ``read_reply`` and ``MaskedSum``, as in a round. A few
different ones are made by a real local step and come again until there are ``--replies``; making them is not timed.

``growth`` is the peak of resident memory above what the process held before the first reply, read from Linux'
high-water mark, which is reset there. ``traffic`` is what a reply has to move at least: its bytes are read, the dense
update and its mask are written and read once, the double-precision sums are read and written; the sums themselves are
written and the result is formed once. ``needed`` is the time a memcpy in the same run takes for as many bytes (a copy
reads and writes, so it moves each byte twice), the fastest of several; ``ratio`` is the time taken over that.

    python -m benchmarks.aggregate [--replies 200] [--model resnet18] [--json]
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.updates import Training, Update, examples, real_update
from core.parallel import threads
from core.records import record_bytes, to_coded
from core.trees import Tree, apply_mask, count, size
from core.wire import dense_bytes, fingerprint
from strategies.masked_mean import MaskedSum
from strategies.replies import Expected, read_reply

MEBI = 2**20


def reply(update: Update, weight: int) -> Message:
    """The message a client would send."""
    provenance = ConfigRecord({"round": 1, "mask": fingerprint(update.base), "applied": ["none"]})
    metrics = MetricRecord({"num-examples": weight, "train-seconds": 1.0})
    arrays = to_coded(update.update, update.shared, update.base)
    content = RecordDict({"update": arrays, "provenance": provenance, "metrics": metrics})
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # Flower sets these in its own processes
    return Message(content, dst_node_id=1, message_type="train")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def memory(field: str) -> int:
    """Bytes of a line of this process's status, such as VmRSS or VmHWM (its peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def traffic(coordinates: int, blob: int, replies: int) -> int:
    """Bytes that must be moved: float32 updates, one-byte masks, double sums of values and of weights.

    >>> traffic(coordinates=10, blob=5, replies=1)
    585
    """
    each = blob + 2 * 4 * coordinates + 2 * coordinates + 2 * 8 * coordinates
    once = 2 * 8 * coordinates + 2 * 4 * coordinates + (1 + 1 + 6) * coordinates
    return replies * each + once


def copy_bandwidth(size: int, repeat: int = 9) -> float:
    """Bytes a second that a memcpy reads and writes together."""
    here, there, best = np.ones(size, np.uint8), np.ones(size, np.uint8), math.inf
    for _ in range(repeat):
        begin = time.perf_counter()
        np.copyto(there, here)
        best = min(best, time.perf_counter() - begin)
    return 2 * size / best


def aggregate(messages: list[Message], replies: int, expected: Expected) -> tuple[Tree, list[float]]:
    """The new weights, and the seconds of every reply."""
    total, seconds = MaskedSum(expected.params), []
    for i in range(replies):
        begin = time.perf_counter()
        contribution = read_reply(messages[i % len(messages)], expected)
        total.add(contribution.update, contribution.spoken, contribution.weight)
        del contribution
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    result = total.result(expected.params, "holders")
    return result, [*seconds, time.perf_counter() - begin]


def measure(updates: list[Update], replies: int) -> dict[str, Any]:
    """Memory and time of a round with these updates, all under one base mask."""
    first = updates[0]
    params = apply_mask({name: torch.ones_like(t) for name, t in first.update.items()}, first.base)
    expected = Expected(1, params, first.base, {}, defenses=("none",))
    messages = [reply(update, weight) for weight, update in enumerate(updates, start=1)]
    bandwidth = copy_bandwidth(dense_bytes(params))
    reset_peak()
    before = memory("VmRSS")
    _, seconds = aggregate(messages, replies, expected)
    growth = memory("VmHWM") - before
    blob = record_bytes(messages[0].content.array_records["update"])
    needed = traffic(size(params), blob, replies) / bandwidth
    return {
        "replies": replies,
        "parameters": size(params),
        "kept": count(first.shared) / size(params),
        "blob": blob,
        "growth": growth,
        "dense_of_all": replies * dense_bytes(params),
        "seconds": sum(seconds),
        "fastest_reply": min(seconds[:-1]),
        "needed": needed,
        "ratio": sum(seconds) / needed,
        "fastest_ratio": min(seconds[:-1]) * replies / needed,
        "copy_megabytes_per_second": bandwidth / 2 / 1e6,
        "threads": threads(),
        "machine": machine(),
    }


def show(result: dict[str, Any]) -> None:
    table = Table("what", "figure", title=f"{result['replies']} replies of {result['parameters']:,} parameters")
    grown, dense = result["growth"] / MEBI, result["dense_of_all"] / MEBI
    table.add_row("memory growth", f"{grown:.0f} MiB (all replies dense: {dense:.0f})")
    table.add_row("time", f"{result['seconds']:.2f} s, {1000 * result['fastest_reply']:.1f} ms the fastest reply")
    table.add_row("memory traffic at the speed of memcpy", f"{result['needed']:.2f} s")
    table.add_row("ratio", f"{result['ratio']:.2f}, of the fastest reply {result['fastest_ratio']:.2f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replies", type=int, default=200)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    images, _ = examples(None, options.seed)
    training = Training(options.seed, steps=1, batch=8)
    first = real_update(options.model, "magnitude", images, training)
    others = [Update(first.base, {n: t * f for n, t in first.update.items()}, first.shared) for f in (0.7, -1.3)]
    result = measure([first, *others], options.replies)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
