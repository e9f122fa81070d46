"""What becomes of slow clients: accuracy by the speed of the sites that hold a class, and what rounds wait.

Twenty clients share scikit-learn's digits, equally many images each. Four are slow, and they alone have the classes 8
and 9; the sixteen others have the rest. A round asks a quarter. Training is real; the time is simulated, so that it is
the same on every machine: a fast client answers after about 5 s, a slow one after about 60 s (log-normal, 10 %), and
one that is still at a message of before takes the next one afterwards. The learning rate is 0.1: at the recommended
0.25 whole runs with such skewed classes collapse to one class. Arms:

* ``wait``: plain sampling, and a round waits for all whom it asks;
* ``deadline``: plain sampling, and whoever is not there after 15 s is left out;
* ``2 tiers``, ``4 tiers``: ``speed-tiers``.

Accuracies are those of the last ten rounds on the test images of the slow sites' classes and of the others', and, in
the last column, of the ten rounds before the time at which ``4 tiers`` was over. Seconds are of the whole run; asked is
the least and the largest share of the rounds that any client was asked in, answered that in which its reply counted.

    python -m prunella.benchmarks.speed.stragglers [--rounds 100] [--seeds 3] [--json FILE]
"""

import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message

from prunella.benchmarks.engine.images import cached_client
from prunella.benchmarks.engine.inprocess import FEDAVG, FIRST_NODE, InProcessGrid, carry_out, settings
from prunella.benchmarks.speed.bench import command, show_table
from prunella.client.app import app as client_app
from prunella.core.config import parse_run
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.server.app import assemble, describe
from prunella.server.grid import LATE
from prunella.server.rounds import Federation
from prunella.tasks.data import Partition
from prunella.tasks.examples import Examples
from prunella.tasks.training import evaluate

CLIENTS, SLOW = 20, 4  # the last ones are slow
RARE = 8  # from this class on only slow sites have images
FAST_SECONDS, SLOW_SECONDS, SPREAD = 5.0, 60.0, 0.1
ARMS: dict[str, dict[str, Any]] = {
    "wait": {},
    "deadline": {"round_seconds": 15.0},
    "2 tiers": {"speed_tiers": 2},
    "4 tiers": {"speed_tiers": 4},
}
LAST = 10
RATE = 0.1


@lru_cache(maxsize=1)
def shares(dataset: str) -> tuple[Examples, ...]:
    """What each client has: the slow ones the rare classes, the others the rest, equally many images each."""
    every = cached_client(dataset, Partition("iid", 1), 0, None)
    order = torch.randperm(len(every), generator=stream(0, purpose="stragglers"))
    rare = every.y[order] >= RARE
    parts = [*order[~rare].chunk(CLIENTS - SLOW), *order[rare].chunk(SLOW)]
    least = min(len(part) for part in parts)
    return tuple(every.take(part[:least]) for part in parts)


def load_share(dataset: str, partition: Partition, client: int, root: Path | None) -> Examples:
    return shares(dataset)[client]


