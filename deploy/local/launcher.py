"""Runs one federation on this machine from start to end.

``launch`` starts the processes, submits the app, follows the run and ends every process again, whatever happens. What
the run has come to is Flower's word (``finished:completed``), never an exit code. See ``deploy.runtime.services`` for
the processes and ``deploy.runtime.processes`` for how they are started and ended.
"""

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from prunella.deploy.console.progress import Follower, View
from prunella.deploy.errors import UsageError
from prunella.deploy.ports import LOOPBACK, PortError, free_ports, is_free
from prunella.deploy.runs import RunDir, RunError, create, locked, new_id, point_latest, prepare
from prunella.deploy.runtime import requirements, services, settings
from prunella.deploy.runtime.patches import POLL, poll_for
from prunella.deploy.runtime.processes import Backend, Exit, Stock, Warm
from prunella.deploy.runtime.zygote import ENV, PRELOAD

Value = str | int | float | bool
Audit = Literal["deny", "scores", "numbers", "pictures"]
Status = Literal["completed", "failed", "stopped"]
LOOK = 0.1  # seconds between two looks at the processes and files
LAST_WORD = 15.0  # seconds Flower has to report the end of a ServerApp that is gone
TAIL = 12  # lines of a log shown when a run fails
# A process without which the run cannot go on; a client that ends is left to the strategy.
VITAL = ("superlink", "server-exec", "control")


@dataclass(frozen=True)
class Request:
    """What to run. ``settings`` are typed run-config overrides, already checked."""

    app: Path
    runs: Path
    settings: Mapping[str, Value] = field(default_factory=dict)
    supernodes: int = 4
    run_id: str = ""
    audit: Audit = "pictures"
    client_seed: int | None = None
    stock: bool = False
    simulate: bool = False
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    keep: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``log`` is the file to read when it failed."""

    run: RunDir
    status: Status
    error: str = ""
    log: Path | None = None


def describe(request: Request) -> dict[str, Any]:
    """The request as ``launch.json`` keeps it."""
    plain = {name: value for name, value in vars(request).items() if name != "runs"}
    return {**plain, "app": str(request.app), "settings": dict(request.settings)}


def restored(run: RunDir, keep: bool = False) -> Request:
    """The request a run was started with. Raises ``RunError``."""
    said = run.launch()
    try:
        return Request(**{**said, "app": Path(said["app"]), "runs": run.path.parent, "run_id": run.id, "keep": keep})
    except (KeyError, TypeError):
        raise RunError(f"{run.path}/launch.json is missing or of another version: start a new run") from None


def node_config(request: Request, run: RunDir, index: int) -> dict[str, Value]:
    config: dict[str, Value] = {
        "partition-id": index,
        "num-partitions": request.supernodes,
        "state-dir": str(run.node(index) / "state"),
        "audit": request.audit,
    }
    return config | ({"client-seed": request.client_seed} if request.client_seed is not None else {})


def run_config(request: Request, run: RunDir, metrics_port: int, resume: bool) -> dict[str, Value]:
    """The user's settings and the launcher's own, as far as the app knows the latter."""
    known = settings.defaults(settings.read_app(request.app))
    own: dict[str, Value] = {
        "run-dir": str(run.path),
        "resume": resume,
        "metrics-address": f"{LOOPBACK}:{metrics_port}",
        "expected-clients": request.supernodes,
    }
    return {key: value for key, value in own.items() if key in known} | dict(request.settings)


def check_clients(request: Request) -> None:
    """Refuse fewer clients than a round waits for: it would wait in vain."""
    known = settings.defaults(settings.read_app(request.app))
    wanted = dict(request.settings).get("min-clients", known.get("min-clients", 1))
    if isinstance(wanted, int) and wanted > request.supernodes:
        raise UsageError(
            f"a round waits for min-clients={wanted}, but --supernodes is {request.supernodes}: "
            f"start more, or add -c min-clients={request.supernodes}"
        )


def check_port(given: Mapping[str, Value]) -> None:
    """Refuse a metrics address that somebody else holds."""
    address = str(given.get("metrics-address", ""))
    host, _, port = address.rpartition(":")
    if address and not (port.isdigit() and is_free(int(port), host or LOOPBACK)):
        raise PortError(f"metrics-address {address!r} is not a free HOST:PORT: stop what holds it, or choose another")


def start_processes(request: Request, run: RunDir, backend: Backend, resume: bool) -> None:
    """Start every process of the federation; the last one submits the app."""
    nodes = 0 if request.simulate else request.supernodes
    metrics_port, *rest = free_ports(3 + nodes)
    ports = services.Ports.of(rest)
    if request.simulate:
        processes = services.simulation(run, ports)
    else:
        configs = [services.write_node_config(run, i, node_config(request, run, i)) for i in range(nodes)]
        processes = services.deployment(run, ports, configs, warm=not request.stock)
    submission = {
        "app": str(request.app),
        "packages": str(settings.packages_of(request.app)),
        "config": run_config(request, run, metrics_port, resume),
        "simulation": simulation_config(request),
    }
    processes.append(services.control(run, ports, submission))
    for process in processes:
        backend.spawn(process)


def simulation_config(request: Request) -> dict[str, Any] | None:
    if not request.simulate:
        return None
    return {
        "num_supernodes": request.supernodes,
        "client_resources_num_cpus": request.cpus_per_client,
        "client_resources_num_gpus": request.gpus_per_client,
    }


def tail(path: Path, lines: int = TAIL) -> str:
    """The last lines of a log, "" when there are none."""
    try:
        return "\n".join(path.read_text(errors="replace").rstrip().splitlines()[-lines:])
    except FileNotFoundError:
        return ""


class Watch:
    """Follows a run until it ends; ``step`` returns the outcome once there is one."""

    def __init__(self, run: RunDir, backend: Backend, view: View, stock: bool) -> None:
        self._run, self._backend, self._view = run, backend, view
        self._server_log = run.log("superlink" if stock else "server")
        self._events, self._metrics = Follower(run.events), Follower(run.metrics)
        self._gone: float | None = None

    def _failed(self, error: str, log: Path) -> Outcome:
        return Outcome(self._run, "failed", error, log)

    def step(self) -> Outcome | None:
        exits = self._backend.exits()
        outcome = None
        for event in self._events.read():
            outcome = self.on_event(event) or outcome
        self._view.show(self._metrics.read())
        for exit in exits:
            outcome = outcome or self.on_exit(exit)
        if self._gone and time.monotonic() > self._gone + LAST_WORD:
            outcome = outcome or self._failed("the ServerApp ended without a word to Flower", self._server_log)
        return outcome

    def on_event(self, event: Mapping[str, Any]) -> Outcome | None:
        if event["event"] == "error":
            return self._failed(str(event["message"]), self._run.log("control"))
        if event["event"] == "registered":
            self._view.say(f"new keys registered: {', '.join(event['names']) or 'none'}")
            return None
        if event["event"] == "started":
            self._view.say("the app was accepted; waiting for the clients")
            return None
        status, details = str(event["status"]), str(event.get("details", ""))
        if status == "finished:completed":
            return Outcome(self._run, "completed")
        if status == "finished:stopped":
            return Outcome(self._run, "stopped", "it was told to stop")
        return self._failed(details or status, self._server_log) if status.startswith("finished") else None

    def on_exit(self, exit: Exit) -> Outcome | None:
        """A dead client is the strategy's business; a dead server is the end."""
        if exit.name in VITAL and not (exit.name == "control" and exit.code == 0):
            return self._failed(f"{exit.name} {exit.how}", self._run.log(exit.name))
        if exit.name.endswith("of server-exec"):
            self._gone = time.monotonic()
            return self._failed(f"the ServerApp {exit.how}", self._server_log) if exit.code < 0 else None
        if exit.name.startswith(("supernode-", "client-exec-")) or exit.code < 0:
            self._view.say(f"{exit.name} {exit.how}; the federation goes on without it (logs: {self._run.path}/logs)")
        return None


