"""One machine's part of a federation: the SuperLink's processes, or a SuperNode's, with their command lines.

Outside this machine's loopback interface everything is TLS with registered SuperNode keys, unless somebody types that
it should not be. Ports of Flower 1.39: SuperNodes come to the Fleet API (gRPC, 9092); commands and the ServerApp come
to the Control and Runtime API (HTTP, 8000), which asks nobody for a login and runs what it is sent, so it stays on
loopback; a SuperNode's own Runtime API (HTTP, 9094) is for the ClientApps of its machine and is always on loopback.

Each member keeps everything in one directory, 0700: ``flower/`` (its FLWR_HOME), ``logs/``, ``state.db`` (SuperLink:
registered keys and runs), ``state/`` and ``node.toml`` (SuperNode: what the client remembers, its configuration).
Whose the client numbers are stands in ``flower/`` of whatever runs the ServerApps.
"""

import ipaddress
import shlex
from dataclasses import dataclass
from pathlib import Path

from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.machines import refusals
from prunella.deploy.machines.keys import Keys, check_superlink, present, private_directory
from prunella.deploy.ports import LOOPBACK
from prunella.deploy.runtime.own_code import OWN_CODE
from prunella.deploy.runtime.processes import Process
from prunella.deploy.runtime.services import NO_INSTALL, Value, toml_line
from prunella.deploy.runtime.zygote import CLIENT_AFTER, SERVER_AFTER

FLEET, CONTROL = 9092, 8000
LINK, NODE, EXECUTOR = "superlink", "supernode", "executor"
NUMBERS = "client-numbers.json"  # ``server.app``'s, which takes seconds to import
WILDCARDS = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Address:
    """HOST:PORT; an IPv6 host in brackets.

    >>> Address.parse("superlink.example:9092"), Address.parse("[::1]:1").loopback
    (Address(host='superlink.example', port=9092), True)
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"{text!r} is not HOST:PORT, for example superlink.example.org:{FLEET}")
        return cls(host.strip("[]"), int(port))

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def near(self) -> "Address":
        """How a process of the same machine reaches it."""
        return Address(LOOPBACK if self.host in WILDCARDS else self.host, self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Link:
    """A SuperLink. ``keys`` is None without TLS."""

    home: Path
    keys: Keys | None
    fleet: Address
    control: Address = Address(LOOPBACK, CONTROL)
    in_memory: bool = False
    warm: bool = True
    executor: bool = True

    @property
    def log(self) -> Path:
        return self.home / "logs" / f"{LINK}.log"


@dataclass(frozen=True)
class Node:
    """A SuperNode for client ``client`` of ``clients``. ``key`` and ``ca`` are None without TLS."""

    home: Path
    superlink: Address
    client: int
    clients: int
    port: int
    ca: Path | None = None
    key: Path | None = None
    data: Path | None = None
    audit: str = "deny"
    warm: bool = True
    require: str = ""
    epsilon_budget: float = 0.0
    delta: float = 1e-5

    @property
    def log(self) -> Path:
        return self.home / "logs" / f"{NODE}.log"

    @property
    def conditions(self) -> bool:
        """Whether its owner has any (``client.policy``)."""
        return bool(self.require or self.epsilon_budget)


def must_be_safe(address: Address, insecure: bool, anyway: bool) -> None:
    """Refuse plain connections that leave the machine, unless forced."""
    if insecure and not address.loopback and not anyway:
        raise UsageError(
            f"--insecure sends models and updates over {address} readable and unsigned: make keys with `prunella keys` "
            "and leave it out, or insist with --insecure-anyway"
        )


def must_be_private(control: Address, opened: bool) -> None:
    """Refuse to serve the Control API to other machines, unless forced."""
    if not control.loopback and not opened:
        raise UsageError(
            f"whoever reaches {control} can run code here, for this API asks for no login: leave it on {LOOPBACK}, or "
            "behind a network you trust, and insist with --open-control"
        )


def check_link(link: Link) -> None:
    if link.keys:
        check_superlink(link.keys)


def check_node(node: Node) -> None:
    """Everything a SuperNode needs is there. Raises ``UsageError``."""
    present(*(path for path in (node.ca, node.key) if path))
    if not 0 <= node.client < node.clients:
        raise UsageError(f"--client-id counts from 0 to {node.clients - 1} with --clients {node.clients}")
    if node.data and not node.data.exists():
        raise UsageError(f"--data {node.data} is not there")
    if node.conditions and not node.warm:
        raise UsageError("--stock runs whatever code a run brings, which could forget the conditions: leave it out")
    if node.conditions:
        from prunella.client.policy import read_policy  # two seconds of importing that others need not wait for

        read_policy(node_config(node))


def check_greeting(node: Node) -> None:
    """A SuperLink that answers proves to be the right one. Raises ``LaunchError``; one that is away is waited for."""
    if node.ca and (refusal := refusals.greet(node.superlink.host, node.superlink.port, node.ca)):
        raise LaunchError(f"{node.superlink}: {refusal.text}")


def prepare(home: Path, *folders: str) -> None:
    """A member's directory and those in it, readable by their owner only."""
    try:
        for path in (home, *(home / name for name in ("flower", "logs", *folders))):
            private_directory(path)
    except OSError as error:
        raise UsageError(f"cannot write to {home} ({error.strerror}): choose another with --home") from None


