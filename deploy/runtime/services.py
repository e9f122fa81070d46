"""The processes of a federation on this machine, with their command lines.

Everything binds to 127.0.0.1 only, on ports found free at start, without TLS, which would protect nothing there: a
process that can read loopback traffic can read the processes. Flower 1.39: SuperNodes speak gRPC to the SuperLink's
Fleet API; the SuperLink serves its Control and Runtime APIs over HTTP; each SuperNode serves its own Runtime API.

Log files, one a process: ``superlink``, ``server-exec`` and the ServerApp's ``server``; for client i ``supernode-i``,
``client-exec-i`` and the ClientApp's ``client-i``; ``control`` and ``warm``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prunella.deploy.ports import LOOPBACK
from prunella.deploy.runs import RunDir
from prunella.deploy.runtime.processes import CONTROL, Process
from prunella.deploy.runtime.zygote import CLIENT_AFTER, SERVER_AFTER

Value = str | int | float | bool
NO_INSTALL = "--disable-runtime-dependency-installation"


@dataclass(frozen=True)
class Ports:
    """The loopback ports of a run."""

    control: int
    fleet: int
    nodes: tuple[int, ...]

    @classmethod
    def of(cls, ports: list[int]) -> "Ports":
        return cls(ports[0], ports[1], tuple(ports[2:]))


def toml_line(key: str, value: Value) -> str:
    r"""One line of TOML; a JSON string is a TOML string.

    >>> toml_line("state-dir", 'a "b"')
    'state-dir = "a \\"b\\""'
    """
    return f"{key} = {json.dumps(value)}"


def write_node_config(run: RunDir, index: int, config: Mapping[str, Value]) -> Path:
    """The node config of client ``index`` as a file, which unlike the command line may hold any path."""
    path = run.node(index) / "node.toml"
    path.write_text("".join(toml_line(key, value) + "\n" for key, value in config.items()))
    return path


def superlink(run: RunDir, ports: Ports, *extra: str) -> Process:
    args = ("--insecure", "--host", LOOPBACK, "--port", str(ports.control), NO_INSTALL, *extra)
    return Process("superlink", "flower-superlink", args, str(run.log("superlink")), _home(run, "superlink"))


def supernode(run: RunDir, ports: Ports, index: int, config: Path, *extra: str) -> Process:
    name = f"supernode-{index}"
    args = (
        "--insecure",
        "--superlink",
        f"{LOOPBACK}:{ports.fleet}",
        "--host",
        LOOPBACK,
        "--port",
        str(ports.nodes[index]),
        "--node-config",
        str(config),
        *extra,
    )
    return Process(name, "flower-supernode", args, str(run.log(name)), _home(run, f"node-{index}"), (ports.fleet,))


def superexec(run: RunDir, name: str, task: str, home: str, port: int, after: int) -> Process:
    args = ("--insecure", "--runtime-api-address", f"{LOOPBACK}:{port}")
    return Process(
        name, "flower-superexec", args, str(run.log(name)), _home(run, home), (port,), after, str(run.log(task))
    )


def control(run: RunDir, ports: Ports, request: Mapping[str, Any]) -> Process:
    """The process that submits the run; it finds its request (``deploy.runtime.control``) in a file."""
    path = run.flower / "request.json"
    path.write_text(json.dumps({**request, "address": f"{LOOPBACK}:{ports.control}", "out": str(run.events)}))
    return Process("control", CONTROL, (str(path),), str(run.log("control")), _home(run, "control"))


def deployment(run: RunDir, ports: Ports, node_configs: list[Path], warm: bool) -> list[Process]:
    """SuperLink and SuperNodes, and in warm mode the SuperExecs, which stock Flower starts by itself."""
    fleet = ("--fleet-api-address", f"{LOOPBACK}:{ports.fleet}")
    isolation = ("--isolation", "process") if warm else ()
    processes = [superlink(run, ports, *fleet, *isolation)]
    processes += [supernode(run, ports, i, config, *isolation) for i, config in enumerate(node_configs)]
    if warm:
        processes += [superexec(run, "server-exec", "server", "superlink", ports.control, SERVER_AFTER)]
        processes += [
            superexec(run, f"client-exec-{i}", f"client-{i}", f"node-{i}", port, CLIENT_AFTER)
            for i, port in enumerate(ports.nodes)
        ]
    return processes


def simulation(run: RunDir, ports: Ports) -> list[Process]:
    """A SuperLink that simulates, and the SuperExec that starts Flower's simulation (Ray)."""
    return [
        superlink(run, ports, "--simulation", "--isolation", "process"),
        superexec(run, "server-exec", "server", "superlink", ports.control, SERVER_AFTER),
    ]


def _home(run: RunDir, name: str) -> dict[str, str]:
    return {"FLWR_HOME": str(run.home(name))}
