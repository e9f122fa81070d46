import itertools

import torch

from core.randomness import stream


def test_every_argument_matters_and_the_same_ones_repeat() -> None:
    keys = [
        dict(seed=s, round=r, client=c, purpose=p)
        for s, r, c, p in itertools.product((0, 1), (0, 1), (0, 1), ("batch", "noise"))
    ]
    draws = [torch.rand(4, generator=stream(**key)) for key in keys]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    assert all(torch.equal(a, torch.rand(4, generator=stream(**key))) for a, key in zip(draws, keys, strict=True))


def test_fields_cannot_run_into_each_other() -> None:
    a, b = stream(1, round=11, purpose="x"), stream(11, round=1, purpose="x")
    assert not torch.equal(torch.rand(2, generator=a), torch.rand(2, generator=b))
