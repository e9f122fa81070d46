"""The global generators of PyTorch, NumPy and Python, from which layers (dropout) and transforms (random crops) of
other people draw.

Where the examples of a batch draw one after the other, one example less gives every later one other numbers, and with
them other gradients: a clip bound then bounds nothing of it. ``draws_from`` begins the generators where it is told, so
that what an example draws does not depend on who was there before it; ``repeats`` says whether that is all it draws.

>>> with draws_from(1):
...     first = torch.rand(2)
>>> with draws_from(1):
...     bool((torch.rand(2) == first).all())
True
>>> repeats(lambda: torch.rand(2)), repeats(lambda own=torch.Generator(): torch.rand(2, generator=own))
(True, False)
"""

import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

SEEDS = 2**62  # a seed lies below
TIMES = 32  # that something is made again: a coin that is not of a global generator falls alike by chance


def any_seed() -> int:
    """From the operating system, so that nothing that a script has seeded or data have moved decides it."""
    return secrets.randbelow(SEEDS)


@contextmanager
def draws_from(seed: int) -> Iterator[None]:
    """Within, the global generators, those of all GPUs in use among them, begin at ``seed``; afterwards they are where
    they were."""
    numpy_state, own = np.random.get_state(), random.getstate()  # noqa: NPY002 - the global ones are what is meant
    begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = range(torch.cuda.device_count()) if begun else range(0)  # to ask would begin them
    with torch.random.fork_rng(devices=gpus):
        try:
            torch.default_generator.manual_seed(seed)
            if gpus:
                torch.cuda.manual_seed_all(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(own)


def _same(one: Tensor, other: Tensor) -> bool:
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def repeats(make: Callable[[], Any], times: int = TIMES) -> bool:
    """Whether ``make`` gives the same tensors each time that the global generators begin alike. Not where it draws from
    a generator of its own, or counts how often it was called."""
    seed = any_seed()

    def once() -> list[Tensor]:
        with draws_from(seed):
            return [leaf.clone() for leaf in tree_leaves(make()) if isinstance(leaf, Tensor)]

    first = once()
    again = (once() for _ in range(times))
    return all(len(each) == len(first) and all(map(_same, each, first)) for each in again)
