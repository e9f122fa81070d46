"""Aggregation that a few malicious clients cannot move as they like, for updates under masks.

f, the setting ``liars``, is how many of a round's clients may lie, in whatever they send. Yin et al.,
"Byzantine-Robust Distributed Learning" (ICML 2018), Definitions 1 and 2, per coordinate and over the k clients that
*participate* in its mean, Δ_(1) ≤ … ≤ Δ_(k) their values in order:

* ``median``: w + the middle value, or the mean of the middle two.
* ``trimmed-mean``: w + the mean of Δ_(t+1) … Δ_(k-t), t = max(f, ⌊share · k⌋).

A coordinate moves only where k ≥ 2f+1, and stays as it was elsewhere. So whatever f clients send, and wherever they
choose to participate, it moves by no more than the honest participants say, neither up nor down: a client sends one
value for a coordinate, so at most f of the k values are lies, fewer than lie on either side of what is kept. What f
liars can do is withhold a coordinate and so keep it where it is, where fewer than 2f+1 others participate: a run that
no f liars can halt needs 3f+1 clients a round. More than f liars are outside the promise.

Sun et al., "Can You Really Backdoor Federated Learning?" (2019), Section 4:

* ``norm-bound``: the mean of Δ_i · min(1, norm / ‖Δ_i‖₂), the norm over all coordinates where client i participates.

It tolerates no liar (f = 0): every liar moves the weights where it wants, by ``norm`` at most in a round, and by all of
that where it participates alone. It bounds the damage, and asks for no quorum.

Buffers are merged by their median, with the f of the rule; under ``norm-bound`` with f = 1. So are the accuracies that
clients measure (``pooled``).

Departures: a client counts once, however many examples it claims, since that number is its own word; without a robust
rule it is the client's weight, as in FedAvg, and nothing bounds it but ``replies.MAX_EXAMPLES``. A cap by what others
claim would change the mean of honest clients of unequal size, and stop nobody: who may claim any weight may as well
send any update. Median and trimmed mean hold the updates of a round at once: memory is clients × model, where the mean
needs three trees. It guards what travels beside the updates in one way only, a client counts once there, too: the size
of PruneFL's and FedTiny's squared gradients is a client's own word, and so are FedDST's, LotteryFL's and SparsyFed's
masks. What a SparsyFed client pruned is among the values that are merged, as a zero. The candidates that FedTiny's
clients score are merged by it (``selection``).
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import torch
from pydantic import Field
from torch import Tensor

from prunella.core.config import Count, Positive, Raw, Run, parse_section
from prunella.core.errors import ConfigError, unknown
from prunella.core.trees import Mask, Tree, l2, map_trees, require_same_names
from prunella.strategies.round.masked_mean import CHUNK, Aggregation, MaskedSum
from prunella.wire.sparse import SparseTree

BESIDE_NORM_BOUND = 1  # liars that buffers and accuracies withstand under the rule that has no such number


@dataclass(frozen=True)
class Median:
    """The median of every coordinate."""

    liars: Count = 1  #: malicious clients that a round tolerates (f)


@dataclass(frozen=True)
class TrimmedMean:
    """The mean without the extremes of every coordinate."""

    liars: Count = 1  #: malicious clients that a round tolerates (f)
    #: of a coordinate's values that is left out at either end, where that is more than `liars`
    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.25


@dataclass(frozen=True)
class NormBound:
    """The mean of updates whose norm is cut."""

    norm: Positive = 1.0  #: most Euclidean norm of an update, over all its tensors


class Sum(Protocol):
    """What a strategy needs of an aggregation: replies in, weights out."""

    def add(self, update: Tree, participation: Mask, weight: float) -> None: ...
    def add_sparse(self, update: SparseTree, participation: Mask, weight: float) -> None: ...
    def result(self, previous: Tree, aggregation: Aggregation) -> Tree: ...


def middle(values: Tensor, participation: Tensor, cut: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Per coordinate, the mean of what ``cut(k)`` at either end leaves of ``values`` [clients, coordinates], and k.

    >>> mean, k = middle(torch.tensor([[1.0], [9.0], [2.0]]), torch.ones(3, 1).bool(), lambda k: (k - 1) // 2)
    >>> mean.tolist(), k.tolist()
    ([2.0], [3])
    """
    participants = participation.sum(0)
    ordered = torch.where(participation, values, torch.inf).sort(0).values  # absent clients come last
    left_out = cut(participants)
    rank = torch.arange(len(values)).unsqueeze(1)
    kept = (rank >= left_out) & (rank < participants - left_out)
    return torch.where(kept, ordered, 0.0).sum(0) / kept.sum(0).clamp(min=1), participants


def quorum(liars: int) -> int:
    """The fewest participants among whom ``liars`` are outvoted.

    >>> quorum(1), quorum(2)
    (3, 5)
    """
    return 2 * liars + 1


