"""The steps of one guarded loop, charged to the site's account before their batches are looked at.

A batch of a loader of one's own is no Poisson sample: its step is charged without amplification, ``BLOCK`` at a time,
since nobody says how many will come. ``ChargedSteps.loader`` draws Poisson batches itself and charges all of them;
without an ε, for which the drawing matters, it yields what the loader yields.

Errors: ``DefenseError`` past the budget, or for a batch that is not as it was drawn.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, RandomSampler, SequentialSampler, Subset

from prunella.core.errors import ConfigError, DefenseError
from prunella.flower.handled import Handled
from prunella.privacy.ledger.ledger import charge

Batch = Tensor | Mapping[str, Tensor]
BLOCK = 8  # steps charged at a time where nobody says how many there will be
logger = logging.getLogger(__name__)


def rows_of(x: Batch) -> int:
    return len(next(iter(x.values()))) if isinstance(x, Mapping) else len(x)


def has_twins(x: Batch) -> bool:
    """Whether two rows of a batch are the same, as where a sampler draws with replacement: an example that stands in it
    k times moves the sum of clipped gradients by k times the bound."""
    count = rows_of(x)
    if count < 2:
        return False
    parts = list(x.values()) if isinstance(x, Mapping) else [x]
    each = [part.detach().reshape(count, -1).double() for part in parts if part.ndim and len(part) == count]
    return len(torch.unique(torch.cat(each, dim=1), dim=0)) < count


def emptied(batch: Any) -> Any:
    """A batch like this one with nothing in it."""
    return (
        {key: part[:0] for key, part in batch.items()} if isinstance(batch, Mapping) else [part[:0] for part in batch]
    )


def rows_to_draw_from(loader: Any) -> int:
    """Rows of a loader's dataset. ``ConfigError`` where it does not draw evenly from all of them, in batches, or where
    a row is listed twice: it would stand in a batch twice, and be charged as once."""
    if type(getattr(loader, "sampler", None)) not in (RandomSampler, SequentialSampler) or not loader.batch_size:
        raise ConfigError(
            "guard.loader draws from all rows of a DataLoader with a batch_size and no sampler of its own: leave rows "
            "out by torch.utils.data.Subset"
        )
    if listed_twice(loader.dataset):
        raise ConfigError(
            "guard.loader: the dataset lists a row twice, which no bound of one row covers: list each once"
        )
    return len(loader.dataset)


def listed_twice(data: Any) -> bool:
    """Whether PyTorch's own containers have one row of what they are made of in two places."""
    if isinstance(data, Subset):
        count = len(data.dataset)  # type: ignore[arg-type]
        rows = {int(i) % count for i in data.indices}  # an index may count from the end
        return len(rows) < len(data.indices) or listed_twice(data.dataset)
    if isinstance(data, ConcatDataset):
        parts = [row for part in data.datasets for row in _sources(part)]
        return len(set(parts)) < len(parts) or any(map(listed_twice, data.datasets))
    return False


def _sources(data: Any) -> list[tuple[int, int]]:
    """The rows of a part of a ``ConcatDataset``: of which dataset each is in the end, and where it lies there."""
    if isinstance(data, Subset):
        inner = _sources(data.dataset)
        return [inner[int(i)] for i in data.indices]
    if isinstance(data, ConcatDataset):
        return [row for part in data.datasets for row in _sources(part)]
    return [(id(data), row) for row in range(len(data))]


class ChargedSteps:
    """Steps that were charged and not yet taken, and how the batch at hand was drawn: ``poisson`` is its sampling rate,
    0 for a loader's of one's own, and ``taken`` says whether its step was taken from what was charged."""

    def __init__(self, work: Handled) -> None:
        self._work = work
        self._credit: Counter[float] = Counter()  # steps, by sampling rate
        self._charges = self._loaders = 0
        self._expected, self._rows = 0, 0  # rows of a Poisson batch: on average, and of the one at hand
        self.poisson, self.taken = 0.0, False

    def loader(self, loader: Any) -> Iterator[Any]:
        """Under an ε Poisson batches from the loader's dataset, as many and as large on average as the loader's. Every
        call draws others: an epoch with the batches of the last one would be sampled once and noised twice. Else the
        loader's own: a Poisson batch may be empty, and its loss is no number."""
        if self._work.site.chain.private is None:
            yield from loader
            return
        count, data = rows_to_draw_from(loader), loader.dataset
        if doubt := self._work.site.privacy.doubt(count):
            logger.warning("%s", doubt)
        self._expected = int(loader.batch_size)
        rate = min(1.0, self._expected / count)
        drawn = self._work.site.generator(self._work.question, "batches", str(self._loaders))
        self._loaders += 1
        self._pay(len(loader), rate)
        for _ in range(len(loader)):
            chosen = (drawn.uniform(count) < rate).nonzero().flatten().tolist()
            batch = loader.collate_fn([data[i] for i in chosen or [0]])
            self.poisson, self._rows = rate, len(chosen)
            yield batch if chosen else emptied(batch)

    def _pay(self, steps: int, rate: float) -> None:
        name = f"{self._work.question}-{self._charges}"
        self._work.pay(charge(self._work.site.chain, name, steps, 10**9, math.ceil(rate * 10**9)))
        self._charges += 1
        self._credit[rate] += steps

    def take(self) -> None:
        """One charged step, of the sampling that its batch was drawn by."""
        rate = self.poisson or 1.0
        if not self._credit[rate]:
            self._pay(BLOCK, rate)
        self._credit[rate] -= 1
        self.taken = True

    def require_as_drawn(self, x: Any) -> None:
        if self.poisson and rows_of(x) != self._rows:
            raise DefenseError("guard.loader: a step takes a batch as it was drawn; joined or split ones cost more")

    def expected(self, x: Batch) -> int:
        """Rows that a batch drawn as this one has on average."""
        return (self._expected if self.poisson else 0) or max(1, rows_of(x))
