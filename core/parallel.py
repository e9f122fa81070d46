"""The same function over many items on a few threads, results in order.

For work that leaves Python's lock alone (numpy, zstandard, hashing). As many threads as PyTorch uses, at most ``MOST``:
beyond that memory is the limit. The threads end with the call, since a process that forks must not own idle ones. The
first error in order is raised.

>>> each(abs, [-1, 2, -3])
[1, 2, 3]
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))
