"""What is charged, and when, for the steps of a loop; on real accounts in tests/flower/test_loop.py."""

import collections
import itertools
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import PrivateGenerator, derived
from prunella.flower.charged import BLOCK, ChargedSteps, emptied, has_twins, joined, rows_of
from prunella.privacy.accounting import Privacy
from prunella.privacy.chain import build_chain

ROWS, BATCH = 40, 10


class Site:
    chain = build_chain(["dp-sgd"], {"dp-sgd.noise-multiplier": 2.0})
    privacy = Privacy()

    def generator(self, *question: str) -> PrivateGenerator:
        return PrivateGenerator(derived(bytes(32), *question))


class Work:
    """Notes charges, and may refuse to pay."""

    def __init__(self, most: int = 10**6) -> None:
        self.site, self.question, self.paid, self.most = Site(), "asked", list[Any](), most

    def pay(self, new: Any) -> None:
        if len(self.paid) == self.most:
            raise DefenseError("past the budget")
        self.paid.append(new)


def made(most: int = 10**6) -> tuple[ChargedSteps, Work]:
    work = Work(most)
    return ChargedSteps(work), work  # type: ignore[arg-type]


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(float(ROWS)).reshape(ROWS, 1), torch.zeros(ROWS)), batch_size=BATCH)


def test_steps_of_a_loader_of_one_s_own_are_charged_by_the_block_without_amplification() -> None:
    steps, work = made()
    for _ in range(BLOCK + 1):
        steps.take()
    assert [(c.steps, c.sampling) for c in work.paid] == [(BLOCK, 1.0)] * 2
    assert len({c.digest for c in work.paid}) == 2


