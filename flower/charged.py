"""The steps of one guarded loop, charged to the site's account before their batches are looked at.

A batch of a loader of one's own is no Poisson sample: its step is charged without amplification, ``BLOCK`` at a time,
since nobody says how many will come. ``ChargedSteps.loader`` draws Poisson batches itself and charges all of them;
without an ε, for which the drawing matters, it yields what the loader yields.

Errors: ``DefenseError`` past the budget, or for a batch that is not as it was drawn.
"""

import copy
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, RandomSampler, SequentialSampler, Subset

from prunella.core.errors import ConfigError, DefenseError
from prunella.core.global_draws import SEEDS, draws_from, repeats
from prunella.flower.handled import Handled
from prunella.privacy.ledger.ledger import charge

Batch = Tensor | Mapping[str, Tensor]
BLOCK = 8  # steps charged at a time where nobody says how many there will be
ASKED = 8  # rows of a dataset, for what they draw
logger = logging.getLogger(__name__)


def rows_of(x: Batch) -> int:
    return len(next(iter(x.values()))) if isinstance(x, Mapping) else len(x)


def answer_of(model: nn.Module, x: Batch) -> Any:
    """What the model answers to images, or to a batch of named tensors."""
    return model(**x) if isinstance(x, Mapping) else model(x)


def has_twins(x: Batch) -> bool:
    """Whether two rows of a batch are the same, as where a sampler draws with replacement: an example that stands in it
    k times moves the sum of clipped gradients by k times the bound."""
    count = rows_of(x)
    if count < 2:
        return False
    parts = list(x.values()) if isinstance(x, Mapping) else [x]
    each = [part.detach().reshape(count, -1).double() for part in parts if part.ndim and len(part) == count]
    return len(torch.unique(torch.cat(each, dim=1), dim=0)) < count


def _of_kind(batch: Mapping[str, Any], parts: dict[str, Any]) -> Any:
    """A batch like this one of these parts: what tokenizers give does more than a dict."""
    if not isinstance(batch, MutableMapping):
        return parts
    alike = copy.copy(batch)
    alike.update(parts)
    return alike


def _by_part(make: Callable[[list[Any]], Any], batches: list[Any]) -> Any:
    """A batch of what ``make`` makes of each part of these: of a tensor, of (x, y), or of parts by their names."""
    first = batches[0]
    if isinstance(first, Tensor):
        return make(batches)

    def part(column: list[Any]) -> Any:
        one = column[0]
        nested = isinstance(one, list | tuple) and any(
            isinstance(each, Tensor | Mapping | list | tuple) for each in one
        )
        return _by_part(make, column) if nested or isinstance(one, Mapping) else make(column)

    if isinstance(first, Mapping):
        return _of_kind(first, {key: part([batch[key] for batch in batches]) for key in first})
    return [part(list(column)) for column in zip(*batches, strict=True)]


def emptied(batch: Any) -> Any:
    """A batch like this one with nothing in it."""
    return _by_part(lambda column: column[0][:0], [batch])


def joined(batches: list[Any]) -> Any:
    """One batch of all rows of these. ``DefenseError`` where their rows are of different sizes."""
    try:
        return _by_part(lambda c: torch.cat(c) if isinstance(c[0], Tensor) else [*chain.from_iterable(c)], batches)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise DefenseError(
            "guard.loader: under an ε the collate_fn gets one row at a time, and what it gives cannot be joined: give "
            "tensors [1, ...] in a pair or a dict, padded to a length that no data choose"
        ) from error


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


def rows_apart(loader: Any, chosen: list[int], seeds: Tensor) -> Any:
    """A batch of the chosen rows of the loader's dataset. What dataset and ``collate_fn`` draw for one, as augmentation
    does, they draw from global generators that begin at its own of the seeds [N]: not where other rows left them."""
    batches = []
    for index in chosen:
        with draws_from(int(seeds[index])):
            batches.append(loader.collate_fn([loader.dataset[index]]))
    return joined(batches)


def require_rows_apart(loader: Any) -> None:
    """Refuse (``ConfigError``) a dataset that draws from a generator of its own, or counts its calls, where one of
    ``ASKED`` rows shows it."""
    rows = range(0, len(loader.dataset), max(1, len(loader.dataset) // ASKED))[:ASKED]

    def some() -> list[Any]:
        parts: list[Any] = []
        for row in rows:
            _by_part(parts.append, [loader.collate_fn([loader.dataset[row]])])
        return parts

    if not repeats(some, times=8):
        raise ConfigError(
            "guard.loader: read again, a row of the dataset is another: it is augmented from a generator of its own "
            "(as by Albumentations), so that what one row draws depends on which were read before it, and no ε holds: "
            "draw from the global generators of PyTorch, NumPy or Python"
        )


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
        call draws others: an epoch with the batches of the last one would be sampled once and noised twice. What a row
        draws in a step, no other row of the batch has moved. Else the loader's own: a Poisson batch may be empty, and
        its loss is no number."""
        if self._work.site.chain.private is None:
            yield from loader
            return
        count = rows_to_draw_from(loader)
        if doubt := self._work.site.privacy.doubt(count):
            logger.warning("%s", doubt)
        require_rows_apart(loader)
        self._expected = int(loader.batch_size)
        rate = min(1.0, self._expected / count)
        drawn = self._work.site.generator(self._work.question, "batches", str(self._loaders))
        self._loaders += 1
        self._pay(len(loader), rate)
        for _ in range(len(loader)):
            chosen = (drawn.uniform(count) < rate).nonzero().flatten().tolist()
            batch = rows_apart(loader, chosen or [0], drawn.below(SEEDS, count))
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