class SimulatedGrid(InProcessGrid):
    """Replies come in the order of their simulated arrival; ``now`` is the simulated time in seconds."""

    def __init__(self, config: dict[str, Any], state: Path, seed: int) -> None:
        super().__init__(client_app, CLIENTS, config, state, load=load_share)
        self.now, self.asked, self.answered = 0.0, Counter[int](), Counter[int]()
        self._draws = stream(seed, purpose="latency")
        self._free: dict[int, float] = {}  # when a node is done with what it was asked before

    def seconds(self, node: int) -> float:
        """How long one answer takes."""
        typical = FAST_SECONDS if node - FIRST_NODE < CLIENTS - SLOW else SLOW_SECONDS
        return typical * float(torch.exp(SPREAD * torch.randn((), generator=self._draws)))

    def send_and_receive(  # type: ignore[override]
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """A message that nobody took before it expired is not answered."""
        end = self.now + (timeout if timeout is not None else float("inf"))
        arrivals, left_out = [], False
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked[node] += 1
            begin = max(self.now, self._free.get(node, 0.0))
            if begin < end + LATE:
                self._free[node] = begin + self.seconds(node)
            if begin < end + LATE and self._free[node] <= end:
                arrivals.append((self._free[node], node, message))
            else:
                left_out = True
        for arrival, node, message in sorted(arrivals, key=lambda each: each[:2]):
            self.now = arrival
            self.answered[node] += 1
            yield from self.pull_messages(self.push_messages([message]))
        self.now = end if left_out else self.now


def federation(seed: int, rounds: int, arm: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One run: after each round the simulated time and both accuracies, and how often clients took part."""
    own = {**FEDAVG, "model": "cnn", "defenses": "none", "fraction": 0.25, "seed": seed, "rounds": rounds}
    own["learning_rate"] = RATE
    raw = settings(run_dir=str(folder / "run"), **own, **arm)
    made = assemble(parse_run(raw), raw)
    describe(made)
    grid = SimulatedGrid(raw, folder / "nodes", seed)
    made.strategy.pace.clock = lambda: grid.now
    curve: list[tuple[float, float, float]] = []
    carry_out(made, grid, partial(_look, grid, curve))
    taken = [[counter[node] / rounds for node in grid.contexts] for counter in (grid.asked, grid.answered)]
    return {"curve": curve, "asked": taken[0], "answered": taken[1]}


def _look(
    grid: SimulatedGrid, curve: list[tuple[float, float, float]], made: Federation, params: Tree, buffers: Tree
) -> None:
    assert made.test is not None
    rare = made.test.y >= RARE
    groups = (made.test.take(torch.nonzero(group).flatten()) for group in (~rare, rare))
    common, own = (evaluate(made.model.module, params, buffers, group.x, group.y).accuracy for group in groups)
    curve.append((grid.now, common, own))


def level(curve: Sequence[Sequence[float]], until: float = float("inf")) -> list[float]:
    """Both accuracies, each the mean over the last rounds that were over by ``until``.

    >>> level([(1.0, 0.5, 0.0), (2.0, 0.7, 0.2), (9.0, 1.0, 1.0)], until=5.0)
    [0.6, 0.1]
    """
    last = [point for point in curve if point[0] <= until][-LAST:]
    return [statistics.fmean(point[column] for point in last) for column in (1, 2)]


def summary(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Every arm's figures by seed; ``runs`` are by arm, one for each seed."""
    ends = [run["curve"][-1][0] for run in runs["4 tiers"]]
    found = {}
    for arm, by_seed in runs.items():
        found[arm] = {
            "seconds": [run["curve"][-1][0] for run in by_seed],
            "last": [level(run["curve"]) for run in by_seed],
            "then": [level(run["curve"], end) for run, end in zip(by_seed, ends, strict=True)],
            "asked": [share for run in by_seed for share in run["asked"]],
            "answered": [share for run in by_seed for share in run["answered"]],
        }
    return found


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in range(options.seeds):
        for arm, own in ARMS.items():
            with tempfile.TemporaryDirectory() as folder:
                runs[arm].append(federation(seed, options.rounds, own, Path(folder)))
            common, rare = level(runs[arm][-1]["curve"])
            print(f"seed {seed}, {arm}: {common:.3f}, {rare:.3f} of the slow sites' classes", flush=True)
    return {"rounds": options.rounds, "seeds": options.seeds, "arms": summary(runs)}


def _spread(values: Sequence[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {deviation:.3f}"


def show(result: Mapping[str, Any]) -> None:
    rows = []
    for arm, found in result["arms"].items():
        fast, slow = zip(*found["last"], strict=True)
        ranges = (f"{min(found[what]):.2f} to {max(found[what]):.2f}" for what in ("asked", "answered"))
        then = [pair[1] for pair in found["then"]]
        rows.append((arm, f"{statistics.fmean(found['seconds']):.0f}", _spread(fast), _spread(slow), *ranges,
                     _spread(then)))  # fmt: skip
    heads = "sampling, seconds, fast sites' classes, slow sites' classes, asked, answered, slow sites' at equal time"
    show_table(f"{result['rounds']} rounds, {result['seeds']} seeds", heads, rows, 130)


if __name__ == "__main__":
    command(__doc__, measure, show, {"--rounds": 100, "--seeds": 3, "--json": {"type": Path}})