class Ordered:
    """Every update of a round, and per coordinate the mean of those in the middle. A coordinate moves only where at
    least ``quorum(liars)`` clients participate; ``still`` is the share of those offered that had fewer."""

    def __init__(self, like: Tree, cut: Callable[[Tensor], Tensor], liars: int) -> None:
        self._like, self._cut, self._quorum = like, cut, quorum(liars)
        self._updates: list[Tree] = []
        self._participation: list[Mask] = []
        self._offered = self._short = 0

    @property
    def still(self) -> float:
        """After ``result``."""
        return self._short / max(1, self._offered)

    def add(self, update: Tree, participation: Mask, weight: float) -> None:
        """``weight`` is the client's own word and does not count."""
        require_same_names(self._like, update, participation)
        self._updates.append({name: tensor.detach() for name, tensor in update.items()})
        self._participation.append(participation)

    def add_sparse(self, update: SparseTree, participation: Mask, weight: float) -> None:
        self.add(update.dense(), participation, weight)

    def result(self, previous: Tree, aggregation: Aggregation) -> Tree:
        """The next global weights, in the dtype of ``previous``; ``previous`` itself if there was no reply."""
        if not self._updates:
            return previous
        return {name: self._merge(name, w) for name, w in previous.items()}

    def _merge(self, name: str, w: Tensor) -> Tensor:
        before = w.reshape(-1).double()
        updates = [update[name].reshape(-1) for update in self._updates]
        masks = [mask[name].reshape(-1) for mask in self._participation]
        merged = [before[:0]]
        for at in (slice(i, i + CHUNK) for i in range(0, before.numel(), CHUNK)):
            values = torch.stack([update[at].double() for update in updates])
            mean, participants = middle(values, torch.stack([mask[at] for mask in masks]), self._cut)
            enough = participants >= self._quorum
            self._offered += int((participants > 0).sum())
            self._short += int(((participants > 0) & ~enough).sum())
            merged.append(torch.where(enough, before[at] + mean, before[at]))
        return torch.cat(merged).reshape(w.shape).to(w.dtype)


class Bounded(MaskedSum):
    """The mean of updates whose norm was cut."""

    def __init__(self, like: Tree, norm: float) -> None:
        super().__init__(like)
        self._norm = norm

    def add(self, update: Tree, participation: Mask, weight: float) -> None:
        require_same_names(self.total, update, participation)
        sent = map_trees(lambda u, s: torch.where(s, u.detach().double(), 0.0), update, participation)
        size = float(l2(sent))
        factor = min(1.0, self._norm / size) if size else 1.0
        super().add(map_trees(lambda t: t * factor, sent), participation, 1.0)

    def add_sparse(self, update: SparseTree, participation: Mask, weight: float) -> None:
        """Through ``add``: the mean's own way of adding kept values cuts nothing."""
        self.add(update.dense(), participation, weight)


def by_median(like: Tree, settings: Median) -> Ordered:
    return Ordered(like, lambda k: (k - 1).clamp(min=0) // 2, settings.liars)


def by_trimmed_mean(like: Tree, settings: TrimmedMean) -> Ordered:
    return Ordered(like, lambda k: (k * settings.share).floor().long().clamp(min=settings.liars), settings.liars)


def by_norm_bound(like: Tree, settings: NormBound) -> Bounded:
    return Bounded(like, settings.norm)


class Rule(NamedTuple):
    """A line of ``ROBUST``."""

    make: Callable[[Tree, Any], Sum]
    settings: type


ROBUST: dict[str, Rule] = {
    "median": Rule(by_median, Median),
    "trimmed-mean": Rule(by_trimmed_mean, TrimmedMean),
    "norm-bound": Rule(by_norm_bound, NormBound),
}
SECTIONS: dict[str, type] = {name: rule.settings for name, rule in ROBUST.items()}
NONE = "none"


class Aggregator(NamedTuple):
    """How a strategy sums parameters and buffers: a new sum for a tree. With fewer than ``quorum`` replies nothing
    moves, but for the parameters under ``norm-bound``."""

    params: Callable[[Tree], Sum]
    buffers: Callable[[Tree], Sum]
    quorum: int = 1


MEAN = Aggregator(MaskedSum, MaskedSum)


def pooled(values: Sequence[float], examples: Sequence[int], least: int) -> float:
    """One figure of what clients measured, each on so many examples, or NaN: the mean over examples where ``least`` is
    1, which believes what everybody claims; else the median, over at least ``least`` clients. NaN among ``values``:
    that client told none.

    >>> pooled([0.5, 1.0], [1, 3], 1), pooled([0.5, 1.0, 0.6], [1, 10**9, 1], 3)
    (0.875, 0.6)
    """
    told = [(value, count) for value, count in zip(values, examples, strict=True) if not math.isnan(value)]
    if len(told) < least:
        return math.nan
    if least > 1:
        return statistics.median(value for value, _ in told)
    return sum(value * count for value, count in told) / sum(count for _, count in told)


def build_aggregator(run: Run, raw: Raw) -> Aggregator:
    """The aggregation that ``robust`` names. Raises ``ConfigError`` listing the valid names, or where a round may have
    too few clients to outvote the liars."""
    if run.robust == NONE:
        return MEAN
    if run.robust not in ROBUST:
        raise unknown("robust aggregation", run.robust, (NONE, *ROBUST))
    if run.aggregation != "holders":
        raise ConfigError(f"robust={run.robust} merges the values of participants only: set aggregation=holders")
    rule = ROBUST[run.robust]
    settings: Any = parse_section(raw, run.robust, rule.settings)
    liars = getattr(settings, "liars", BESIDE_NORM_BOUND)
    if quorum(liars) > run.min_clients:
        fewer = f", or {run.robust}.liars={(run.min_clients - 1) // 2}" if run.min_clients > 2 else ""
        raise ConfigError(
            f"robust={run.robust} outvotes {liars} with {quorum(liars)} clients, and a round starts with "
            f"{run.min_clients}: set min-clients={quorum(liars)}{fewer}"
        )
    return Aggregator(
        lambda like: rule.make(like, settings), lambda like: by_median(like, Median(liars)), quorum(liars)
    )
