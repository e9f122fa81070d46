"""The processes of a federation on this machine.

Everything binds to 127.0.0.1, on ports found free at the start, without TLS, which would protect nothing there: a
process that can read loopback traffic can read the processes. Who may call is in ``deploy.runtime.callers``.

Log files, one per process: ``superlink``, ``server-exec`` and the ServerApp's ``server``; for client i ``supernode-i``,
``client-exec-i`` and the ClientApp's ``client-i``; ``control`` and ``zygote``.
"""

import os
import secrets
from dataclasses import dataclass, replace

from prunella.deploy.ports import LOOPBACK, Address
from prunella.deploy.runs import RunDir
from prunella.deploy.runtime import flower_release
from prunella.deploy.runtime.processes import Process
from prunella.deploy.runtime.request import RunRequest
from prunella.deploy.runtime.services import (
    Folders,
    Value,
    client_exec,
    server_exec,
    superlink,
    supernode,
    write_node_config,
)


@dataclass(frozen=True)
class Ports:
    """The loopback ports of a run."""

    control: int
    fleet: int
    nodes: tuple[int, ...]

    @classmethod
    def of(cls, ports: list[int]) -> "Ports":
        return cls(ports[0], ports[1], tuple(ports[2:]))


def own_map(request: RunRequest) -> dict[str, Value]:
    """A file that the run names as a channel's map: all of this machine is one owner's, so it names the owner's."""
    named = str(dict(request.settings).get("channel-personalized.importance", "box:"))
    return {} if named.startswith("box:") else {"importance": named}


def node_config(request: RunRequest, run: RunDir, index: int) -> dict[str, Value]:
    """The configuration of client ``index``'s SuperNode."""
    config: dict[str, Value] = {
        "partition-id": index,
        "num-partitions": request.supernodes,
        "state-dir": str(run.node(index) / "state"),
        "audit": request.audit,
    }
    config |= own_map(request)
    return config | ({"client-seed": request.client_seed} if request.client_seed is not None else {})


def deployment(run: RunDir, ports: Ports, request: RunRequest) -> list[Process]:
    """SuperLink and SuperNodes, and the SuperExecs, which stock Flower starts by itself."""
    ours = not request.stock
    fleet = Address(LOOPBACK, ports.fleet if ours or flower_release.speaks_grpc() else ports.control)
    processes = [superlink(_folders(run, "superlink").of_one_user(), _control(ports), fleet, isolated=ours)]
    for i, port in enumerate(ports.nodes):
        config = write_node_config(run.node(i) / "node.toml", node_config(request, run, i))
        folders = _folders(run, f"node-{i}")
        processes.append(
            supernode(folders, fleet, port, config, name=f"supernode-{i}", isolated=ours, wait_for=[fleet.port])
        )
    if request.stock:
        return processes
    clients = [client_exec(_folders(run, f"node-{i}"), f"client-exec-{i}", port, f"client-{i}")
               for i, port in enumerate(ports.nodes)]  # fmt: skip
    return [*processes, _server_exec(run, ports), *clients]


def simulation(run: RunDir, ports: Ports, stock: bool = False) -> list[Process]:
    """A SuperLink that simulates, and the SuperExec that starts Flower's simulation (Ray), which with ``stock`` the
    SuperLink starts by itself. Ray runs what it is sent, so that it has a token of the run's, unless a login is set."""
    folders = _folders(run, "superlink").of_one_user()
    if not os.environ.keys() & {"RAY_AUTH_MODE", "RAY_ADDRESS"}:
        login = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        folders = replace(folders, env={**folders.env, **login})
    link = superlink(folders, _control(ports), None, isolated=not stock)
    return [link] if stock else [link, server_exec(folders, "server-exec", _control(ports))]


def _control(ports: Ports) -> Address:
    return Address(LOOPBACK, ports.control)


def _server_exec(run: RunDir, ports: Ports) -> Process:
    return server_exec(_folders(run, "superlink"), "server-exec", _control(ports))


def _folders(run: RunDir, home: str) -> Folders:
    return Folders(run.logs, run.home(home))
