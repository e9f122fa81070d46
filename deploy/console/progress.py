"""The progress of a run, read from the lines the server appends to ``metrics.jsonl``, and shown as it grows.

Counters in the file are cumulative, so the last line of each metric is the state, and reading a file twice, or from
the start again after the server rewound it, gives the same state.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from prunella.core.metrics import LEDGER_METRICS
from prunella.server.report.units import audits_left

Line = Mapping[str, Any]
PAUSED = 15.0  # seconds between two lines about an attack that is piped somewhere
PAUSE = 5.0  # seconds between two lines about how many clients came: fifty clients need a minute


class Follower:
    """The new JSON lines of a file that another process appends to, which may not exist yet.

    A line is read once it is complete. When the file is replaced or becomes shorter it is read from the start.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._inode = path, 0, 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self._inode, self._offset = stat.st_ino, 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [json.loads(line) for line in complete.splitlines() if line.strip()]


@dataclass(frozen=True)
class State:
    """Where a run stands; ``None`` for what was not measured yet."""

    round: int = 0
    newest: int = 0  # of which there is any line
    rounds: int = 0
    clients: int | None = None
    accuracy: float | None = None
    error: float = 0.0  # half of the accuracy's interval, where it is of a sample
    density: float | None = None
    seconds: float | None = None
    audits: int = 0
    audit_seconds: float | None = None
    audit_limit: float = math.inf  # seconds that the run's end waits for them at most
    sent: Mapping[str, float] = field(default_factory=dict)
    dense: Mapping[str, float] = field(default_factory=dict)

    @property
    def saved(self) -> float | None:
        """The share of the dense bytes that was not sent, both directions together.

        >>> State(sent={"up": 25.0}, dense={"up": 100.0}).saved
        0.75
        """
        total = sum(self.dense.values())
        return 1 - sum(self.sent.values()) / total if total else None

    @property
    def left(self) -> str:
        """The audits that the run's end waits for."""
        return audits_left(self.audits, self.audit_seconds, self.audit_limit)


def fold(state: State, line: Line) -> State:
    """The state after one more line.

    >>> fold(State(), {"round": 2, "metric": "accuracy_ratio", "labels": {}, "value": 0.5}).accuracy
    0.5
    """
    metric, value, labels = line["metric"], line["value"], line.get("labels", {})
    fields: dict[str, Any] = {
        "round": ("round", int),
        "rounds": ("rounds", int),
        "clients_available": ("clients", int),
        "accuracy_ratio": ("accuracy", float),
        "accuracy_error_ratio": ("error", float),
        "mask_density_ratio": ("density", float),
        "round_seconds": ("seconds", float),
        "audits_left": ("audits", int),
        "audits_left_seconds": ("audit_seconds", float),
        "audits_left_limit_seconds": ("audit_limit", float),
    }
    if line["round"] > state.newest and metric not in LEDGER_METRICS:  # which are told when a round begins, too
        # A round that is not evaluated has not the accuracy of the one before.
        state = replace(state, newest=line["round"], accuracy=None, error=0.0)
    if metric in fields:
        name, kind = fields[metric]
        return replace(state, **{name: kind(value)})
    if metric == "wire_bytes_total":
        return replace(state, sent={**state.sent, labels["direction"]: float(value)})
    if metric == "wire_dense_bytes_total":
        return replace(state, dense={**state.dense, labels["direction"]: float(value)})
    return state


def by_round(lines: Iterable[Line]) -> list[tuple[int, list[Line]]]:
    """Consecutive lines of the same round together."""
    groups: list[tuple[int, list[Line]]] = []
    for line in lines:
        if not groups or groups[-1][0] != line["round"]:
            groups.append((line["round"], []))
        groups[-1][1].append(line)
    return groups


def megabytes(count: float) -> str:
    """
    >>> megabytes(1_234_567), megabytes(51_200)
    ('1.2 MB', '51.2 kB')
    """
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def scored(state: State) -> str:
    error = f" ± {state.error:.3f}" if state.error else ""
    return f"accuracy {state.accuracy:.3f}{error}"


