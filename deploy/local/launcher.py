"""Runs one federation on this machine from start to end.

``launch`` starts the processes, submits the app, follows the run and ends every process again, whatever happens. See
``deploy.local.topology`` for the processes and ``deploy.runtime.processes`` for how they are started and ended.
"""

import json
import math
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prunella.core.interrupts import signals_interrupt
from prunella.deploy.console.progress import ConsoleView
from prunella.deploy.errors import UsageError
from prunella.deploy.local.topology import Ports, deployment, own_map, simulation
from prunella.deploy.ports import LOOPBACK, PortError, free_ports, is_free
from prunella.deploy.runs import RunDir, create, locked, new_id, point_latest, prepare
from prunella.deploy.runtime import requirements, settings
from prunella.deploy.runtime.patches import POLL, poll_for
from prunella.deploy.runtime.processes import Backend, StockBackend, ZygoteBackend
from prunella.deploy.runtime.request import RunRequest, describe, run_config, submission
from prunella.deploy.runtime.services import Value
from prunella.deploy.runtime.watch import Outcome, Watch

ROOM, ROOM_EACH = 50_000_000, 5_000_000  # bytes that a run writes before its first round, and each SuperNode of it


def least_clients(request: RunRequest) -> int:
    """How many clients a round waits for, as far as the app's settings tell."""
    known = settings.defaults(settings.read_app(request.app))
    wanted = dict(request.settings).get("min-clients", known.get("min-clients", 1))
    return wanted if isinstance(wanted, int) else 1


def check_clients(request: RunRequest) -> None:
    """Refuse fewer clients than a round waits for: it would wait forever."""
    if (wanted := least_clients(request)) > request.supernodes:
        raise UsageError(
            f"a round waits for min-clients={wanted}, but --supernodes is {request.supernodes}: "
            f"start more, or add -c min-clients={request.supernodes}"
        )


def check_port(given: Mapping[str, Value]) -> None:
    """Refuse a metrics address that another process holds."""
    address = str(given.get("metrics-address", ""))
    host, _, port = address.rpartition(":")
    if address and not (port.isdecimal() and int(port) < 65536 and is_free(int(port), host.strip("[]") or LOOPBACK)):
        raise PortError(f"metrics-address {address!r} is not a free HOST:PORT: stop what holds it, or choose another")


def room(runs: Path) -> float:
    """Bytes that may be written to a directory, or to the nearest one above it that exists; without end where a file
    system counts none, as that of /proc, which takes no file and says so itself."""
    place = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    usage = shutil.disk_usage(place)
    return usage.free if usage.total else math.inf


def check_room(request: RunRequest) -> None:
    """Refuse a disk on which not even the processes' own files fit: it would be full before the first round."""
    needed = ROOM + ROOM_EACH * _supernodes(request)
    if room(request.runs) < needed:
        raise UsageError(
            f"{request.runs} has {room(request.runs) / 1e6:.0f} MB free, and a run of {request.supernodes} clients "
            f"needs {needed / 1e6:.0f} MB and its model's size many times: free some, or name another with --runs"
        )


def start_processes(request: RunRequest, run: RunDir, backend: Backend, resume: bool) -> str:
    """Start every process of the federation; the last one submits the app. Returns where the server will show the run,
    as HOST:PORT, "" for an app that does not."""
    metrics_port, *rest = free_ports(3 + _supernodes(request))
    ports = Ports.of(rest)
    processes = simulation(run, ports, request.stock) if request.simulate else deployment(run, ports, request)
    config = run_config(request, run, metrics_port, resume)
    address = f"{LOOPBACK}:{ports.control}"
    processes.append(submission(request, run, config, address=address, simulation=simulation_config(request)))
    for process in processes:
        backend.spawn(process)
    return str(config.get("metrics-address", ""))


def simulation_config(request: RunRequest) -> dict[str, Any] | None:
    """The fields of Flower's SimulationConfig; None for a federation of real processes."""
    if not request.simulate:
        return None
    return {
        "num_supernodes": request.supernodes,
        "client_resources_num_cpus": request.cpus_per_client,
        "client_resources_num_gpus": request.gpus_per_client,
    }


def start_backend(request: RunRequest, run: RunDir) -> Backend:
    if request.stock:
        return StockBackend()
    log = run.log("zygote")
    if request.simulate:  # virtual clients have no configuration of their own
        env = {"PRUNELLA_STATE_DIR": str(run.path / "nodes"), "PRUNELLA_AUDIT": request.audit}
        env |= {f"PRUNELLA_{key.upper()}": str(value) for key, value in own_map(request).items()}
        return ZygoteBackend(log, POLL, env)
    return ZygoteBackend(log, poll_for(request.supernodes))


def launch(
    request: RunRequest, view: ConsoleView, check: Callable[[], None] = lambda: None, resume: RunDir | None = None
) -> Outcome:
    """Run the federation to its end. ``check`` runs while the zygote imports, before any Flower process starts.

    Ctrl-C and SIGTERM give the outcome "stopped". Raises ``UsageError``, or what ``check`` raises, when nothing could
    be started, and ``LaunchError`` when the processes broke; each after ending everything.
    """
    requirements.check_system()
    check_port(request.settings)
    requirements.check("simulation" if request.simulate else "server")
    check_clients(request)
    check_room(request)
    if resume is None:  # a resumed run keeps the very words of its settings
        request = replace(request, settings=settings.anchored(request.settings))
    run = resume or create(request.runs, request.run_id or new_id(), _supernodes(request))
    with signals_interrupt(), locked(run):
        view.say(f"run {run.id}: starting {request.supernodes} clients")
        outcome = _run(request, run, view, check, resume is not None)
    if outcome.status == "completed" and not request.keep:
        shutil.rmtree(run.flower, ignore_errors=True)
    return outcome


def _supernodes(request: RunRequest) -> int:
    """How many SuperNodes are processes of their own."""
    return 0 if request.simulate else request.supernodes


def _run(request: RunRequest, run: RunDir, view: ConsoleView, check: Callable[[], None], resume: bool) -> Outcome:
    prepare(run, _supernodes(request))
    for file in (run.events, run.path / "ended.json"):
        file.unlink(missing_ok=True)
    backend = start_backend(request, run)
    try:
        check()
        (run.path / "launch.json").write_text(json.dumps(describe(request), indent=1))
        point_latest(run.path.parent, run.id)
        if address := start_processes(request, run, backend, resume):
            view.say(f"live page: http://{address}/ (while the server runs)")
        spare = None if request.simulate else request.supernodes - least_clients(request)
        return Watch(run, backend, view, request.stock, spare).wait()
    except KeyboardInterrupt:
        if not (run.path / "launch.json").exists():
            raise
        view.say(f"stopping ... (--resume {shlex.quote(run.id)} goes on)")
        return Outcome(run, "stopped", "stopped by the user")
    finally:
        backend.stop()
        if not (run.path / "launch.json").exists():
            shutil.rmtree(run.path)
