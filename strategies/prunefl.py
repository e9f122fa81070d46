"""PruneFL: initial pruning on one client, then adaptive reconfiguration from all clients' squared gradients.

Jiang et al., IEEE TNNLS 2022 (arXiv 1909.12326), Sec. III; the set that is kept is found in ``pruning.prunefl``.
The client with the lowest number prunes first (``initial_mask``, run by the client) and sends back a mask, no weights.
Every ``adjust_interval`` rounds clients add the mean squared gradient of every prunable weight to their reply.

What this costs in privacy: the first mask depends on one client's data, and importances are squared gradients. A
coordinate whose value a defense withheld carries no importance; coordinates outside the mask do, or nothing could
return. The view an attack gets contains them. A client whose owner requires an update defense sends neither: it trains
along and leaves the mask to the others (``client.policy``); where all do, the mask stays as it is.

Departure: the paper reconfigures every 50 rounds of a 10 000-round run; ``adjust_interval`` is scaled to short runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from logging import WARNING

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from prunella.core.config import Count, Run
from prunella.core.errors import WireError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, map_trees, zeros_like
from prunella.privacy.chain import ChainState
from prunella.pruning.prunefl import Reconfiguration, reconfigure, weight_cost
from prunella.pruning.selection import density
from prunella.strategies.round.client_part import ClientPart, FirstMask
from prunella.strategies.round.local import Procedure, Received, train
from prunella.strategies.round.replies import Contribution
from prunella.strategies.round.roster import Member
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.tasks.data import Examples
from prunella.tasks.task import Task, prunable
from prunella.wire.records import mask_from_coded, record_bytes, to_coded, to_dense

INITIAL = "train.initial"
SETTLED = 0.1  # the size moved by less than this share: the paper's stopping rule


@dataclass(frozen=True)
class PruneFLSettings(Reconfiguration):
    """One client prunes first, then the squared gradients of all clients move the mask.

    The first client stops before ``initial_steps`` once the mask's size moves by less than 10 %.
    """

    adjust_interval: Count = 4  #: rounds between moves of the mask
    initial_steps: Count = 20  #: most steps of the client that prunes first
    initial_interval: Count = 5  #: of those steps, how many between moves of the mask


def with_limit(settings: PruneFLSettings, rate: float) -> PruneFLSettings:
    """The schedule with ``max_density`` filled in from the run's rate where it was left at 0."""
    return settings if settings.max_density else PruneFLSettings(**{**settings.__dict__, "max_density": 1 - rate})


def initial_mask(
    scheme: tuple[PruneFLSettings, Mapping[str, float]],
    procedure: Procedure,
    received: Received,
    batches: Iterator[Examples],
    state: ChainState,
    generator: PrivateGenerator,
) -> Mask:
    """Initial pruning on a client: train, reconfigure on its own squared gradients, repeat until settled."""
    settings, cost = scheme
    params, mask = received.params, received.mask
    for _ in range(max(1, settings.initial_steps // settings.initial_interval)):
        start = Received(params, mask, received.buffers)
        done = train(procedure, params, start, islice(batches, settings.initial_interval), state, generator)
        before, mask = mask, reconfigure(done.params, done.squares, mask, cost, settings)
        params, state = apply_mask(done.params, mask), done.state
        if settled(before, mask):
            break
    return mask


def settled(before: Mask, after: Mask) -> bool:
    """Whether initial pruning ends: the mask's size hardly moved."""
    return abs(count(after) - count(before)) < SETTLED * count(before)


def first_mask(run: Run, settings: PruneFLSettings, task: Task) -> FirstMask:
    """The client's half of initial pruning."""
    limited, module = with_limit(settings, run.rate), task.build()
    cost = weight_cost(module, task.shape, prunable(module), limited.cost)
    return FirstMask(limited.initial_steps, partial(initial_mask, (limited, cost)))


def sends_importance(settings: PruneFLSettings, round: int) -> bool:
    """Whether the mask is reconfigured after this round, and clients send squared gradients for it."""
    return round % settings.adjust_interval == 0


CLIENT = ClientPart(first_mask=first_mask, sends_importance=sends_importance)


class PruneFL(MaskedMean):
    """``settings`` is a ``PruneFLSettings``."""

    def __init__(self, run: Run, model: ServerModel, settings: PruneFLSettings) -> None:
        super().__init__(run, model, with_limit(settings, run.rate))
        self._importance: Tree | None = None
        self._weight: Tree | None = None

    def costs(self) -> dict[str, float]:
        """Of a weight of each prunable tensor."""
        return weight_cost(self.model.module, self.model.shape, self.model.prunable, self.settings.cost)

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        """Ask members one after the other, lowest client first, until one answers with a valid mask."""
        everything = full_mask(params)
        for member in members:
            buffers = {"buffers": to_dense(self.buffers)} if self.buffers else {}
            model = {"model": to_coded(params, everything), **buffers}
            content = RecordDict({**model, "config": ConfigRecord({"round": 0})})
            self.stats.down += sum(record_bytes(record) for record in model.values())
            self.stats.sent += 1
            message = Message(content, dst_node_id=member.node, message_type=INITIAL)
            for reply in grid.send_and_receive([message], timeout=self.run.round_seconds):
                mask = self.read_mask(reply, everything)
                if mask is not None:
                    return mask
            log(WARNING, "initial pruning: client %d gave no valid mask, asking the next", member.client)
        log(WARNING, "initial pruning: no client gave a valid mask; the first round is dense")
        return everything

    def read_mask(self, reply: Message, everything: Mask) -> Mask | None:
        """A mask that keeps every bias, something of every layer and no more than the limit, or None."""
        if reply.has_error() or "mask" not in reply.content.array_records:
            return None
        record = reply.content.array_records["mask"]
        self.stats.up += record_bytes(record)
        try:
            mask = mask_from_coded(record, everything)
        except WireError:
            return None
        whole = all(bool(mask[name].all()) for name in mask if name not in self.model.prunable)
        alive = all(bool(mask[name].any()) for name in self.model.prunable)
        return mask if whole and alive and density(mask, self.model.prunable) <= self.settings.max_density else None

    def importance_names(self, server_round: int) -> frozenset[str]:
        return self.model.prunable if sends_importance(self.settings, server_round) else frozenset()

    def note(self, contribution: Contribution) -> None:
        """Add importances up. One that a defense or an owner withheld came as zero and does not count at all."""
        if contribution.importance is None:
            return
        weight = map_trees(lambda t: (t != 0).double() * contribution.weight, contribution.importance)
        weighted = map_trees(lambda t, w: t.double() * w, contribution.importance, weight)
        if self._importance is None or self._weight is None:
            self._importance, self._weight = weighted, weight
        else:
            self._importance = map_trees(torch.add, self._importance, weighted)
            self._weight = map_trees(torch.add, self._weight, weight)

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        """Reconfigure when this round collected importances; a round without any keeps its mask."""
        importance, weight = self._importance, self._weight
        self._importance = self._weight = None
        if importance is None or weight is None:
            return mask
        if not any(bool(t.any()) for t in weight.values()):
            log(
                WARNING,
                "round %d: no client sent importances, so the mask stays: choose another strategy",
                server_round,
            )
            return mask
        mean = map_trees(lambda t, w: t / w.clamp(min=1), importance, weight)
        return reconfigure(params, {**zeros_like(params), **mean}, mask, self.costs(), self.settings, server_round)
