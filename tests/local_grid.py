"""A Grid inside one process, for unit tests only: real ClientApp code, no network, no processes.

Every client has its own node configuration; a handler may replace or damage a reply before the server sees it.
"""

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[Message], Message | None]


def settings(**overrides: Any) -> dict[str, Any]:
    """The run configuration of ``pyproject.toml``, flattened as Flower does, with overrides (``_`` is ``-``)."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    flat: dict[str, Any] = {}
    for key, value in project["tool"]["flwr"]["app"]["config"].items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat | {key.replace("__", ".").replace("_", "-"): value for key, value in overrides.items()}


class LocalGrid(Grid):
    """``clients`` virtual SuperNodes with node ids 100, 101, … and state under ``state``."""

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
        self.app, self.config, self.tamper = app, config, tamper
        self.contexts = {
            100 + i: Context(
                1,
                100 + i,
                {
                    "partition-id": i,
                    "num-partitions": clients,
                    "state-dir": str(state / str(i)),
                    "client-seed": 7,
                    **node,
                },
                RecordDict(),
                config,
            )
            for i in range(clients)
        }
        self.offline: set[int] = set()
        self.sent: list[Message] = []
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
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            self.sent.append(message)
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
