"""Following a run to its end: Flower's events, the server's metrics, and the processes that end.

What became of a run is what Flower says (``finished:completed``), never an exit code.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prunella.deploy.console.progress import ConsoleView, Follower
from prunella.deploy.runs import RunDir
from prunella.deploy.runtime.processes import Backend, Exit

Status = Literal["completed", "failed", "stopped"]
INTERVAL = 0.1  # seconds between two checks of the processes and files
LAST_WORD = 15.0  # seconds Flower has to report the end of a ServerApp that is gone
TAIL = 12  # lines of a log shown when a run fails
READ = 64 * 1024  # bytes of a log's end that are read for it: the log itself may be long
CLIENT = re.compile(r"(?:supernode|client-exec)-(\d+)")
# As Flower's strategies say it, every second, for as long as too few clients are there.
WAITS = re.compile(r"Waiting for nodes to connect: (\d+) connected \(minimum required: (\d+)\)")
PATIENT = 30  # times that it is said of the same number of clients
# A process without which the run cannot go on; a client that ends is left to the strategy.
VITAL = ("superlink", "server-exec", "control")


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``log`` is the file to read when it failed."""

    run: RunDir
    status: Status
    error: str = ""
    log: Path | None = None


def tail(path: Path, lines: int = TAIL) -> str:
    """The last lines of a log, "" when there are none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - READ))
            end = file.read(READ).decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(end.rstrip().splitlines()[-lines:])


class Watch:
    """Follows a run until it ends; ``step`` returns the outcome once there is one. ``spare`` is how many of its clients
    a round can do without, None where nobody here knows."""

    def __init__(self, run: RunDir, backend: Backend, view: ConsoleView, stock: bool, spare: int | None = None) -> None:
        self._run, self._backend, self._view = run, backend, view
        self._spare, self._lost = spare, set[str]()
        self._server_log = run.log("superlink" if stock else "server")
        self._events, self._metrics = Follower(run.events), Follower(run.metrics)
        self._gone: float | None = None
        self._looked = 0  # bytes of the server's log
        self._waits = ("", "")  # clients that are there, and that Flower waits for, as was told

    def _failed(self, error: str, log: Path) -> Outcome:
        return Outcome(self._run, "failed", error, log)

    def wait(self) -> Outcome:
        """Follow the run to its end."""
        while (outcome := self.step()) is None:
            time.sleep(INTERVAL)
        return outcome

    def step(self) -> Outcome | None:
        """Check once. An exit counts after the events, so that success reported just before it wins."""
        exits = self._backend.exits()
        outcome = None
        for event in self._events.read():
            outcome = self.on_event(event) or outcome
        self._view.show(self._metrics.read())
        self._tell_waiting()
        for exit in exits:
            outcome = outcome or self.on_exit(exit)
        if self._gone and time.monotonic() > self._gone + LAST_WORD:
            outcome = outcome or self._failed("the ServerApp ended without reporting to Flower", self._server_log)
        return outcome

    def _tell_waiting(self) -> None:
        """Say that an app's strategy waits for more clients than are there: it does so without end."""
        size = self._server_log.stat().st_size if self._server_log.exists() else 0
        if size == self._looked:
            return
        self._looked = size
        found = [WAITS.search(line) for line in tail(self._server_log, PATIENT).splitlines()]
        (first, *_), numbers = found or [None], {each and each.groups() for each in found}
        if first is None or len(found) < PATIENT or len(numbers) > 1 or self._waits == first.groups():
            return
        self._waits = there, wanted = first[1], first[2]
        self._view.say(
            f"Flower waits for {wanted} clients, and there {'is' if there == '1' else 'are'} {there}: start as many "
            f"(--supernodes {wanted}), or lower min_available_nodes and its like in the app's strategy; Ctrl-C stops it"
        )

    def on_event(self, event: Mapping[str, Any]) -> Outcome | None:
        if event["event"] == "error":
            return self._failed(str(event["message"]), self._run.log("control"))
        if event["event"] == "registered":
            self._view.say(f"new keys registered: {', '.join(event['names']) or 'none'}")
            if removed := event.get("removed"):
                self._view.say(f"removed keys, which stay out: {', '.join(removed)}")
            return None
        if event["event"] == "started":
            self._view.say("the app was accepted; waiting for the clients")
            return None
        status, details = str(event["status"]), str(event.get("details", ""))
        if status == "finished:completed":
            return Outcome(self._run, "completed")
        if status == "finished:stopped":
            return Outcome(self._run, "stopped", "stopped on request")
        return self._failed(details or status, self._server_log) if status.startswith("finished") else None

    def on_exit(self, exit: Exit) -> Outcome | None:
        """A client that dies is left to the strategy; a server that dies ends the run."""
        if exit.name in VITAL and not (exit.name == "control" and exit.code == 0):
            return self._failed(f"{exit.name} {exit.how}", self._run.log(exit.name))
        if exit.name.endswith("of server-exec"):
            self._gone = time.monotonic()
            return self._failed(f"the ServerApp {exit.how}", self._server_log) if exit.code < 0 else None
        if exit.name.startswith(("supernode-", "client-exec-")) or exit.code < 0:
            self._view.say(f"{exit.name} {exit.how}; {self._without(exit.name)} (logs: {self._run.path}/logs)")
        return None

    def _without(self, name: str) -> str:
        """What becomes of a federation that has lost a client's process."""
        if client := CLIENT.match(name):
            self._lost.add(client[1])
        if self._spare is None or len(self._lost) <= self._spare:
            return "the federation goes on without it"
        return (
            "a round now waits for more clients (min-clients) than are left, and nothing starts it again: the run will "
            "end when round-seconds are over. Stop it with Ctrl-C, and go on with --resume"
        )
