from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.errors import ConfigError, DataError
from prunella.core.randomness import rehearsal
from prunella.tasks.examples import Examples, Pictures, batches, poisson_batches, raw_digests


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


class Camera:
    """Pictures of one byte, of which 255 is broken; it counts what was decoded."""

    def __init__(self, cells: bytes) -> None:
        self.cells, self.developed = [bytes([cell]) for cell in cells], []

    def decode(self, cells):
        self.developed.append(len(cells))
        if broken := sum(cell == b"\xff" for cell in cells):
            raise DataError(f"{broken} are broken")
        return torch.tensor([cell[0] / 255 for cell in cells]).reshape(-1, 1, 1, 1)

    def examples(self) -> Examples:
        return Examples(Pictures(self.cells, self.decode, (1, 1, 1)), torch.arange(len(self.cells)))


@pytest.mark.parametrize("draw", [batches, poisson_batches])
def test_a_few_steps_decode_the_pictures_they_use_and_no_other(draw):
    camera = Camera(bytes(range(200)))
    whole = Examples(torch.arange(200.0).reshape(-1, 1, 1, 1) / 255, torch.arange(200), raw_digests(camera.cells))
    lazy, eager = list(draw(camera.examples(), 5, 4, _generator())), list(draw(whole, 5, 4, _generator()))
    for one, other in zip(lazy, eager, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y) and torch.equal(one.raw, other.raw)
    assert camera.developed == [len(batch) for batch in eager]
    for batch in lazy:
        _ = batch.x
    assert len(camera.developed) == 4  # each once


def test_whole_epochs_decode_every_picture_once():
    camera = Camera(bytes(range(20)))
    for batch in batches(camera.examples(), 5, 12, _generator()):
        assert torch.equal((batch.x.flatten() * 255).round().long(), batch.y)
    assert camera.developed == [20]


def test_parts_of_parts_are_the_right_pictures():
    camera = Camera(bytes(range(50)))
    some = camera.examples().take(torch.arange(50) % 2 == 1)
    assert torch.equal((some.take(torch.tensor([3, 0])).x.flatten() * 255).round(), torch.tensor([7.0, 1.0]))
    assert some.raw.tolist() == raw_digests(camera.cells[1::2]).tolist() and camera.developed == [2]
    _ = some.x
    assert torch.equal(some.take(torch.tensor([3])).x, some.x[3:4]) and camera.developed == [2, 25]


def test_a_check_counts_all_that_are_broken_and_keeps_none(monkeypatch):
    monkeypatch.setattr("prunella.tasks.examples.TOGETHER", 4)
    with pytest.raises(DataError, match="3 are broken"):
        Camera(b"\xff" + bytes(8) + b"\xff\xff").examples().check()
    camera = Camera(bytes(10))
    camera.examples().check()
    assert camera.developed == [4, 4, 2]
    _examples(3).check()


def test_a_digest_covers_every_picture_their_order_and_their_size():
    def of(*cells, shape=(1, 1, 1)):
        return Pictures(list(cells), lambda _: torch.empty(0), shape).digest()

    assert of(b"a", b"b") == of(b"a", b"b")
    others = [
        of(b"a", b"b"),
        of(b"b", b"a"),
        of(b"ab"),
        of(b"ab", b""),
        of(b"a", b"b", shape=(3, 1, 1)),
        of(b"a", b"c"),
    ]
    assert len(set(others)) == len(others)
