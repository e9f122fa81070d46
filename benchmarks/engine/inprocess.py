"""A whole federation inside one process: real ClientApp and ServerApp code, no network, no processes.

For what is asked of the algorithms and not of the transport: accuracies, bytes, masks. Every client has its own node
configuration and state directory; messages are answered one after the other, and an exception in a client becomes an
error reply, as Flower does it.

    with tempfile.TemporaryDirectory() as folder:
        federation = run_in_process(Path(folder), clients=4, rounds=2, strategy="snip", defenses="none", audit_every=0)
"""

import functools
import logging
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import prunella.client.session
import prunella.server.rounds
from prunella.benchmarks.engine.images import TESTED, cached_client, cached_test, first, place
from prunella.benchmarks.engine.machine import device
from prunella.client.accounts import FILE, begin
from prunella.client.app import app as client_app
from prunella.client.session import Loader
from prunella.core.config import parse_run
from prunella.core.randomness import derived
from prunella.core.trees import Tree
from prunella.deploy.runtime.settings import app_directory
from prunella.server.app import assemble, describe
from prunella.server.evaluation import on_all
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import Federation, federate
from prunella.tasks.data import load_client
from prunella.tasks.examples import Examples
from prunella.tasks.recommended import settled
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Evaluation
from prunella.wire.records import from_dense

Tamper = Callable[[Message], Message | None]
Look = Callable[[Federation, Tree, Tree], object]
FIRST_NODE = 100
RUN = ("model", "rounds", "local_steps", "batch_size", "learning_rate", "learning_rate_horizon")
FEDAVG = {"strategy": "fedavg", "partition": "dirichlet", "values": "float32", "audit_every": 0}


def settings(**overrides: Any) -> dict[str, Any]:
    """The run configuration of ``pyproject.toml``, flattened as Flower does, with overrides.

    In a keyword ``__`` is the dot after a section and ``_`` is ``-``.

    >>> settings(rate=0.5, dgp__top=0.1)["dgp.top"]
    0.1
    """
    project = tomllib.loads((app_directory() / "pyproject.toml").read_text())
    flat: dict[str, Any] = {}
    for key, value in project["tool"]["flwr"]["app"]["config"].items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return settled(flat | {key.replace("__", ".").replace("_", "-"): value for key, value in overrides.items()})


class LocalContext(Context):
    """A SuperNode's context that says how its client loads examples."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given[:-1])
        self.load_client: Loader = given[-1]


class InProcessGrid(Grid):
    """``clients`` virtual SuperNodes with node ids 100, 101, … and state under ``state``.

    ``tamper`` may replace a reply before the server sees it, or lose it by returning None; ``offline`` nodes are not
    there. ``load`` loads a client's examples in place of ``tasks.data.load_client``.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        config: dict[str, Any],
        state: Path,
        tamper: Tamper | None = None,
        load: Loader = load_client,
        **node: Any,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        for home in (state / str(i) for i in range(clients)):
            if not (home / FILE).exists():  # the same draws in every run, and an account of their own all the same
                begin(home, derived(b"rehearsal", home.name))
        self.app: Callable[[Message, Context], Message] = app
        self.config, self.tamper = config, tamper
        self.contexts: dict[int, LocalContext] = {}
        for i in range(clients):
            own = {"partition-id": i, "num-partitions": clients, "state-dir": str(state / str(i)), **node}
            self.contexts[FIRST_NODE + i] = LocalContext(1, FIRST_NODE + i, own, RecordDict(), config, load)
        self.offline: set[int] = set()
        self._pushed = 0
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return Message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{self._pushed}"
            self._pushed += 1
            ids.append(message.metadata.message_id)
            reply: Message | None = self._answer(message)
            if self.tamper is not None and reply is not None:
                reply = self.tamper(reply)
            if reply is not None:
                self._replies[message.metadata.message_id] = reply
        return ids

    def _answer(self, message: Message) -> Message:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # noqa: BLE001 - as Flower does: an exception becomes an error reply
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


@contextmanager
def built_once() -> Iterator[None]:
    """Clients of one process share their first weights and the model's structure, which are only read."""
    build, start = functools.cache(Task.build), functools.cache(initial)
    with patch.multiple(prunella.client.session, initial=start), patch.multiple(Task, build=build):
        yield


