"""Starting, watching and ending the processes of a federation.

Two ways to start the same list of ``Process``: ``StockBackend`` runs Flower's own commands; ``ZygoteBackend`` forks
them all from one process that has imported Flower and PyTorch already (``deploy.runtime.zygote``). Both end everything
when the launcher ends, even by SIGKILL: the kernel delivers SIGKILL to every child whose parent died
(``PR_SET_PDEATHSIG``), down the tree. Linux only.
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prunella.core.installation import IMPORT_ROOT
from prunella.deploy.errors import LaunchError
from prunella.deploy.ports import LOOPBACK, wait_open

CONTROL = "prunella-control"
GRACE = 3.0  # seconds a process has between SIGTERM and SIGKILL
START = 60.0  # seconds a port may take to open
# What tasks import, in this order. ServerApps are started after the first ``SERVER_AFTER``, ClientApps after the first
# ``CLIENT_AFTER``: the rest, which optimizers and scoring need, is imported while they start and find each other.
PRELOAD = (
    "torch",
    "pydantic",
    "cryptography.hazmat.primitives.ciphers",
    "filelock",
    "safetensors.torch",
    "torch._dynamo",
    "scipy.optimize",
)
SERVER_AFTER, CLIENT_AFTER = 1, 3
# One thread a task, no thread of Arrow's allocator, and no CUDA driver started by asking whether there is a GPU: after
# that, a fork could not use it.
ENV = {
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "3",  # the most; ``patches.PatientTime`` shortens it
}
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
_LIBC = ctypes.pythonapi  # what this process has loaded, as ``CDLL(None)``, which Windows refuses at import


@dataclass(frozen=True)
class Process:
    """One process: a console script of Flower (or ``CONTROL``) with its arguments, environment and log file.

    ``wait_for`` are loopback ports that must be open before it starts. ``after`` is the number of modules the zygote
    must have preloaded first; ``task_log`` is where the tasks a SuperExec starts write. ``bundle`` is the SHA-256 of
    the app's bundle that a ClientApp will load, where that is known.
    """

    name: str
    command: str
    args: tuple[str, ...] = ()
    log: str = os.devnull
    env: Mapping[str, str] = field(default_factory=dict)
    wait_for: tuple[int, ...] = ()
    after: int = 0
    task_log: str = ""
    bundle: str = ""


@dataclass(frozen=True)
class Exit:
    """A process has ended: ``code`` as in ``subprocess``, negative for a signal."""

    name: str
    code: int

    @property
    def how(self) -> str:
        """
        >>> Exit("server", -9).how
        'was killed by SIGKILL'
        """
        return f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"ended with code {self.code}"


class Backend(Protocol):
    """What the launcher needs of a way to start processes."""

    def spawn(self, process: Process) -> None: ...
    def exits(self) -> list[Exit]: ...
    def stop(self) -> None: ...


def die_with_parent(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when ``parent`` dies; end at once if it is dead already.

    Strictly, when the thread that started it ends: start processes from a main thread.
    """
    _LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def set_process_name(name: str) -> None:
    """Set what ``ps -o comm`` and ``top`` show, 15 bytes; otherwise every fork has the zygote's name."""
    _LIBC.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def environment(extra: Mapping[str, str] = {}) -> dict[str, str]:  # noqa: B006 - never written to
    """The environment of every process: Flower's scripts on PATH, no telemetry, no update check, no ``uv sync``."""
    scripts = str(Path(sys.executable).parent)
    fixed = {
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "GRPC_VERBOSITY": "ERROR",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's only switch for serving on 127.0.0.1 instead of everywhere
    }
    return {**os.environ, **homeless(), **fixed, **extra}


def homeless() -> dict[str, str]:
    """For a user without a home, a uid that the machine has no name for: that it is ``/``, as in containers. Flower
    asks for one when it is imported, to look into it."""
    try:
        Path.home()
    except RuntimeError:
        return {"HOME": "/"}
    return {}


