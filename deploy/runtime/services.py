"""Flower's processes and their command lines, for one machine and for several.

SuperNodes connect to the SuperLink's Fleet API (gRPC in Flower 1.39, HTTP in 1.42: ``deploy.runtime.flower_release``);
the SuperLink serves its Control and Runtime APIs over HTTP on one port; each SuperNode serves a Runtime API of its own.
A SuperExec asks a Runtime API for tasks and starts them: ServerApps at the SuperLink's, ClientApps at a SuperNode's.
With ``stock`` Flower starts its SuperExecs by itself; otherwise they are processes of ours, which fork tasks from the
zygote.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prunella.deploy.ports import LOOPBACK, Address
from prunella.deploy.runtime.callers import ONE_USER
from prunella.deploy.runtime.processes import CLIENT_AFTER, CONTROL, SERVER_AFTER, Process

Value = str | int | float | bool
SUPERLINK, SUPERNODE = "superlink", "supernode"
NO_INSTALL = "--disable-runtime-dependency-installation"
INSECURE = ("--insecure",)
ISOLATED = ("--isolation", "process")  # SuperExecs are separate processes


@dataclass(frozen=True)
class Folders:
    """Where a process keeps its files: logs in ``logs``, Flower's own in ``home``. ``env`` extends its environment."""

    logs: Path
    home: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def of_one_user(self) -> "Folders":
        """The same, for a server that no other user of the machine may call over loopback."""
        return replace(self, env={**self.env, ONE_USER: "1"})

    def process(
        self, name: str, command: str, args: Sequence[str], wait: Sequence[int] = (), after: int = 0, tasks: str = ""
    ) -> Process:
        """A process that writes ``name``.log, and whose tasks write ``tasks``.log."""
        env = {"FLWR_HOME": str(self.home), **self.env}
        log, task_log = (str(self.logs / f"{each}.log") if each else "" for each in (name, tasks))
        return Process(name, command, tuple(args), log, env, tuple(wait), after, task_log)


def toml_line(key: str, value: Value) -> str:
    r"""One line of TOML; a JSON string is a TOML string.

    >>> toml_line("state-dir", 'a "b"')
    'state-dir = "a \\"b\\""'
    """
    return f"{key} = {json.dumps(value)}"


def write_node_config(path: Path, config: Mapping[str, Value]) -> Path:
    """A SuperNode's configuration as a file: unlike the command line, it can hold any path."""
    path.write_text("".join(toml_line(key, value) + "\n" for key, value in config.items()))
    return path


def superlink(
    folders: Folders,
    control: Address,
    fleet: Address | None,
    *,
    tls: Sequence[str] = INSECURE,
    database: Path | None = None,
    isolated: bool = True,
) -> Process:
    """A SuperLink that serves ``control`` and ``fleet``, which over HTTP may be one; without ``fleet``, one that
    simulates its clients."""
    args = [*tls, "--host", control.host, "--port", str(control.port), NO_INSTALL]
    args += ["--fleet-api-address", str(fleet)] if fleet else ["--simulation"]
    args += ["--database", str(database)] if database else []
    return folders.process(SUPERLINK, "flower-superlink", [*args, *(ISOLATED if isolated else ())])


def supernode(
    folders: Folders,
    address: Address,
    port: int,
    config: Path,
    *,
    name: str = SUPERNODE,
    ca: Path | None = None,
    key: Path | None = None,
    isolated: bool = True,
    wait_for: Sequence[int] = (),
) -> Process:
    """A SuperNode of the SuperLink at ``address``, which serves its own Runtime API on the loopback ``port``."""
    args = [*trust(ca), *(["--auth-supernode-private-key", str(key)] if key else [])]
    args += ["--superlink", str(address), "--host", LOOPBACK, "--port", str(port), "--node-config", str(config)]
    args += ISOLATED if isolated else ()
    return folders.of_one_user().process(name, "flower-supernode", args, wait_for)


def server_exec(folders: Folders, name: str, runtime: Address, ca: Path | None = None) -> Process:
    """What starts the ServerApps of the SuperLink whose Runtime API is at ``runtime``."""
    wait = [runtime.port] if runtime.near.host == LOOPBACK else []
    return _superexec(folders, name, runtime, ca, wait, SERVER_AFTER, "server")


def client_exec(folders: Folders, name: str, port: int, tasks: str = "client") -> Process:
    """What starts the ClientApps of the SuperNode that serves its Runtime API on the loopback ``port``."""
    return _superexec(folders, name, Address(LOOPBACK, port), None, [port], CLIENT_AFTER, tasks)


def _superexec(
    folders: Folders, name: str, runtime: Address, ca: Path | None, wait: Sequence[int], after: int, tasks: str
) -> Process:
    args = [*trust(ca), "--runtime-api-address", str(runtime)]
    return folders.process(name, "flower-superexec", args, wait, after, tasks)


def control(folders: Folders, folder: Path, request: Mapping[str, Any]) -> Process:
    """The process that talks to a Control API; it reads its request (``control_api``) from a file in ``folder``."""
    path = folder / "request.json"
    path.write_text(json.dumps(request))
    return folders.process("control", CONTROL, [str(path)])


def trust(ca: Path | None) -> tuple[str, ...]:
    """TLS with this authority, or no TLS."""
    return ("--root-certificates", str(ca)) if ca else INSECURE


def command_line(process: Process) -> str:
    """What to type in a shell for the same process.

    >>> command_line(Process("x", "flower-superexec", ("--insecure",), env={"FLWR_HOME": "/a b"}))
    "FLWR_HOME='/a b' flower-superexec --insecure"
    """
    env = " ".join(f"{key}={shlex.quote(value)}" for key, value in process.env.items())
    return f"{env} {shlex.join((process.command, *process.args))}"