@contextmanager
def watched(look: Look | None) -> Iterator[None]:
    """``look`` is shown weights and buffers of the global model after each evaluation that is due; the run does not
    notice."""

    def evaluate(federation: Federation, round: int, arrays: ArrayRecord, grid: Grid) -> Evaluation | None:
        found = before(federation, round, arrays, grid)
        if look is not None and on_all(federation.run, round):
            look(federation, *federation.model.split(from_dense(arrays)))
        return found

    before = prunella.server.rounds.evaluate_round
    with patch.multiple(prunella.server.rounds, evaluate_round=evaluate):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Flower's log tells errors only, as what was left out stands in the counters, and so do the accountant's, which
    warns in every round of orders it cannot use, and the clients', which warn their owners."""
    loggers = [logging.getLogger(name) for name in ("flwr", "absl", "prunella.client")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def run_in_process(
    folder: Path,
    clients: int,
    examples: int = 0,
    tested: int = 0,
    look: Look | None = None,
    consent: str = "deny",
    widths: Mapping[int, float] = MappingProxyType({}),
    **overrides: Any,
) -> Federation:
    """A run from its settings; what it measured is in the federation's store and counters. ``consent`` is that of all
    clients to audits. ``widths`` are those of clients that train sub-models, by number; with width 0 one is not there.

    Clients have their first ``examples`` only and the model is tested on the first ``tested`` test images, where these
    are not 0; both are decoded once.
    """
    raw = settings(run_dir=str(folder / "run"), **overrides)

    def load_test(dataset: str, root: Path | None) -> Examples | None:
        found = cached_test(dataset, root)
        return found and first(found, tested)

    run = parse_run({k: v for k, v in raw.items() if "." not in k})
    federation = assemble(run, raw, load_test)
    describe(federation)
    load = functools.cache(lambda *asked: first(cached_client(*asked), examples))
    grid = InProcessGrid(client_app, clients, raw, folder / "nodes", load=load, audit=consent)
    for number, width in widths.items():
        grid.contexts[FIRST_NODE + number].node_config["width"] = width
    grid.offline = {FIRST_NODE + number for number, width in widths.items() if not width}
    carry_out(federation, OrderedGrid(grid, 0.0), look)
    return federation


def carry_out(federation: Federation, grid: Grid, look: Look | None = None) -> None:
    """The whole run of an assembled federation, over clients in this process."""
    try:
        with quiet(), built_once(), watched(look):
            federate(federation, grid)
    finally:
        federation.auditor.close()


@contextmanager
def ran(settings: Mapping[str, Any], seed: int, data: Path | None, /, **own: Any) -> Iterator[Federation]:
    """The federation of a cell, after its last round; its folder is there as long as the context.

    The cell has ``clients``, ``dataset`` and what ``RUN`` names, where that is not the app's, and may say on how many
    images the model is ``tested``; ``own`` is the rest, as ``run_in_process`` takes it.
    """
    run: dict[str, Any] = {"partition": "dirichlet", "audit_every": 0, "seed": seed}
    run |= {
        "device": str(device()),
        "dataset": place(settings["dataset"], data),
        "tested": settings.get("tested", TESTED),
        **{key: settings[key] for key in RUN if key in settings},
    }
    with tempfile.TemporaryDirectory() as folder:
        yield run_in_process(Path(folder), settings["clients"], **{**run, **own})


def accuracies(federation: Federation) -> dict[int, float]:
    """Of the global model, by round."""
    return {line["round"]: line["value"] for line in federation.store.metrics() if line["metric"] == "accuracy_ratio"}


def epsilons(federation: Federation) -> list[float]:
    """Of the clients that have one."""
    return [float(line["epsilon"]) for line in federation.ledgers.values() if "epsilon" in line]


def failures(federation: Federation) -> float:
    """How many replies were errors or left out."""
    return sum(value for name, value in federation.counters.items() if name.startswith("client_failures_total"))


def as_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section as ``run_in_process`` takes them.

    >>> as_keywords({"channel-natural.kappa": 50.0})
    {'channel_natural__kappa': 50.0}
    """
    return {key.replace(".", "__").replace("-", "_"): value for key, value in options.items()}
