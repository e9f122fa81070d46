"""Keeps one machine's part of a federation running: shows its log, restarts what can go on, ends with the reason.

A SuperNode ends with code 0 when a restarted SuperLink no longer knows it, and with 1 when its key still counts as
online after a crash (20 s with our heartbeat, 66 s with Flower's): both are started again after ``AGAIN`` seconds. A
SuperLink that was killed is started again on its database; its executor and the ServerApp live on meanwhile and the run
continues. What starting again cannot fix (``deploy.machines.connection_errors``) ends the command with code 1 and a
message that names the fix.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prunella.core.interrupts import signals_interrupt
from prunella.deploy.errors import LaunchError
from prunella.deploy.machines.commands import EXECUTOR
from prunella.deploy.machines.connection_errors import ConnectionProblem, diagnose
from prunella.deploy.runtime import requirements
from prunella.deploy.runtime.patches import POLL
from prunella.deploy.runtime.processes import Backend, Exit, Process, StockBackend, ZygoteBackend
from prunella.deploy.runtime.services import SUPERLINK, SUPERNODE, command_line
from prunella.deploy.runtime.watch import INTERVAL

FULL, LOOK = 1_000_000, 10.0  # bytes below which a disk counts as full, and seconds between two looks at it
DAY = 24 * 3600.0  # seconds between two reminders
AGAIN = 5.0  # seconds before something that ended is started again
PATIENCE = 90.0  # seconds that a key may stay unknown or counted as online: Flower needs 66 to forget a dead SuperNode
# What the log says once a process is ready; if it ends before that, it is not started again.
CONNECTED = "SuperNode ID:"
# An executor on its own only asks a SuperLink for work, also one that is away: it is always started again.
READY = {SUPERNODE: CONNECTED, SUPERLINK: "Uvicorn running on", EXECUTOR: ""}
UNREACHED = "Connection attempt failed"
HINT = (
    "no answer yet; still trying. Check the address, the firewall (`prunella doctor --reach HOST:PORT`), and that "
    "both sides use TLS or both --insecure"
)
Say = Callable[[str], None]


class Tail:
    """What is new in a log file."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, path.stat().st_size if path.exists() else 0

    def read(self) -> str:
        """Complete lines since the last call; a file that is not there, or not for the moment, has none."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return ""
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return data.decode(errors="replace")


@dataclass
class Supervisor:
    """The processes of this machine; the first is the SuperLink or SuperNode, the others serve it."""

    processes: Sequence[Process]
    backend: Backend
    say: Say
    patience: float = PATIENCE
    again: float = AGAIN
    reminders: Callable[[], Sequence[str]] = tuple  # what to say at the start and once a day, as long as it is true

    def __post_init__(self) -> None:
        self.main = self.processes[0]
        self._tail = Tail(Path(self.main.log))
        self._beginning, self._ready = "", False  # the log until it is ready
        self._due: dict[str, float] = {}  # when to start what again
        self._problem_since: float | None = None
        self._hinted = False
        self._look, self._full = 0.0, False  # when to look at the disk again, and whether it was full
        self._remind = 0.0  # when to remind again

    def start(self) -> None:
        for process in self.processes:
            self.launch(process)

    def launch(self, process: Process) -> None:
        if process is self.main:
            self._beginning, self._ready = "", False
        self.backend.spawn(process)

    def step(self, now: float) -> None:
        """Check once. Raises ``LaunchError`` when the main process has ended for good."""
        exits = self.backend.exits()
        self.show()
        if now >= self._look:
            self._look = now + LOOK
            with suppress(OSError):  # a network's folder that is away for a moment
                self.check_disk()
        if now >= self._remind:
            self._remind = now + DAY
            with suppress(OSError, ValueError):  # a certificate that is being replaced
                for line in self.reminders():
                    self.say(f"prunella: {line}")
        for exit in exits:
            self.on_exit(exit, now)
        for process in self.processes:
            if self._due.get(process.name, now + 1) <= now:
                del self._due[process.name]
                self.launch(process)

    def show(self) -> None:
        new = self._tail.read()
        if not self._ready:
            self._beginning += new
            self._ready = READY[self.main.name] in self._beginning
        if self._ready:
            self._problem_since = None
        elif UNREACHED in new and not self._hinted:
            self._hinted = True
            self.say(f"prunella: {HINT}")
        if new:
            self.say(new.rstrip("\n"))

    def check_disk(self) -> None:
        """Say once that the disk is full: where the logs are as well, nothing else can tell why all fails."""
        home = Path(self.main.log).parent.parent
        disk = os.statvfs(home)
        free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail  # root writes into what is reserved for it
        before, self._full = self._full, bool(disk.f_blocks) and free * disk.f_frsize < FULL
        if self._full and not before:
            self.say(
                f"prunella: the disk of {home} is full: free some space; until then nothing can be kept, and fails"
            )

    def on_exit(self, exit: Exit, now: float) -> None:
        if exit.name != self.main.name:
            if exit.name == EXECUTOR:
                self._due[EXECUTOR] = now + self.again
            if exit.code < 0:
                self.say(f"prunella: {exit.name} {exit.how}; logs: {Path(self.main.log).parent}")
            return
        reason = self.final(exit, now)
        if reason:
            raise LaunchError(f"{exit.name} {exit.how}: {reason}")
        self._due[self.main.name] = now + self.again

    def final(self, exit: Exit, now: float) -> str:
        """Why the main process must not be started again, "" when it may."""
        problem = None if self._ready else diagnose(self._beginning)
        if problem and problem.temporary:
            return self.retry(problem, now)
        if not self._ready and (exit.code != 0 or problem):
            return problem.text if problem else f"it ended before it was ready; the reason is in {self.main.log}"
        if self.main.name == SUPERLINK and "--database" not in self.main.args:
            return "it kept nothing on disk, so it cannot be restarted: leave out --in-memory"
        clocks = "" if self._ready else "; if this repeats, set both clocks: Flower tolerates 300 s"
        self.say(f"prunella: {exit.name} {exit.how}; starting it again in {self.again:.0f} s{clocks}")
        return ""

    def retry(self, problem: ConnectionProblem, now: float) -> str:
        """Why it is given up, "" while it may be tried again."""
        self._problem_since = self._problem_since or now
        left = self._problem_since + self.patience - now
        if left < self.again:
            return problem.text
        self.say(f"prunella: {problem.text}; trying again in {self.again:.0f} s, for {left:.0f} s at most")
        return ""


def serve(
    processes: Sequence[Process],
    stock: bool,
    say: Say,
    patience: float = PATIENCE,
    poll: float = POLL,
    reminders: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Print the commands, run them until Ctrl-C or SIGTERM (``KeyboardInterrupt``), or until they fail for good."""
    requirements.check()
    for process in processes:
        say(command_line(process))
    with signals_interrupt():
        logs = Path(processes[0].log).parent
        backend: Backend = StockBackend() if stock else ZygoteBackend(logs / "zygote.log", poll)
        try:
            supervisor = Supervisor(processes, backend, say, patience, reminders=reminders)
            supervisor.start()
            while True:
                supervisor.step(time.monotonic())
                time.sleep(INTERVAL)
        finally:
            backend.stop()
