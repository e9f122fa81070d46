"""What a SuperLink's database costs: bytes on disk and time of its calls, by the number of SuperNodes that it knows.

Flower's own state on SQLite (``LinkState``), as ``prunella superlink`` opens it, without gRPC. Of every size:

* ``join``: a SuperNode is registered and comes online, the mean of those that came since the last size;
* ``heartbeat`` and ``poll``, what a SuperNode that waits asks: that it is alive, and for messages, of which there are
  none; the median of ``--repeat`` SuperNodes drawn from all;
* ``bytes`` of the database's files for each SuperNode.

A call that writes waits for the disk, so that seconds are of this machine's.

    python -m prunella.benchmarks.speed.database [--sizes 50,100,200,1000,10000] [--repeat 200] [--json]
"""

import random
import statistics
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from prunella.benchmarks.speed.bench import command, show_table

ALIVE = 30.0  # seconds until the next heartbeat, as SuperNodes say
KEY = 91  # bytes of a public key


def opened(folder: Path) -> LinkState:
    database = str(folder / "state.db")
    return LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()


def join(state: LinkState, draws: random.Random) -> int:
    """The id of a SuperNode that is registered and online."""
    node = state.create_node("account", "owner", draws.randbytes(KEY), ALIVE)
    if not state.activate_node(node, ALIVE):
        raise RuntimeError("a SuperNode did not come online")
    return node


def median(call: Callable[[int], object], nodes: Sequence[int]) -> float:
    """Of a call's seconds."""
    seconds = []
    for node in nodes:
        begin = time.perf_counter()
        call(node)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    sizes = [int(each) for each in options.sizes.split(",")]
    if options.repeat < 1 or sizes != sorted(set(sizes)) or sizes[0] < 1:
        raise ArgumentTypeError("--repeat must be at least 1, --sizes positive and rising")
    draws, nodes, rows = random.Random(0), list[int](), list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        state = opened(Path(folder))
        for size in sizes:
            begin, new = time.perf_counter(), size - len(nodes)
            nodes += [join(state, draws) for _ in range(new)]
            joined = (time.perf_counter() - begin) / new
            asked = draws.choices(nodes, k=options.repeat)
            row = {"supernodes": size, "join": joined}
            row["heartbeat"] = median(lambda node: state.acknowledge_node_heartbeat(node, ALIVE), asked)
            row["poll"] = median(lambda node: state.get_message_ins(node, 1), asked)
            row["bytes"] = sum(file.stat().st_size for file in Path(folder).iterdir()) / size
            rows.append(row)
    return {"rows": rows}


def show(result: Mapping[str, Any]) -> None:
    rows = [
        (
            f"{row['supernodes']:,.0f}",
            *(f"{1000 * row[key]:.2f}" for key in ("join", "heartbeat", "poll")),
            f"{row['bytes']:,.0f}",
        )
        for row in result["rows"]
    ]
    show_table("a SuperLink's database", "SuperNodes, ms to join, ms a heartbeat, ms a poll, bytes for each", rows)


if __name__ == "__main__":
    command(__doc__, measure, show, {"--sizes": "50,100,200,1000,10000", "--repeat": 200})
