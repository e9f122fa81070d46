"""Candidates for the run's first mask, as the server sends them, and how a client scores them (FedTiny).

A question has the weights whole, a mask for each candidate and, in the second turn, batch norm's statistics for each.
``asked`` is ``statistics`` (a model with batch norm: the buffers of this client's images under each candidate) or
``losses``. Losses are rounded as those of an evaluation are. Errors: ``WireError`` for a question that is none.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import nn

from prunella.core.errors import WireError
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, to_device
from prunella.strategies.round.local import Received
from prunella.strategies.round.selection import LOSS, MASK, MAX_CANDIDATES, STATISTICS
from prunella.tasks.examples import Examples
from prunella.tasks.statistics import batch_statistics
from prunella.tasks.training import evaluate
from prunella.wire.records import from_coded, mask_from_coded, to_coded

DIGITS = 3  # of a loss: further ones would only help an attack on single examples


class ScoredModel(NamedTuple):
    """The network of one mask, and the statistics it is scored with."""

    params: Tree
    mask: Mask
    buffers: Tree


class Pool(NamedTuple):
    """A question about candidates."""

    asked: str
    candidates: tuple[ScoredModel, ...]

    def trees(self) -> Iterable[Tree]:
        """All that the answer depends on."""
        return (tree for one in self.candidates for tree in one)

    @property
    def times(self) -> int:
        """How often the client has shown its images once it has answered."""
        return 2 if self.asked == LOSS and self.candidates[0].buffers else 1


class Scores(NamedTuple):
    """An answer."""

    losses: dict[str, float]
    records: dict[str, ArrayRecord]


def read_pool(content: RecordDict, received: Received) -> Pool:
    """The question in a message whose weights and buffers were ``received``."""
    config, arrays = content.config_records["config"], content.array_records
    asked, count = config.get("asked"), config.get("candidates")
    if asked not in (STATISTICS, LOSS) or type(count) is not int or not 1 <= count <= MAX_CANDIDATES:
        raise WireError("malformed", f"candidates come with what is asked of them, 1 to {MAX_CANDIDATES} at a time")
    device = next(iter(received.params.values())).device
    candidates = []
    for number in range(count):
        mask = to_device(mask_from_coded(arrays[f"{MASK}-{number}"], received.params), device)
        buffers = received.buffers
        if f"{STATISTICS}-{number}" in arrays:
            buffers = to_device(from_coded(arrays[f"{STATISTICS}-{number}"], buffers)[0], device)
        candidates.append(ScoredModel(apply_mask(received.params, mask), mask, buffers))
    return Pool(str(asked), tuple(candidates))


def score(pool: Pool, module: nn.Module, shown: list[Examples]) -> Scores:
    """The answer, on these batches as the defenses of images left them."""
    losses: dict[str, float] = {}
    records: dict[str, ArrayRecord] = {}
    if pool.asked == STATISTICS:
        for number, one in enumerate(pool.candidates):
            found = to_device(batch_statistics(module, one.params, one.buffers, [b.x for b in shown]), "cpu")
            records[f"{STATISTICS}-{number}"] = to_coded(found, full_mask(found))
        return Scores(losses, records)
    x, y = torch.cat([b.x for b in shown]), torch.cat([b.y for b in shown])
    for number, one in enumerate(pool.candidates):
        losses[f"{LOSS}-{number}"] = round(evaluate(module, one.params, one.buffers, x, y).loss, DIGITS)
    return Scores(losses, records)
