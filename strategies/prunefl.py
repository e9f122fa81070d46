"""PruneFL: initial pruning on one client, then adaptive reconfiguration from all clients' squared gradients.

Jiang et al., IEEE TNNLS 2022 (arXiv 1909.12326), Sec. III; the set that is kept is found in ``pruning.prunefl``.
The client with the lowest number prunes first (``initial_mask``, run by the client) and sends back a mask, no weights.
With ``granularity`` "filter" whole channels move (``pruning.prunefl_filters``), of the same squared gradients.
Every ``adjust_interval`` rounds clients add the mean squared gradient of every prunable weight to their reply.

What this costs in privacy: the first mask depends on one client's data, and importances are squared gradients. A
coordinate whose value a defense withheld carries no importance; coordinates outside the mask do, or nothing could
return. The view an attack gets contains them. A client whose owner requires an update defense sends neither: it trains
along and leaves the mask to the others (``client.policy``); where all do, the mask stays as it is.

Departures. The paper reconfigures every 50 rounds of a 10 000-round run; ``adjust_interval`` is scaled to short runs.
Initial pruning ends at the first move of the mask's size under a tenth; the authors' program (jiangyuang/PruneFL) ends
at the fifth in a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from logging import WARNING
from typing import NamedTuple

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from prunella.core.config import Count, Run
from prunella.core.errors import WireError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, map_trees, zeros_like
from prunella.privacy import DEFENSES
from prunella.privacy.chain import ChainState
from prunella.pruning.channels import Group, channel_groups
from prunella.pruning.prunefl import Reconfiguration, reconfigure, weight_cost
from prunella.pruning.prunefl_filters import most_weights, of_channels, reconfigure_filters
from prunella.pruning.selection import Granularity, density
from prunella.strategies.round.client_part import ClientPart, FirstMask
from prunella.strategies.round.local import Procedure, Received, train
from prunella.strategies.round.replies import Contribution, ReplyError, leave_out, require_answer
from prunella.strategies.round.roster import Member
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.tasks.data import Examples
from prunella.tasks.task import Task, prunable
from prunella.wire.records import mask_from_coded, record_bytes, to_coded, to_dense

INITIAL = "train.initial"
SETTLED = 0.1  # the size moved by less than this share: the authors' threshold


@dataclass(frozen=True)
class PruneFLSettings(Reconfiguration):
    """One client prunes first, then the squared gradients of all clients move the mask.

    The first client stops before ``initial_steps`` once the mask's size moves by less than 10 %.
    """

    adjust_interval: Count = 4  #: rounds between moves of the mask
    initial_steps: Count = 20  #: most steps of the client that prunes first
    initial_interval: Count = 5  #: of those steps, how many between moves of the mask
    granularity: Granularity = "weight"  #: what moves at once: a weight, or a filter with all added into its channel


def with_limit(settings: PruneFLSettings, rate: float) -> PruneFLSettings:
    """The schedule with ``max_density`` filled in from the run's rate where it was left at 0."""
    return settings if settings.max_density else PruneFLSettings(**{**settings.__dict__, "max_density": 1 - rate})


class MaskRule(NamedTuple):
    """How the mask moves. ``cost`` is of a weight of each prunable tensor; ``groups`` are the channels that move, if
    not single weights."""

    settings: PruneFLSettings
    cost: Mapping[str, float]
    groups: Sequence[Group] = ()

    def next_mask(self, params: Tree, importance: Tree, mask: Mask, round: int = 0) -> Mask:
        """From weights and mean squared gradients."""
        if self.groups:
            return reconfigure_filters(params, importance, mask, self.groups, self.cost, self.settings, round)
        return reconfigure(params, importance, mask, self.cost, self.settings, round)

    def is_first(self, mask: Mask) -> bool:
        """Whether a client may make this mask: every bias, something of every layer, no more than the limit."""
        names, most = frozenset(self.cost), self.settings.max_density
        if not all(bool(mask[name].any() if name in names else mask[name].all()) for name in mask):
            return False
        if not self.groups:
            return density(mask, names) <= most
        few = count({name: mask[name] for name in names}) <= most_weights(mask, self.groups, names, most)
        return few and of_channels(mask, self.groups, names)