def describe(state: State) -> str:
    """The state in one line, leaving out what is not known.

    >>> describe(State(round=3, rounds=10, accuracy=0.8312, sent={"up": 2e6, "down": 5e5}))
    'round 3/10  accuracy 0.831  up 2.0 MB  down 500.0 kB so far'
    >>> describe(State(clients=1))
    'waiting for the clients: 1 is there'
    """
    if state.clients is not None and not state.rounds:
        return f"waiting for the clients: {state.clients} {'is' if state.clients == 1 else 'are'} there"
    parts = [f"round {state.round}/{state.rounds}" if state.rounds else f"round {state.round}"]
    parts += [scored(state)] if state.accuracy is not None else []
    parts += [f"density {state.density:.3f}"] if state.density is not None else []
    sent = [f"{way} {megabytes(state.sent[way])}" for way in ("up", "down") if way in state.sent]
    parts += ["  ".join(sent) + " so far"] if sent else []
    parts += [f"{state.seconds:.1f} s"] if state.seconds is not None else []
    parts += [state.left] if state.audits else []
    return "  ".join(parts)


class ConsoleView(Protocol):
    """Shows a run while it goes on."""

    def say(self, text: str) -> None: ...
    def show(self, lines: Iterable[Line]) -> None: ...
    def close(self) -> None: ...


class PlainView:
    """A line when a round ends, before the first one now and then the number of clients, and after the last one that of
    the audits the run waits for; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console, self._state, self._printed, self._scored = console, State(), 0, 0
        self._clients: int | None = None
        self._again = 0.0

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, lines: Iterable[Line]) -> None:
        for number, group in by_round(lines):
            for line in group:
                self._state = fold(self._state, line)
            if self._state.round > self._printed:
                self._printed = self._state.round
                self.say(describe(self._state))
                self._scored = self._printed if self._state.accuracy is not None else self._scored
            elif self._state.accuracy is not None and self._scored < number == self._printed:
                self._scored = number  # it was evaluated beside the next round
                self.say(f"round {number}  {scored(self._state)}")
            elif self._state.audits and any(line["metric"] == "audits_left" for line in group):
                self.say(self._state.left)
        if self._state.clients != self._clients and not self._state.rounds and time.monotonic() >= self._again:
            self._clients, self._again = self._state.clients, time.monotonic() + PAUSE
            self.say(describe(self._state))

    def close(self) -> None:
        return


class LiveView:
    """A progress bar, for terminals."""

    def __init__(self, console: Console) -> None:
        self._state = State()
        self._bar = Progress(
            BarColumn(bar_width=12),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()

    def say(self, text: str) -> None:
        if not self._state.rounds:
            self._bar.update(self._task, description=text)
        else:
            self._bar.console.print(text, markup=False, highlight=False)

    def show(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._state = fold(self._state, line)
        if self._state.rounds or self._state.clients is not None:
            total = self._state.rounds or None
            self._bar.update(self._task, description=describe(self._state), total=total, completed=self._state.round)

    def close(self) -> None:
        self._bar.stop()


@contextmanager
def descents(console: Console) -> Iterator[Callable[[str, int], Callable[[int, int, float], None]]]:
    """The progress of attacks: a bar that is removed at the end on a terminal, else a line now and then. Yields what
    makes, of an attack's name and its iterations, the function to call at every iteration."""
    from prunella.library.pace import Pace

    columns = BarColumn(bar_width=12), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def show(text: str) -> None:
            if console.is_terminal:
                bar.update(task, description=text)
            else:
                console.print(text, markup=False, highlight=False, soft_wrap=True)

        def pace(what: str, iterations: int) -> Callable[[int, int, float], None]:
            made = Pace(iterations, show, what, every=0.2 if console.is_terminal else PAUSED)

            def tell(start: int, iteration: int, objective: float) -> None:
                made.tell(start, iteration, objective)
                bar.update(task, total=iterations if iterations and start >= 0 else None, completed=iteration)

            return tell

        yield pace


def view(console: Console) -> ConsoleView:
    return LiveView(console) if console.is_terminal else PlainView(console)
