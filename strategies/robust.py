"""Aggregation that a few malicious clients cannot move as they like, for updates under masks.

Yin et al., "Byzantine-Robust Distributed Learning" (ICML 2018), Definitions 1 and 2, per coordinate and over the
clients that *speak* for it, Δ_(1) ≤ … ≤ Δ_(k) their values in order:

* ``median``: w + the middle value, or the mean of the middle two.
* ``trimmed-mean``: w + the mean of Δ_(t+1) … Δ_(k-t), t = ⌊share · k⌋.

Sun et al., "Can You Really Backdoor Federated Learning?" (2019), Section 4:

* ``norm-bound``: the mean of Δ_i · min(1, norm / ‖Δ_i‖₂), the norm over all that client i speaks for.

Departures: a client counts once, however many examples it claims, since that number is its own word. A coordinate for
which fewer than ``quorum`` clients speak stays as it was: a malicious client would otherwise decide alone wherever the
others withhold. Buffers are merged by their median under each of the three. Median and trimmed mean hold the updates
of a round at once: memory is clients × model, where the mean needs two trees. None of it guards what travels beside
the updates: PruneFL's squared gradients, FedDST's and LotteryFL's masks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import torch
from pydantic import Field
from torch import Tensor

from core.config import Count, Positive, Raw, Run, parse_section
from core.errors import ConfigError, unknown
from core.kept import Kept
from core.trees import Mask, Tree, map_trees, require_same_names
from strategies.masked_mean import PIECE, Aggregation, MaskedSum

QUORUM = 3  # the least among whom one liar is outvoted


@dataclass(frozen=True)
class Median:
    """``quorum``: speakers without whom a coordinate stays."""

    quorum: Count = QUORUM


@dataclass(frozen=True)
class TrimmedMean:
    """``share`` of a coordinate's speakers left out at either end: as many liars as it withstands."""

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.25
    quorum: Count = QUORUM


@dataclass(frozen=True)
class NormBound:
    """``norm``: what an update's Euclidean norm is cut to, over all its tensors."""

    norm: Positive = 1.0


class Sum(Protocol):
    """What a strategy needs of an aggregation: replies in, weights out."""

    def add(self, update: Tree, spoken: Mask, weight: float) -> None: ...
    def add_kept(self, kept: Kept, spoken: Mask, weight: float) -> None: ...
    def result(self, previous: Tree, aggregation: Aggregation) -> Tree: ...


def middle(values: Tensor, spoken: Tensor, cut: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Per coordinate, the mean of what ``cut(k)`` at either end leaves of ``values`` [clients, coordinates], and k.

    >>> mean, k = middle(torch.tensor([[1.0], [9.0], [2.0]]), torch.ones(3, 1).bool(), lambda k: (k - 1) // 2)
    >>> mean.tolist(), k.tolist()
    ([2.0], [3])
    """
    speakers = spoken.sum(0)
    ordered = torch.where(spoken, values, torch.inf).sort(0).values  # the silent stand behind the last speaker
    left_out = cut(speakers)
    rank = torch.arange(len(values)).unsqueeze(1)
    kept = (rank >= left_out) & (rank < speakers - left_out)
    return torch.where(kept, ordered, 0.0).sum(0) / kept.sum(0).clamp(min=1), speakers


class Ordered:
    """Every update of a round, and per coordinate the mean of those in the middle."""

    def __init__(self, like: Tree, cut: Callable[[Tensor], Tensor], quorum: int) -> None:
        self._like, self._cut, self._quorum = like, cut, quorum
        self._updates: list[Tree] = []
        self._spoken: list[Mask] = []

    def add(self, update: Tree, spoken: Mask, weight: float) -> None:
        """``weight`` is the client's own word and does not count."""
        require_same_names(self._like, update, spoken)
        self._updates.append({name: tensor.detach() for name, tensor in update.items()})
        self._spoken.append(spoken)

    def add_kept(self, kept: Kept, spoken: Mask, weight: float) -> None:
        self.add(kept.dense(), spoken, weight)

    def result(self, previous: Tree, aggregation: Aggregation) -> Tree:
        """The next global weights, in the dtype of ``previous``; ``previous`` itself when nobody replied."""
        if not self._updates:
            return previous
        return {name: self._merge(name, w) for name, w in previous.items()}

    def _merge(self, name: str, w: Tensor) -> Tensor:
        before = w.reshape(-1).double()
        updates = [update[name].reshape(-1) for update in self._updates]
        masks = [mask[name].reshape(-1) for mask in self._spoken]
        merged = [before[:0]]
        for at in (slice(i, i + PIECE) for i in range(0, before.numel(), PIECE)):
            values = torch.stack([update[at].double() for update in updates])
            mean, speakers = middle(values, torch.stack([mask[at] for mask in masks]), self._cut)
            merged.append(torch.where(speakers >= self._quorum, before[at] + mean, before[at]))
        return torch.cat(merged).reshape(w.shape).to(w.dtype)


class Bounded(MaskedSum):
    """The mean of updates whose norm was cut."""

    def __init__(self, like: Tree, norm: float) -> None:
        super().__init__(like)
        self._norm = norm

    def add(self, update: Tree, spoken: Mask, weight: float) -> None:
        require_same_names(self.total, update, spoken)
        heard = map_trees(lambda u, s: torch.where(s, u.detach().double(), 0.0), update, spoken)
        size = float(torch.sqrt(sum((t.square().sum() for t in heard.values()), torch.zeros((), dtype=torch.float64))))
        factor = min(1.0, self._norm / size) if size else 1.0
        super().add(map_trees(lambda t: t * factor, heard), spoken, 1.0)

    def add_kept(self, kept: Kept, spoken: Mask, weight: float) -> None:
        """Through ``add``: the mean's own way of adding kept values cuts nothing."""
        self.add(kept.dense(), spoken, weight)


def by_median(like: Tree, settings: Median) -> Ordered:
    return Ordered(like, lambda k: (k - 1).clamp(min=0) // 2, settings.quorum)


def by_trimmed_mean(like: Tree, settings: TrimmedMean) -> Ordered:
    return Ordered(like, lambda k: (k * settings.share).floor().long(), settings.quorum)


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
    """How a strategy sums parameters and buffers: a new sum for a tree."""

    params: Callable[[Tree], Sum]
    buffers: Callable[[Tree], Sum]


MEAN = Aggregator(MaskedSum, MaskedSum)


def build_aggregator(run: Run, raw: Raw) -> Aggregator:
    """The aggregation that ``robust`` names. Raises ``ConfigError`` listing the valid names."""
    if run.robust == NONE:
        return MEAN
    if run.robust not in ROBUST:
        raise unknown("robust aggregation", run.robust, (NONE, *ROBUST))
    if run.aggregation != "holders":
        raise ConfigError(f"robust={run.robust} asks those who speak: set aggregation=holders")
    rule = ROBUST[run.robust]
    settings: Any = parse_section(raw, run.robust, rule.settings)
    quorum = getattr(settings, "quorum", QUORUM)
    if quorum > run.min_clients:
        raise ConfigError(
            f"robust={run.robust} needs {quorum} clients to move a weight, and a round starts with {run.min_clients}: "
            f"set min-clients={quorum}"
        )
    return Aggregator(lambda like: rule.make(like, settings), lambda like: by_median(like, Median(quorum)))