def initial_mask(
    rule: MaskRule,
    procedure: Procedure,
    received: Received,
    batches: Iterator[Examples],
    state: ChainState,
    generator: PrivateGenerator,
) -> Mask:
    """Initial pruning on a client: train, reconfigure on its own squared gradients, repeat until settled."""
    settings = rule.settings
    params, mask, taken = received.params, received.mask, 0
    for _ in range(max(1, settings.initial_steps // settings.initial_interval)):
        start = Received(params, mask, received.buffers)
        done = train(procedure, params, start, islice(batches, settings.initial_interval), state, generator, taken)
        if not done.steps:
            break
        before, mask = mask, rule.next_mask(done.params, done.squares, mask)
        params, state, taken = apply_mask(done.params, mask), done.state, taken + done.steps
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
    groups = channel_groups(module, task.shape) if limited.granularity == "filter" else ()
    return FirstMask(limited.initial_steps, partial(initial_mask, MaskRule(limited, cost, groups)))


def sends_importance(settings: PruneFLSettings, round: int) -> bool:
    """Whether the mask is reconfigured after this round, and clients send squared gradients for it."""
    return round % settings.adjust_interval == 0


CLIENT = ClientPart(first_mask=first_mask, sends_importance=sends_importance)


def counted(contribution: Contribution, importance: Tree, sent: Mask) -> Mask:
    """Where a client's squared gradient is in the mean: where it is not zero, or zero and was not withheld. ``sent`` is
    the mask of clients that hold the whole model; of a narrower one's pruned weights only those not zero count."""
    told = any(bool(t.any()) for t in importance.values())  # an owner who withholds sends zeros only
    entries = [DEFENSES.get(name) for name in contribution.applied]
    fills = any(entry is None or entry.fills for entry in entries)  # which shares everything, and keeps the squares
    wide = told and all(torch.equal(contribution.base[name], sent[name]) for name in importance)

    def of(name: str, squares: Tensor) -> Tensor:
        arrived = squares != 0
        if told and not fills and name in contribution.shared:
            arrived = arrived | contribution.shared[name]
        return arrived | ~contribution.base[name] if wide else arrived

    return {name: of(name, squares) for name, squares in importance.items()}


class PruneFL(MaskedMean):
    """``settings`` is a ``PruneFLSettings``."""

    def __init__(self, run: Run, model: ServerModel, settings: PruneFLSettings) -> None:
        super().__init__(run, model, with_limit(settings, run.rate))
        self._importance: Tree | None = None
        self._weight: Tree | None = None

    @cached_property
    def rule(self) -> MaskRule:
        """How the mask moves."""
        model, settings = self.model, self.settings
        groups = model.groups if settings.granularity == "filter" else ()
        return MaskRule(settings, weight_cost(model.module, model.shape, model.prunable, settings.cost), groups)

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
            self.asking([member.client])
            answers = list(grid.send_and_receive([message], timeout=self.run.round_seconds))
            self.stats.first += [(member.client, answer) for answer in answers]
            try:
                if not answers:
                    raise ReplyError("timeout", "no answer came")
                return self.read_mask(answers[0], everything)
            except (ReplyError, WireError) as error:
                reason = leave_out(error, self.stats)
                log(WARNING, "first mask: reply of client %d left out (%s): %s", member.client, reason, error)
        log(WARNING, "no client gave a valid first mask; the first rounds are dense")
        return everything

    def read_mask(self, reply: Message, everything: Mask) -> Mask:
        """A mask that a client may make. Raises ``ReplyError`` or ``WireError`` for anything else."""
        require_answer(reply)
        if "mask" not in reply.content.array_records:
            raise ReplyError("malformed", "the mask is missing")
        record = reply.content.array_records["mask"]
        self.stats.up += record_bytes(record)
        mask = mask_from_coded(record, everything)
        if not self.rule.is_first(mask):
            raise ReplyError("mask", "no client may make this mask first: too much of it, or nothing of a layer")
        return mask

    def importance_names(self, server_round: int) -> frozenset[str]:
        return self.model.prunable if sends_importance(self.settings, server_round) else frozenset()

    def note(self, contribution: Contribution) -> None:
        """Add importances up. One that a defense or an owner withheld came as zero and does not count at all; a
        gradient that is zero does."""
        if contribution.importance is None:
            return
        counts = counted(contribution, contribution.importance, self.downlink.expected().mask)
        weight = map_trees(lambda c: c.double() * self.voice(contribution), counts)
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
        return self.rule.next_mask(params, {**zeros_like(params), **mean}, mask, server_round)
