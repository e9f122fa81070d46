from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError, DataError
from tasks.examples import Examples, batches, poisson_batches


def _examples(count):
    return Examples(torch.arange(count, dtype=torch.float32).reshape(-1, 1, 1, 1), torch.arange(count))


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 12))
def test_exact_number_and_size_and_no_example_falls_behind(count, size, steps):
    drawn = list(batches(_examples(count), size, steps, _generator()))
    assert [len(b) for b in drawn] == [min(size, count)] * steps
    seen = Counter(y for b in drawn for y in b.y.tolist())
    times = [seen[y] for y in range(count)]
    assert max(times) - min(times) <= 1


def test_images_stay_with_their_labels():
    for batch in batches(_examples(11), 4, 6, _generator()):
        assert torch.equal(batch.x.flatten().long(), batch.y)


def test_epochs_are_shuffled_anew_and_by_the_generator():
    first, second = batches(_examples(20), 20, 2, _generator())
    assert not torch.equal(first.y, second.y)
    assert torch.equal(next(batches(_examples(20), 20, 1, _generator())).y, first.y)
    assert not torch.equal(next(batches(_examples(20), 20, 1, _generator(1))).y, first.y)


def test_nothing_to_draw_from_and_no_size_are_errors():
    with pytest.raises(DataError):
        next(batches(_examples(0), 4, 1, _generator()))
    with pytest.raises(ConfigError):
        next(batches(_examples(3), 0, 1, _generator()))


def test_poisson_batches_hold_every_example_independently_with_the_rate() -> None:
    data = _examples(50)
    steps = list(poisson_batches(data, 10, 2000, _generator()))
    hits = torch.zeros(50)
    for batch in steps:
        hits[batch.y] += 1
        assert len(batch.y.unique()) == len(batch)
    assert len(steps) == 2000 and float((hits - 400).abs().max()) < 5 * (2000 * 0.2 * 0.8) ** 0.5
    sizes = torch.tensor([float(len(batch)) for batch in steps])
    assert abs(float(sizes.mean()) - 10) < 5 * (8 / 2000) ** 0.5 and abs(float(sizes.var()) - 8) < 1.5


def test_poisson_batches_of_few_or_no_examples() -> None:
    assert [len(b) for b in poisson_batches(_examples(3), 10, 2, _generator())] == [3, 3]
    with pytest.raises(DataError):
        list(poisson_batches(_examples(0), 1, 1, _generator()))
    with pytest.raises(ConfigError):
        list(poisson_batches(_examples(3), 0, 1, _generator()))
