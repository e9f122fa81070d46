"""A whole federation inside one process: real ClientApp and ServerApp code, no network, no processes.

For what is asked of the algorithms and not of the transport: accuracies, bytes, masks. Every client has its own node
configuration and state directory; messages are answered one after the other, and an exception in a client becomes an
error reply, as Flower does it.

    with tempfile.TemporaryDirectory() as folder:
        federation = run_in_process(Path(folder), clients=4, rounds=2, strategy="snip", defenses="none", audit_every=0)
"""

import functools
import logging
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import prunella.client.session
import prunella.server.app
import prunella.server.rounds
from prunella.client.accounts import FILE, begin
from prunella.client.app import app as client_app
from prunella.core.config import parse_run
from prunella.core.randomness import derived
from prunella.core.trees import Tree
from prunella.deploy.runtime.settings import app_directory
from prunella.server.app import assemble, describe
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import Federation, federate
from prunella.tasks.task import Task
from prunella.tasks.training import Evaluation
from prunella.wire.records import from_dense

Tamper = Callable[[Message], Message | None]
FIRST_NODE = 100


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
    return flat | {key.replace("__", ".").replace("_", "-"): value for key, value in overrides.items()}


class InProcessGrid(Grid):
    """``clients`` virtual SuperNodes with node ids 100, 101, … and state under ``state``.

    ``tamper`` may replace a reply before the server sees it, or lose it by returning None; ``offline`` nodes are not
    there.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        config: dict[str, Any],
        state: Path,
        tamper: Tamper | None = None,
        **node: Any,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        for home in (state / str(i) for i in range(clients)):
            if not (home / FILE).exists():  # the same draws in every run, and an account of their own all the same
                begin(home, derived(b"rehearsal", home.name))
        self.app, self.config, self.tamper = app, config, tamper
        self.contexts = {
            FIRST_NODE + i: Context(
                1,
                FIRST_NODE + i,
                {
                    "partition-id": i,
                    "num-partitions": clients,
                    "state-dir": str(state / str(i)),
                    **node,
                },
                RecordDict(),
                config,
            )
            for i in range(clients)
        }
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
def _replaced(owner: Any, **functions: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(owner, name, function)
        yield
    finally:
        for name, function in before.items():
            setattr(owner, name, function)


@contextmanager
def made_once() -> Iterator[None]:
    """Clients of one process share their examples, first weights and the model's structure, and runs within it the
    test examples. All are only read; on its own each message makes them anew."""
    cached, session, app = functools.lru_cache(maxsize=None), prunella.client.session, prunella.server.app
    load, start = cached(session.load_client), cached(session.initial)
    with (
        _replaced(session, load_client=load, initial=start),
        _replaced(app, load_test=cached(app.load_test)),
        _replaced(Task, build=cached(Task.build)),
    ):
        yield


@contextmanager
def evaluated_every(rounds: int) -> Iterator[None]:
    """Only every so many rounds, and after the last: a test set costs seconds on one core."""

    def evaluate(federation: Federation, round: int, arrays: ArrayRecord, grid: Grid) -> Evaluation | None:
        due = round % rounds == 0 or round == federation.run.rounds
        return before(federation, round, arrays, grid) if due else None

    before = prunella.server.rounds.evaluate_round
    with _replaced(prunella.server.rounds, evaluate_round=evaluate):
        yield


@contextmanager
def watched(look: Callable[[Federation, Tree, Tree], object]) -> Iterator[None]:
    """``look`` is shown weights and buffers of the global model after every evaluation; the run does not notice."""

    def evaluate(federation: Federation, round: int, arrays: ArrayRecord, grid: Grid) -> Evaluation | None:
        found = before(federation, round, arrays, grid)
        look(federation, *federation.model.split(from_dense(arrays)))
        return found

    before = prunella.server.rounds.evaluate_round
    with _replaced(prunella.server.rounds, evaluate_round=evaluate):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Flower's log tells errors only, as what was left out stands in the counters, and so does the accountant's, which
    warns in every round of orders it cannot use."""
    loggers = [logging.getLogger(name) for name in ("flwr", "absl")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def run_in_process(folder: Path, clients: int, evaluate_every: int = 1, **overrides: Any) -> Federation:
    """A run from its settings; what it measured is in the federation's store and counters."""
    raw = settings(run_dir=str(folder / "run"), **overrides)
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    describe(federation)
    grid = InProcessGrid(client_app, clients, raw, folder / "nodes")
    try:
        with quiet(), made_once(), evaluated_every(evaluate_every):
            federate(federation, OrderedGrid(grid, 0.0))
    finally:
        federation.auditor.close()
    return federation
