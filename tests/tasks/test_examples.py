from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.errors import ConfigError, DataError
from prunella.core.randomness import rehearsal
from prunella.tasks.examples import Examples, batches, poisson_batches


def _examples(count):
    return Examples(torch.arange(count, dtype=torch.float32).reshape(-1, 1, 1, 1), torch.arange(count))


def _generator(seed=0):
    return rehearsal(seed, purpose="test")


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


def test_poisson_batches_take_each_example_whether_or_not_they_take_another() -> None:
    """Size, its variance, the rate of every example, and what two of them, or two steps, know of each other."""
    count, batch, steps = 40, 8, 10_000
    rate, taken = batch / count, torch.zeros(steps, count, dtype=torch.float64)
    for step, drawn in enumerate(poisson_batches(_examples(count), batch, steps, _generator(3))):
        taken[step, drawn.y] = 1
    sizes, variance = taken.sum(1), count * rate * (1 - rate)
    assert abs(float(sizes.mean()) - batch) < 5 * (variance / steps) ** 0.5
    assert abs(float(sizes.var()) - variance) < 5 * variance * (2 / steps) ** 0.5
    assert float((taken.mean(0) - rate).abs().max()) < 5 * (rate * (1 - rate) / steps) ** 0.5
    together = torch.corrcoef(taken.T).fill_diagonal_(0)
    after = torch.corrcoef(torch.cat([taken[1:].T, taken[:-1].T]))[:count, count:]
    assert max(float(t.abs().max()) for t in (together, after)) < 5.5 / steps**0.5  # of 2,380 pairs


def test_batches_of_a_fixed_size_are_not_poisson_s() -> None:
    """What amplification rests on: with a fixed size, one example in a batch makes another less likely."""
    taken = torch.zeros(4000, 10, dtype=torch.float64)
    for step in range(4000):
        taken[step, next(batches(_examples(10), 5, 1, _generator(step))).y] = 1
    assert float(torch.corrcoef(taken.T).fill_diagonal_(0).mean()) < -0.05
