"""Keeps one machine's part of a federation running: shows its log, starts again what may, ends with the reason.

A SuperNode ends with code 0 when a restarted SuperLink no longer knows it, and with 1 when its key still counts as
online after a crash (20 s with our heartbeat, 66 s with Flower's): both are tried again after ``AGAIN`` seconds. A
SuperLink that was killed is started again on its database; its executor and the ServerApp live on meanwhile and the run
continues. What no repetition mends (``deploy.machines.refusals``) ends the command with code 1 and the mend.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prunella.deploy.errors import LaunchError
from prunella.deploy.local.launcher import terminated
from prunella.deploy.machines import refusals
from prunella.deploy.machines.commands import EXECUTOR, LINK, NODE, command_line
from prunella.deploy.machines.refusals import Refusal
from prunella.deploy.runtime import requirements
from prunella.deploy.runtime.patches import POLL
from prunella.deploy.runtime.processes import Backend, Exit, Process, Stock, Warm
from prunella.deploy.runtime.zygote import ENV, PRELOAD

AGAIN = 5.0  # seconds before something that ended is started again
LOOK = 0.1
PATIENCE = 90.0  # seconds that a key may stay unknown or counted as online: Flower needs 66 to forget a dead SuperNode
# What the log says once a process does its work; before that, its end is final.
CONNECTED = "SuperNode ID:"
# An executor on its own only asks a SuperLink for work, one that is away included: nothing about its end is final.
WORKING = {NODE: CONNECTED, LINK: "Uvicorn running on", EXECUTOR: ""}
UNREACHED = "Connection attempt failed"
HINT = (
    "no answer yet; it goes on trying. Check the address, the firewall (`prunella doctor --reach HOST:PORT`), and that "
    "both sides use TLS or both --insecure"
)
Say = Callable[[str], None]


class Tail:
    """What is new in a log file."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, path.stat().st_size if path.exists() else 0

    def read(self) -> str:
        """Complete lines since the last call; a file that is not there yet has none."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return data.decode(errors="replace")


@dataclass
class Member:
    """The processes of this machine; the first is the one that matters, the others serve it."""

    processes: Sequence[Process]
    backend: Backend
    say: Say
    patience: float = PATIENCE
    again: float = AGAIN

    def __post_init__(self) -> None:
        self.main = self.processes[0]
        self._tail = Tail(Path(self.main.log))
        self._beginning, self._worked = "", False  # the log until its work began
        self._due: dict[str, float] = {}  # when to start what again
        self._refused_since: float | None = None
        self._hinted = False

    def start(self) -> None:
        for process in self.processes:
            self.launch(process)

    def launch(self, process: Process) -> None:
        if process is self.main:
            self._beginning, self._worked = "", False
        self.backend.spawn(process)

    def step(self, now: float) -> None:
        """Look once. Raises ``LaunchError`` when it is over."""
        exits = self.backend.exits()
        self.show()
        for exit in exits:
            self.on_exit(exit, now)
        for process in self.processes:
            if self._due.get(process.name, now + 1) <= now:
                del self._due[process.name]
                self.launch(process)

    def show(self) -> None:
        new = self._tail.read()
        if not self._worked:
            self._beginning += new
            self._worked = WORKING[self.main.name] in self._beginning
        if self._worked:
            self._refused_since = None
        elif UNREACHED in new and not self._hinted:
            self._hinted = True
            self.say(f"prunella: {HINT}")
        if new:
            self.say(new.rstrip("\n"))

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
        refusal = None if self._worked else refusals.find(self._beginning)
        if refusal and refusal.passing:
            return self.refused(refusal, now)
        if not self._worked and (exit.code != 0 or refusal):
            return refusal.text if refusal else f"it never began its work; see {self.main.log}"
        if self.main.name == LINK and "--database" not in self.main.args:
            return "it kept nothing on disk, so nobody could go on with it; leave out --in-memory"
        clocks = "" if self._worked else "; if this repeats, set both clocks: Flower tolerates 300 s"
        self.say(f"prunella: {exit.name} {exit.how}; starting it again in {self.again:.0f} s{clocks}")
        return ""

    def refused(self, refusal: Refusal, now: float) -> str:
        """Try again for a while, then say why not."""
        self._refused_since = self._refused_since or now
        left = self._refused_since + self.patience - now
        if left < self.again:
            return refusal.text
        self.say(f"prunella: {refusal.text}; trying again in {self.again:.0f} s, for {left:.0f} s at most")
        return ""


def serve(processes: Sequence[Process], warm: bool, say: Say, patience: float = PATIENCE, poll: float = POLL) -> None:
    """Print the commands, run them until Ctrl-C or SIGTERM (``KeyboardInterrupt``), or until they fail for good."""
    requirements.check()
    for process in processes:
        say(command_line(process))
    with terminated():
        backend = start_backend(Path(processes[0].log).parent, warm, poll)
        try:
            member = Member(processes, backend, say, patience)
            member.start()
            while True:
                member.step(time.monotonic())
                time.sleep(LOOK)
        finally:
            backend.stop()


def start_backend(logs: Path, warm: bool, poll: float = POLL) -> Backend:
    return Warm(logs / "warm.log", ENV, PRELOAD, poll) if warm else Stock()