def forget_numbers(link: Link) -> None:
    """A SuperLink without a database has forgotten its keys, whose nodes come back as others: their client numbers
    are free again."""
    if link.in_memory:
        (link.home / "flower" / NUMBERS).unlink(missing_ok=True)


def node_config(node: Node) -> dict[str, Value]:
    """The node configuration; a server decides none of it."""
    config: dict[str, Value] = {
        "partition-id": node.client,
        "num-partitions": node.clients,
        "state-dir": str(node.home / "state"),
        "audit": node.audit,
    }
    config |= {"data": str(node.data)} if node.data else {}
    config |= {"require": node.require} if node.require else {}
    return config | ({"epsilon-budget": node.epsilon_budget, "delta": node.delta} if node.epsilon_budget else {})


def write_node_config(node: Node) -> Path:
    path = node.home / "node.toml"
    path.write_text("".join(toml_line(key, value) + "\n" for key, value in node_config(node).items()))
    return path


def _wait(address: Address) -> tuple[int, ...]:
    return (address.port,) if address.near.host == LOOPBACK else ()


def link_processes(link: Link) -> list[Process]:
    """The SuperLink, and in warm mode the executor of its ServerApps, which stock Flower starts by itself.

    Without ``link.executor`` neither does: ServerApps then wait for an executor on another machine.
    """
    env = {"FLWR_HOME": str(link.home / "flower")}
    if link.keys:
        tls = ["--ssl-ca-certfile", str(link.keys.ca), "--ssl-certfile", str(link.keys.certificate)]
        tls += ["--ssl-keyfile", str(link.keys.certificate_key), "--enable-supernode-auth"]
    else:
        tls = ["--insecure"]
    args = [*tls, "--host", link.control.host, "--port", str(link.control.port)]
    args += ["--fleet-api-address", str(link.fleet), NO_INSTALL]
    args += [] if link.in_memory else ["--database", str(link.home / "state.db")]
    args += ["--isolation", "process"] if link.warm or not link.executor else []
    processes = [Process(LINK, "flower-superlink", tuple(args), str(link.log), env)]
    if link.warm and link.executor:
        processes.append(executor(link.home, link.control.near, link.keys and link.keys.ca))
    return processes


def executor(home: Path, control: Address, ca: Path | None) -> Process:
    """What starts the ServerApps of the SuperLink whose Control and Runtime API is at ``control``."""
    trust = ("--root-certificates", str(ca)) if ca else ("--insecure",)
    args = (*trust, "--runtime-api-address", str(control))
    log, tasks = (str(home / "logs" / f"{name}.log") for name in (EXECUTOR, "server"))
    env = {"FLWR_HOME": str(home / "flower")}
    return Process(EXECUTOR, "flower-superexec", args, log, env, _wait(control), SERVER_AFTER, tasks)


def node_processes(node: Node, config: Path) -> list[Process]:
    """The SuperNode, and in warm mode the executor of its ClientApps."""
    env = {"FLWR_HOME": str(node.home / "flower"), **({OWN_CODE: "1"} if node.conditions else {})}
    args = ["--root-certificates", str(node.ca)] if node.ca else ["--insecure"]
    args += ["--auth-supernode-private-key", str(node.key)] if node.key else []
    args += ["--superlink", str(node.superlink), "--host", LOOPBACK, "--port", str(node.port)]
    args += ["--node-config", str(config)]
    args += ["--isolation", "process"] if node.warm else []
    processes = [Process(NODE, "flower-supernode", tuple(args), str(node.log), env)]
    if node.warm:
        serve = ("--insecure", "--runtime-api-address", f"{LOOPBACK}:{node.port}")
        logs = [str(node.home / "logs" / f"{name}.log") for name in (EXECUTOR, "client")]
        processes.append(
            Process(EXECUTOR, "flower-superexec", serve, logs[0], env, (node.port,), CLIENT_AFTER, logs[1])
        )
    return processes


def command_line(process: Process) -> str:
    """What to type in a shell for the same process.

    >>> command_line(Process("x", "flower-superexec", ("--insecure",), env={"FLWR_HOME": "/a b"}))
    "FLWR_HOME='/a b' flower-superexec --insecure"
    """
    env = " ".join(f"{key}={shlex.quote(value)}" for key, value in process.env.items())
    return f"{env} {shlex.join((process.command, *process.args))}"
