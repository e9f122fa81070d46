"""Whole runs of masked sums in one process, on real handlers, with messages that are lost or changed on the way."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message

import prunella.client.app
from prunella.core.config import parse_run
from prunella.server.app import assemble, describe
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import Federation, federate
from tests.local_grid import LocalGrid, settings

Route = Callable[[Message], Message | None]  # what becomes of a message of the server's; None: it is lost
RUN = {"strategy": "fedavg", "defenses": "none", "aggregation": "secure-sum", "audit_every": 0, "min_clients": 3}


class Lossy(LocalGrid):
    """``through`` sees every message before its client does."""

    through: Route

    def push_messages(self, messages: Iterable[Message]) -> list[Any]:
        ids: list[Any] = []
        for message in messages:  # None, as Flower's own grid, for one that is not taken
            ids += [None] if (found := self.through(message)) is None else super().push_messages([found])
        return ids


def client_of(message: Message) -> int:
    return message.metadata.dst_node_id - 100


def lost(kind: str, *clients: int, rounds: tuple[int, ...] = (1, 2, 3)) -> Route:
    """Messages of a kind to some clients never arrive in some rounds."""

    def route(message: Message) -> Message | None:
        about = message.content.config_records.get("sum", {})
        where = message.content.config_records.get("config", about)
        gone = message.metadata.message_type == kind and client_of(message) in clients
        return None if gone and where.get("round") in rounds else message

    return route


def go(
    folder: Path,
    route: Route = lambda message: message,
    clients: int = 4,
    tamper: Any = None,
    seen: Any = None,
    node: dict[str, Any] | None = None,
    **overrides: Any,
) -> tuple[Federation, LocalGrid]:
    """The federation after its run, and its grid. ``tamper`` sees every reply and may change it."""

    def keep(reply: Message) -> Message:
        if tamper is not None:
            tamper(reply)
        return reply

    raw = settings(**({"run_dir": str(folder / "run"), "rounds": 1} | RUN | overrides))
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    describe(federation)
    grid = Lossy(prunella.client.app.app, clients, raw, folder / "nodes", keep, **(node or {}))
    grid.through = route
    if seen is not None:
        seen(grid)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        federate(federation, OrderedGrid(grid, 0.01))
    finally:
        logging.getLogger("flwr").setLevel(logging.INFO)
        federation.auditor.close()
    return federation, grid