def importable(env: Mapping[str, str]) -> dict[str, str]:
    """The same environment, in which ``python -m prunella.…`` finds this package, installed or not."""
    before = env.get("PYTHONPATH", "")
    return {**env, "PYTHONPATH": f"{IMPORT_ROOT}{os.pathsep}{before}" if before else str(IMPORT_ROOT)}


class StockBackend:
    """Flower's own commands, unpatched, each a new Python."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def spawn(self, process: Process) -> None:
        for port in process.wait_for:
            if not wait_open(port, START):
                where = f"{LOOPBACK}:{port}"
                raise LaunchError(f"nothing listens on {where} after {START:.0f} s, so {process.name} cannot start")
        env = environment(process.env)
        command = [process.command, *process.args]
        if process.command == CONTROL:
            command, env = [sys.executable, "-m", "prunella.deploy.runtime.control_api", *process.args], importable(env)
        parent = os.getpid()
        with open(process.log, "ab") as log:
            self._running[process.name] = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent, signal.SIGKILL),
            )

    def exits(self) -> list[Exit]:
        ended = [Exit(name, child.returncode) for name, child in self._running.items() if child.poll() is not None]
        for exit in ended:
            del self._running[exit.name]
        return ended

    def stop(self) -> None:
        """SIGTERM to each process group, SIGKILL to what is left after ``GRACE`` seconds."""
        children = list(self._running.values())
        for child in children:
            _signal_group(child.pid, signal.SIGTERM)
        end = time.monotonic() + GRACE
        while any(child.poll() is None for child in children) and time.monotonic() < end:
            time.sleep(0.02)
        for child in children:
            _signal_group(child.pid, signal.SIGKILL)
            child.wait()
        self._running.clear()


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


class ZygoteBackend:
    """The launcher's end of the zygote: sends it what to start, reads what has ended."""

    def __init__(
        self,
        log: Path,
        poll: float,
        env: Mapping[str, str] = {},
        preload: Sequence[str] = PRELOAD,  # noqa: B006
    ) -> None:
        self._log = log
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        command = [sys.executable, "-m", "prunella.deploy.runtime.zygote", str(theirs.fileno()), str(poll), *preload]
        with theirs, open(log, "ab") as output:
            self._zygote = subprocess.Popen(
                command,
                env=importable(environment({**ENV, **env})),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
            )
        self._channel.setblocking(False)
        self._stopped = False

    def spawn(self, process: Process) -> None:
        packet = json.dumps(asdict(process)).encode()
        try:
            with suppress(BlockingIOError):  # full until the zygote has imported Flower and reads
                self._channel.send(packet)
                return
            select.select([], [self._channel], [], START)
            self._channel.send(packet)
        except BlockingIOError:
            raise LaunchError(f"the zygote starts nothing more after {START:.0f} s: see {self._log}") from None
        except OSError:
            raise LaunchError(f"the zygote, which starts all processes, has ended: see {self._log}") from None

    def exits(self) -> list[Exit]:
        ended = []
        for message in self._messages():
            if "error" in message:
                raise LaunchError(message["error"])
            ended.append(Exit(message["name"], message["code"]))
        if not self._stopped and _has_ended(self._zygote.pid):
            self.stop()
            how = Exit("zygote", self._zygote.returncode).how
            raise LaunchError(f"the zygote, which starts all processes, {how}: see {self._log}")
        return ended

    def _messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            try:
                packet = self._channel.recv(1 << 16)
            except (BlockingIOError, ConnectionError):
                return found
            if not packet:
                return found
            found.append(json.loads(packet))

    def stop(self) -> None:
        """Close the channel, which tells the zygote to end everything; then kill whatever its group still holds."""
        if self._stopped:
            return
        self._stopped = True
        self._channel.close()
        try:
            end = time.monotonic() + GRACE + 2.0
            while not _has_ended(self._zygote.pid) and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            _signal_group(self._zygote.pid, signal.SIGKILL)
            self._zygote.wait()


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, without reaping it: its id, and so its group's, stays taken."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
