"""The in-process Grid for unit tests: it also remembers every message that was sent."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message

from prunella.benchmarks.engine.inprocess import InProcessGrid, Tamper, settings

__all__ = ["LocalGrid", "Tamper", "settings"]


class LocalGrid(InProcessGrid):
    """``sent`` are the messages in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.sent.append(message)
            ids += super().push_messages([message])
        return ids
