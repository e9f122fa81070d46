"""The same function over many items on a few threads, results in order.

For work that leaves Python's lock alone (numpy, zstandard, hashing). As many threads as PyTorch uses, at most ``MOST``:
beyond that memory is the limit; the caller's is one of them. The others end with the call, since a process that forks
must not own idle ones. The first error in order is raised.

>>> each(abs, [-1, 2, -3])
[1, 2, 3]
"""

from collections.abc import Callable, Sequence
from threading import Thread
from typing import TypeVar

import torch

MOST = 4
Item = TypeVar("Item")
Result = TypeVar("Result")


def threads() -> int:
    return min(MOST, torch.get_num_threads())


def each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``[function(item) for item in items]``."""
    workers = min(threads(), len(items))
    if workers < 2:
        return [function(item) for item in items]
    # An executor makes a future with locks of its own for every item, which cost more than many an item's work.
    done: dict[int, Result] = {}
    failed: dict[int, BaseException] = {}
    numbers = iter(range(len(items)))  # who is free takes the next, so that all before a failed one are done, or fail

    def work() -> None:
        for number in numbers:
            try:
                done[number] = function(items[number])
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread, below
                failed[number] = error
            if failed:
                return

    others = [Thread(target=work, daemon=True) for _ in range(workers - 1)]
    for other in others:
        other.start()
    work()
    for other in others:
        other.join()
    if failed:
        raise failed[min(failed)]
    return [done[number] for number in range(len(items))]
