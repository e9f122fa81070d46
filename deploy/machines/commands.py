"""One machine's part of a federation: a SuperLink or a SuperNode, its checks and its processes.

Outside this machine's loopback interface everything is TLS with registered SuperNode keys, unless the user insists on
less. Ports: SuperNodes come to the Fleet API (9092; gRPC or HTTP, as the installed Flower speaks
it); commands and the ServerApp come to the Control and Runtime API (HTTP, 8000), which asks nobody for a login and runs
what it is sent, so it stays on loopback; a SuperNode's own Runtime API (HTTP, 9094) is for the ClientApps of its
machine and is always on loopback.

Each SuperLink and SuperNode keeps everything in one directory, 0700: ``flower/`` (its FLWR_HOME), ``logs/``,
``state.db`` (SuperLink: registered keys and runs), ``state/`` and ``node.toml`` (SuperNode: what the client remembers,
its configuration). Which key has which client number is in ``flower/`` of whatever runs the ServerApps.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from prunella.core.folders import locked
from prunella.deploy.errors import LaunchError, UsageError, why
from prunella.deploy.machines import connection_errors
from prunella.deploy.machines.keys import Keys, check_superlink, present, private_directory
from prunella.deploy.ports import LOOPBACK, Address
from prunella.deploy.runtime import flower_release, services
from prunella.deploy.runtime.approved import environment
from prunella.deploy.runtime.own_code import OWN_CODE
from prunella.deploy.runtime.processes import Process
from prunella.deploy.runtime.services import Folders, Value

CONTROL = 8000
EXECUTOR = "executor"
RUNNING = ".running"  # locked by the command that runs in a home
NUMBERS = "client-numbers.json"  # ``server.app``'s, which takes seconds to import


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink. ``keys`` is None without TLS."""

    home: Path
    keys: Keys | None
    fleet: Address
    control: Address = Address(LOOPBACK, CONTROL)
    in_memory: bool = False
    stock: bool = False
    executor: bool = True


@dataclass(frozen=True)
class SuperNode:
    """A SuperNode for client ``client`` of ``clients``. ``key`` and ``ca`` are None without TLS; ``approve`` are hashes
    of the bundles that may run."""

    home: Path
    superlink: Address
    client: int
    clients: int
    port: int
    ca: Path | None = None
    key: Path | None = None
    data: Path | None = None
    audit: str = "deny"
    stock: bool = False
    require: str = ""
    epsilon_budget: float = 0.0
    delta: float | None = None
    approve: tuple[str, ...] = ()
    metrics: str = ""
    width: float = 1.0
    #: of masked sums: file of peers' keys, fewest clients, and those without which there is none
    sums: tuple[Path | None, int, str] = (None, 0, "")
    importance: Path | None = None

    @property
    def conditions(self) -> bool:
        """Whether its owner sets any (``client.policy``, ``client.trust``)."""
        return bool(self.require or self.epsilon_budget or any(self.sums))


def must_be_safe(address: Address, insecure: bool, anyway: bool) -> None:
    """Refuse plain connections that leave the machine, unless forced."""
    if insecure and not address.loopback and not anyway:
        raise UsageError(
            f"--insecure sends models and updates to {address} unencrypted and unsigned: make keys with `prunella "
            "keys` and leave it out, or insist with --insecure-anyway"
        )


def must_be_private(control: Address, opened: bool) -> None:
    """Refuse to serve the Control API to other machines, unless forced."""
    if not control.loopback and not opened:
        raise UsageError(
            f"anyone who can connect to {control} can run code here, since this API asks for no login: leave it on "
            f"{LOOPBACK}, or insist with --open-control if you trust everyone on the network"
        )


def one_port(stock: bool) -> bool:
    """Whether Flower's own SuperLink serves SuperNodes on the port of its Control API; ours has one for each."""
    return stock and not flower_release.speaks_grpc()


def fleet_address(control: str, local: bool, stock: bool) -> str:
    """Where SuperNodes connect if nothing else is said; ``local``: those of this machine alone."""
    return control if one_port(stock) else "127.0.0.1:9092" if local else "0.0.0.0:9092"


def check_link(link: SuperLink) -> None:
    """Its certificate is there, and its ports are two where they have to be. Raises ``UsageError``."""
    if link.keys:
        check_superlink(link.keys)
    one = one_port(link.stock)
    if one and link.fleet != link.control:
        raise UsageError(
            f"with --stock, flwr {flower_release.version()} serves SuperNodes and commands on one port: leave it out, "
            "or give --fleet and --control the same HOST:PORT"
        )
    if not one and link.fleet.port == link.control.port:
        raise UsageError("--fleet and --control need two ports: only SuperNodes may reach the first")


def check_node(node: SuperNode) -> None:
    """Everything a SuperNode needs exists. Raises ``UsageError``."""
    present(*(path for path in (node.ca, node.key, node.importance) if path))
    if not 0 <= node.client < node.clients:
        raise UsageError(f"--client-id counts from 0 to {node.clients - 1} with --clients {node.clients}")
    if node.data and not node.data.exists():
        raise UsageError(f"--data {node.data} does not exist: name the file or directory of this client's data")
    if node.stock and (node.conditions or node.approve):
        raise UsageError("--stock runs whatever code a run brings, which could ignore the conditions: leave it out")
    if node.metrics and not node.approve:
        raise UsageError("--metrics lists what an approved app may tell: add --approve, or leave it out")
    if node.approve and any(node.sums):
        raise UsageError("an approved app sends single updates, no masked sums: leave --sum-… out")
    if node.delta is not None and not node.epsilon_budget:
        raise UsageError(
            f"--delta is that of --epsilon-budget: add one, or write --require 'dp-sgd, privacy.delta<={node.delta:g}'"
        )
    if node.sums[0] and not node.key:
        raise UsageError("--sum-peers needs this SuperNode's own key to sign with: leave --insecure out")
    if node.conditions:
        from prunella.client.policy import read_policy  # two seconds of importing that others need not wait for
        from prunella.client.trust import read_trust

        policy = read_policy(node_config(node))
        read_trust(node_config(node))
        if node.approve:
            from prunella.flower.site import check_conditions

            check_conditions(policy)