@contextmanager
def terminated() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the launcher like Ctrl-C: through every ``finally``."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def backend_for(request: Request, run: RunDir) -> Backend:
    if request.stock:
        return Stock()
    poll = POLL if request.simulate else poll_for(request.supernodes)
    env = dict(ENV)
    if request.simulate:  # virtual clients have no configuration of their own
        env |= {"PRUNELLA_STATE_DIR": str(run.path / "nodes"), "PRUNELLA_AUDIT": request.audit}
    return Warm(run.log("warm"), env, PRELOAD, poll)


def launch(
    request: Request, view: View, check: Callable[[], None] = lambda: None, resume: RunDir | None = None
) -> Outcome:
    """Run the federation to its end. ``check`` runs while the warm worker imports, before any Flower process starts.

    Ctrl-C and SIGTERM give the outcome "stopped". Raises ``UsageError``, or what ``check`` raises, when nothing could
    be started, and ``LaunchError`` when the processes broke; each after ending everything.
    """
    if sys.platform != "linux":
        raise UsageError("the launcher needs Linux: use the Docker image, or Flower's own `flwr run`")
    check_port(request.settings)
    requirements.check("simulation" if request.simulate else "server")
    check_clients(request)
    run = resume or create(request.runs, request.run_id or new_id(), 0 if request.simulate else request.supernodes)
    with terminated(), locked(run):
        view.say(f"run {run.id}: starting {request.supernodes} clients")
        outcome = _run(request, run, view, check, resume is not None)
    if outcome.status == "completed" and not request.keep:
        shutil.rmtree(run.flower, ignore_errors=True)
    return outcome


def _run(request: Request, run: RunDir, view: View, check: Callable[[], None], resume: bool) -> Outcome:
    prepare(run, 0 if request.simulate else request.supernodes)
    run.events.unlink(missing_ok=True)
    backend = backend_for(request, run)
    try:
        check()
        (run.path / "launch.json").write_text(json.dumps(describe(request), indent=1))
        point_latest(run.path.parent, run.id)
        start_processes(request, run, backend, resume)
        watch = Watch(run, backend, view, request.stock)
        while (outcome := watch.step()) is None:
            time.sleep(LOOK)
        return outcome
    except KeyboardInterrupt:
        if not (run.path / "launch.json").exists():
            raise
        return Outcome(run, "stopped", "stopped by the user")
    finally:
        backend.stop()
        if not (run.path / "launch.json").exists():
            shutil.rmtree(run.path)