def test_poisson_batches_are_charged_before_the_first_is_drawn_and_have_the_rate_of_each_row() -> None:
    steps, work = made()
    drawn = steps.loader(loader())
    assert not work.paid
    counts, total = torch.zeros(ROWS), 0
    for x, _ in drawn:
        assert [(c.steps, c.sampling) for c in work.paid] == [(ROWS // BATCH, BATCH / ROWS)]
        steps.require_as_drawn(x)
        steps.take()
        assert steps.expected(x) == BATCH and len(set(x.flatten().tolist())) == len(x)
        counts[x.flatten().long()] += 1
        total += len(x)
    assert len(work.paid) == 1 and total == counts.sum() and 20 < total < 60
    steps.poisson = 0.0
    steps.take()
    assert work.paid[-1].sampling == 1.0, "a batch of one's own is not paid by Poisson steps"


@pytest.mark.parametrize("name", ["none", "dgp", "channel-natural"])
def test_without_an_epsilon_batches_are_the_loader_s_own(name: str) -> None:
    """None is empty, whatever the sampler; what a channel tells is charged by the step."""
    steps, work = made()
    work.site.chain = build_chain([name], {"channel-natural.kappa": 2.0} if name.startswith("channel") else {})
    data = TensorDataset(torch.arange(float(ROWS)).reshape(ROWS, 1), torch.zeros(ROWS))
    for own in (DataLoader(data, batch_size=1), DataLoader(data, sampler=SubsetRandomSampler(range(8)))):
        torch.manual_seed(0)
        want = [x.tolist() for x, _ in own]
        torch.manual_seed(0)
        found = []
        for x, _ in steps.loader(own):
            steps.require_as_drawn(x)
            steps.take()
            assert steps.expected(x) == len(x) == 1
            found.append(x.tolist())
        assert found == want
    assert len(work.paid) == (ROWS + 8) // BLOCK and {c.nats for c in work.paid} == (
        {2.0 * BLOCK} if name.startswith("channel") else {None}
    )


def test_a_delta_of_one_over_the_rows_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    steps, work = made()
    work.site.privacy = Privacy(delta=0.01)
    next(steps.loader(loader()))
    assert not caplog.records
    next(steps.loader(DataLoader(TensorDataset(torch.zeros(100, 1), torch.zeros(100)), batch_size=BATCH)))
    assert "one over this client's 100 examples" in caplog.text


def test_no_epoch_has_the_batches_of_another() -> None:
    """Ten epochs of one sample are one sample that is noised ten times: an example in it is in all of them."""
    steps, work = made()
    epochs = [[tuple(x.flatten().tolist()) for x, _ in steps.loader(loader())] for _ in range(10)]
    assert len(set(map(tuple, epochs))) == 10 and len(work.paid) == 10
    # Of two epochs a row's places are independent: it is in both batches of a step a quarter squared of the time.
    pairs = [
        set(a) & set(b) for one, other in itertools.combinations(epochs, 2) for a, b in zip(one, other, strict=True)
    ]
    assert 1.5 < sum(map(len, pairs)) / len(pairs) < 3.5  # 40 rows / 16


def test_a_row_that_a_dataset_lists_twice_is_not_drawn_as_one() -> None:
    data = TensorDataset(torch.arange(float(ROWS)).reshape(ROWS, 1), torch.zeros(ROWS))
    twice = Subset(data, [0] * 20 + list(range(20)))
    first, second = Subset(data, range(10)), Subset(data, range(10, 20))
    for each in (
        twice,
        Subset(twice, range(30)),
        Subset(data, [0, -ROWS]),
        ConcatDataset([data, data]),
        ConcatDataset([first, Subset(data, range(9, 12))]),
        ConcatDataset([TensorDataset(torch.zeros(3, 1), torch.zeros(3)), twice]),
    ):
        steps, work = made()
        with pytest.raises(ConfigError, match="lists a row twice"):
            next(steps.loader(DataLoader(each, batch_size=4)))
        assert not work.paid
    for fine in (ConcatDataset([first, second]), Subset(ConcatDataset([second, first]), [3, 1, 12])):
        assert next(made()[0].loader(DataLoader(fine, batch_size=2)))


def test_a_batch_that_is_not_as_drawn_is_refused_and_one_past_the_budget_is_not_drawn() -> None:
    steps, _ = made()
    x, _ = next(steps.loader(loader()))
    with pytest.raises(DefenseError, match="as it was drawn"):
        steps.require_as_drawn(torch.cat([x, x[:1]]))
    poor, work = made(most=0)
    with pytest.raises(DefenseError, match="past the budget"):
        next(poor.loader(loader()))
    with pytest.raises(DefenseError, match="past the budget"):
        poor.take()
    assert not poor.taken and not work.paid


def test_twins_are_seen_in_images_and_in_named_tensors() -> None:
    x = torch.rand(8, 3, 4, 4)
    assert not has_twins(x) and not has_twins(x[:0]) and has_twins(torch.cat([x, x[3:4]]))
    named = {"ids": torch.arange(6).reshape(3, 2), "seen": torch.ones(3, 2, dtype=torch.bool)}
    assert not has_twins(named) and has_twins({**named, "ids": torch.ones(3, 2, dtype=torch.long)})
    weighted = WeightedRandomSampler([1.0] * 4 + [50.0], 32)
    (batch,) = next(iter(DataLoader(TensorDataset(torch.rand(5, 7)), 32, sampler=weighted)))
    assert has_twins(batch)


def test_rows_and_nothing_of_pairs_and_of_named_tensors() -> None:
    x = torch.zeros(3, 1, 8, 8)
    assert rows_of(x) == rows_of(types.MappingProxyType({"img": x})) == 3
    assert emptied({"img": x})["img"].shape == (0, 1, 8, 8) and emptied([x, x[:, 0]])[1].shape == (0, 8, 8)
    steps, _ = made()
    assert steps.expected(x) == 3 and steps.expected(x[:0]) == 1


def test_rows_that_a_loader_leaves_out_are_not_drawn() -> None:
    data = TensorDataset(torch.arange(float(ROWS)).reshape(ROWS, 1), torch.zeros(ROWS))
    few = DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(range(8)))
    alone = DataLoader(data, batch_size=None)
    grouped = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(range(8)), 4, False))
    for loader in (few, alone, grouped, [(torch.ones(1, 1), torch.zeros(1))]):
        steps, work = made()
        with pytest.raises(ConfigError, match="torch.utils.data.Subset"):
            next(steps.loader(loader))
        assert not work.paid
    steps, _ = made()
    inside = DataLoader(Subset(data, range(8)), batch_size=4, shuffle=True)
    assert all(float(x.max()) < 8 for x, _ in steps.loader(inside) if len(x))


# ---- what rows draw


