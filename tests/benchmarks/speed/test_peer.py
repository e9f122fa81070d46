"""What the public library is told of a view; its own attack runs in the benchmarks only, where it is installed."""

import logging
import subprocess
import sys

import pytest
import torch

from prunella.benchmarks.speed import peer
from prunella.core.types import ServerView


def view(steps: int, batch: int, labels: list[int] | None) -> ServerView:
    known = None if labels is None else torch.tensor(labels)
    return ServerView({}, {}, labels=known, steps=steps, batch_size=batch, learning_rate=0.1)


def test_local_steps_are_told_with_the_labels_of_each() -> None:
    told = peer._local(view(2, 2, [3, 1, 4, 1]))
    assert told is not None and (told["lr"], told["steps"], told["data_per_step"]) == (0.1, 2, 2)
    assert [part.tolist() for part in told["labels"]] == [[3, 1], [4, 1]]
    assert peer._local(view(1, 4, [3, 1, 4, 1])) is None


def test_the_library_is_there_inside_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[list[str]]()
    monkeypatch.setattr(subprocess, "run", lambda command, **_: asked.append(command))
    before = list(sys.path)
    with pytest.raises(ZeroDivisionError), peer.installed():
        assert sys.path[:-1] == before and sys.path[-1] in asked[0] and "--no-deps" in asked[0]
        assert not logging.getLogger("breaching").isEnabledFor(logging.ERROR)
        _ = 1 / 0
    assert sys.path == before and logging.getLogger("breaching").isEnabledFor(logging.ERROR)
