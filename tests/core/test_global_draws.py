"""Global generators that begin where they are told and end where they were, and what draws from others."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from prunella.core.global_draws import SEEDS, any_seed, draws_from, repeats

DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(3).tolist(),
    "numpy": lambda: np.random.rand(3).tolist(),  # noqa: NPY002
    "python": lambda: [random.random() for _ in range(3)],
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_every_generator_begins_at_the_seed_and_is_left_where_it_was(draw: Callable[[], Any]) -> None:
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    alone = draw(), draw()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    one = draw()
    with draws_from(5):
        first = draw()
    with pytest.raises(KeyError), draws_from(5):
        assert draw() == first
        raise KeyError
    with draws_from(6):
        assert draw() != first
    assert (one, draw()) == alone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_so_do_those_of_a_gpu() -> None:
    torch.cuda.manual_seed(1)
    alone = torch.rand(2, device="cuda").tolist(), torch.rand(2, device="cuda").tolist()
    torch.cuda.manual_seed(1)
    one, drawn = torch.rand(2, device="cuda").tolist(), []
    for _ in range(2):
        with draws_from(5):
            drawn.append(torch.rand(2, device="cuda").tolist())
    assert drawn[0] == drawn[1] != one and (one, torch.rand(2, device="cuda").tolist()) == alone


def test_no_script_decides_a_seed() -> None:
    seeds = []
    for _ in range(9):
        torch.manual_seed(0), random.seed(0)
        seeds.append(any_seed())
    assert len(set(seeds)) == 9 and all(0 <= seed < SEEDS for seed in seeds)


def test_what_repeats_draws_from_the_global_generators_alone() -> None:
    own, numpy_own, calls = torch.Generator(), np.random.default_rng(0), [0]

    def counted() -> torch.Tensor:
        calls[0] += 1
        return torch.full((2,), calls[0])

    for make in (
        lambda: torch.ones(2),
        lambda: {"x": [torch.rand(2), torch.tensor(random.random())], "y": "a word"},
        lambda: torch.full((1,), torch.nan),
        lambda: torch.from_numpy(np.random.rand(2)),  # noqa: NPY002
    ):
        assert repeats(make)
    for make in (
        lambda: torch.rand(2, generator=own),
        lambda: torch.ones(int(numpy_own.integers(1, 9))),
        lambda: [torch.ones(1)] * int(numpy_own.integers(1, 9)),
        lambda: (torch.ones(2), [{"coin": torch.rand(1, generator=own) < 0.5}]),
        counted,
    ):
        assert not repeats(make)
    kept = torch.zeros(1)
    assert not repeats(lambda: kept.add_(1)), "what is given is the same tensor every time"