def check_certificate(node: SuperNode) -> None:
    """Refuse a SuperLink with a wrong certificate, if it answers already. Raises ``LaunchError``."""
    if node.ca and (problem := connection_errors.check_tls(node.superlink.host, node.superlink.port, node.ca)):
        raise LaunchError(f"{node.superlink}: {problem.text}")


def make_home(home: Path, *folders: str) -> None:
    """The directory of a SuperLink or SuperNode and those in it, readable by their owner only. Raises ``UsageError``
    where it holds other things, a site's images of the same name for example."""
    try:
        own = home.is_dir() and {path.name for path in home.glob("[!.]*")} - {"lost+found"}
        if own and not (home / "flower").exists():
            raise UsageError(f"{home} holds files that are not this command's: choose another directory with --home")
        for path in (home, *(home / name for name in ("flower", "logs", *folders))):
            private_directory(path)
    except OSError as error:
        raise UsageError(f"cannot write to {home} ({why(error)}): choose another with --home") from None


def held(home: Path) -> AbstractContextManager[None]:
    """The directory of a SuperLink, executor or SuperNode, while its command runs: a second one there would exchange
    its configuration and count in its account. Raises ``LaunchError``."""
    busy = LaunchError(f"another command runs in {home}: end it, or choose another directory with --home")
    return locked(home / RUNNING, busy)


def forget_numbers(link: SuperLink) -> None:
    """Free the client numbers of a SuperLink without a database: it forgot its keys, so its nodes come back as new."""
    if link.in_memory:
        (link.home / "flower" / NUMBERS).unlink(missing_ok=True)


def node_config(node: SuperNode) -> dict[str, Value]:
    """The node configuration; a server decides none of it."""
    config: dict[str, Value] = {
        "partition-id": node.client,
        "num-partitions": node.clients,
        "state-dir": str(node.home / "state"),
        "audit": node.audit,
    }
    config |= {"data": str(node.data)} if node.data else {}
    config |= {"require": node.require} if node.require else {}
    config |= {"metrics": node.metrics} if node.metrics else {}
    config |= {"width": node.width} if node.width < 1 else {}
    peers, least, together = node.sums
    config |= {"sum-peers": str(peers), "sum-key": str(node.key)} if peers else {}
    config |= {"sum-least": least} if least else {}
    config |= {"sum-with": together} if together else {}
    config |= {"importance": str(node.importance)} if node.importance else {}
    config |= {"epsilon-budget": node.epsilon_budget} if node.epsilon_budget else {}
    return config | ({"delta": node.delta} if node.delta is not None else {})


def write_node_config(node: SuperNode) -> Path:
    return services.write_node_config(node.home / "node.toml", node_config(node))


def link_processes(link: SuperLink) -> list[Process]:
    """The SuperLink, and the executor of its ServerApps, which stock Flower starts by itself.

    Without ``link.executor`` neither does: ServerApps then wait for an executor on another machine.
    """
    tls = list(services.INSECURE)
    if link.keys:
        tls = ["--ssl-ca-certfile", str(link.keys.ca), "--ssl-certfile", str(link.keys.certificate)]
        tls += ["--ssl-keyfile", str(link.keys.certificate_key), "--enable-supernode-auth"]
    main = services.superlink(
        _folders(link.home),
        link.control,
        link.fleet,
        tls=tls,
        database=None if link.in_memory else link.home / "state.db",
        isolated=not (link.stock and link.executor),
    )
    if link.stock or not link.executor:
        return [main]
    return [main, executor(link.home, link.control.near, link.keys.ca if link.keys else None)]


def executor(home: Path, control: Address, ca: Path | None) -> Process:
    """What starts the ServerApps of the SuperLink whose Control and Runtime API is at ``control``."""
    return services.server_exec(_folders(home), EXECUTOR, control, ca)


@contextmanager
def prepared(node: SuperNode) -> Iterator[list[Process]]:
    """A SuperNode's processes, once its options fit together, and its home, which is theirs alone meanwhile. Raises
    ``UsageError`` or ``LaunchError``."""
    check_node(node)
    check_certificate(node)
    make_home(node.home, "state")
    with held(node.home):
        yield node_processes(node, write_node_config(node))


def node_processes(node: SuperNode, config: Path) -> list[Process]:
    """The SuperNode, and the executor of its ClientApps, which stock Flower starts by itself."""
    env = {OWN_CODE: "1"} if node.conditions else {}
    folders = _folders(node.home, environment(node.approve, node_config(node)) if node.approve else env)
    main = services.supernode(
        folders, node.superlink, node.port, config, ca=node.ca, key=node.key, isolated=not node.stock
    )
    return [main] if node.stock else [main, services.client_exec(folders, EXECUTOR, node.port)]


def _folders(home: Path, env: Mapping[str, str] = {}) -> Folders:  # noqa: B006 - never written to
    return Folders(home / "logs", home / "flower", env)