class Augmented(Dataset[Any]):
    """Rows that are their number and what they drew."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(row), self.draw()]), row


def coin() -> float:
    """Of any global generator, and as many of it as the first says."""
    return sum(torch.rand(1 + random.randrange(3)).tolist()) + float(np.random.rand())  # noqa: NPY002


def collated(rows: list[Any]) -> dict[str, torch.Tensor]:
    """Draws for each row, as where tokens are masked."""
    return {
        "x": torch.stack([x + torch.tensor([0.0, coin()]) for x, _ in rows]),
        "y": torch.tensor([y for _, y in rows]),
    }


def drawn_by_row(without: int | None, collate: Any, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], float]:
    """By step and row, from the same Poisson samples, but for a row that is in none."""
    uniform = PrivateGenerator.uniform

    def lacking(draw: PrivateGenerator, *shape: int) -> torch.Tensor:
        found = uniform(draw, *shape)
        if without is not None:
            found[without] = 1.0
        return found

    torch.manual_seed(0), random.seed(0), np.random.seed(0)  # noqa: NPY002
    monkeypatch.setattr(PrivateGenerator, "uniform", lacking)
    data = DataLoader(Augmented(coin), batch_size=BATCH, collate_fn=collate)
    found = {}
    for step, batch in enumerate(made()[0].loader(data)):
        x = batch["x"] if isinstance(batch, dict) else batch[0]
        found |= {(step, int(row)): drawn for row, drawn in x.tolist()}
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("collate", [None, collated])
def test_what_a_row_draws_does_not_depend_on_which_others_are_there(
    collate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = drawn_by_row(None, collate, monkeypatch)
    assert len(set(whole.values())) == len(whole) > 20, "every row in every step draws anew"
    for row in sorted({row for _, row in whole})[:5]:
        rest = {at: drawn for at, drawn in whole.items() if at[1] != row}
        assert drawn_by_row(row, collate, monkeypatch) == rest


def test_the_draws_of_the_app_go_on_as_if_nothing_had_been_drawn() -> None:
    torch.manual_seed(0)
    before = torch.rand(3)
    torch.manual_seed(0)
    list(made()[0].loader(DataLoader(Augmented(coin), batch_size=BATCH)))
    assert torch.equal(torch.rand(3), before)


def test_rows_that_draw_from_a_generator_of_their_own_are_refused_before_anything_is_paid() -> None:
    own, rows = torch.Generator(), itertools.count()
    rare: Callable[[], float] = lambda: float(torch.rand(1, generator=own) < 0.1)  # noqa: E731
    for draw in (lambda: float(torch.rand(1, generator=own) < 0.5), rare, lambda: float(next(rows))):
        steps, work = made()
        with pytest.raises(ConfigError, match="a generator of its own"):
            next(steps.loader(DataLoader(Augmented(draw), batch_size=BATCH)))
        assert not work.paid
        work.site.chain = build_chain(["gaussian"], {})
        assert next(steps.loader(DataLoader(Augmented(draw), batch_size=BATCH))), "without an ε nothing is counted on"


class Tokens(collections.UserDict[str, torch.Tensor]):
    """As tokenizers give them: no dict, and more than one."""

    def rows(self) -> int:
        return len(self["ids"])


def test_rows_that_were_collated_alone_are_the_batch() -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    pair: list[Any] = [whole, torch.arange(4)]
    nested: list[Any] = [[{"ids": whole}, pair[1]], [pair, pair[1]], {"x": whole, "more": {"y": whole[:, 0]}}]
    for batch in (pair, *nested, whole, Tokens({"ids": whole})):
        single = [each(batch, row) for row in range(4)]
        torch.testing.assert_close(plainly(joined(single)), plainly(batch))
        assert type(joined(single)) is type(batch) is type(emptied(batch)) and joined(single[:1]) is not batch
    assert joined([[whole[:1], ["a"]], [whole[1:2], ["b"]]])[1] == ["a", "b"]
    for bad in (
        [[whole[:1]], [whole[:1, :2]]],
        [{"ids": whole[:1]}, {"x": whole[:1]}],
        [[whole[0, 0]]] * 2,
        [[7], [7]],
    ):
        with pytest.raises(DefenseError, match="padded to a length that no data choose"):
            joined(bad)


def each(batch: Any, row: int) -> Any:
    """One row of it, as a ``collate_fn`` gives it."""
    if isinstance(batch, torch.Tensor):
        return batch[row : row + 1]
    if isinstance(batch, list):
        return [each(part, row) for part in batch]
    return type(batch)({key: each(part, row) for key, part in batch.items()})


def plainly(batch: Any) -> Any:
    return dict(batch) if isinstance(batch, Tokens) else batch
