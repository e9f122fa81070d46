"""FedDST: federated dynamic sparse training. Bibikar et al., AAAI 2022, Alg. 1 (PRI Table 1).

The run starts from a random mask with ERK densities. Every ``adjust_interval`` rounds, until ``end_round``, a client
moves its mask half-way through its local steps (``pruning.feddst``), trains what it regrew, and reports the mask beside
its update; the server averages by holders and prunes back to the densities. The defense chain sees the client's new
mask as its base mask. Masks that clients report tell which of their weights grew: they leave outside the defenses.

Departures: ``adjust_interval`` and ``end_round`` are scaled to short runs; RigL's α. ERK counts are exact over all
layers. In a round without a valid reply the mask stays.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from flwr.serverapp import Grid
from pydantic import Field

from prunella.core.config import Count, Run, Share
from prunella.core.randomness import stream
from prunella.core.trees import Mask, Tree, full_mask, map_trees
from prunella.pruning.erk import erk_counts, uniform_counts
from prunella.pruning.feddst import decayed, prune_and_regrow, vote
from prunella.pruning.scores import random
from prunella.pruning.selection import keep_counts, kept_count
from prunella.strategies.round.client_part import ClientPart
from prunella.strategies.round.plan import LocalPlan, RoundContext
from prunella.strategies.round.replies import Contribution
from prunella.strategies.round.roster import Member
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean


@dataclass(frozen=True)
class FedDSTSettings:
    """Clients move their mask while they train."""

    adjust_interval: Count = 4  #: rounds between moves of the mask
    end_round: Count = 100  #: from this round on the mask stays
    alpha: Share = 0.3  #: share of a layer that moves in the first round; it decays
    train_first: Annotated[float, Field(gt=0, lt=1)] = 0.5  #: share of the local steps before the mask moves
    distribution: Literal["erk", "uniform"] = "erk"  #: densities of the layers: Erdos-Renyi kernel, or the same for all


def adjusts(settings: FedDSTSettings, round: int) -> bool:
    """Whether masks move in this round.

    >>> [r for r in range(1, 14) if adjusts(FedDSTSettings(adjust_interval=4, end_round=12), r)]
    [4, 8]
    """
    return round % settings.adjust_interval == 0 and round < settings.end_round


def plan(context: RoundContext) -> LocalPlan:
    """The client's half."""
    settings = context.settings
    if not adjusts(settings, context.round):
        return LocalPlan()
    alpha = decayed(settings.alpha, context.round, settings.end_round)

    def readjust(params: Tree, squares: Tree, mask: Mask) -> tuple[Tree, Mask]:
        return prune_and_regrow(params, squares, mask, alpha, context.prunable)

    return LocalPlan(readjust=readjust, before=max(1, int(settings.train_first * context.run.local_steps)))


CLIENT = ClientPart(plan=plan)


class FedDST(MaskedMean):
    """``settings`` is a ``FedDSTSettings``."""

    def __init__(self, run: Run, model: ServerModel, settings: FedDSTSettings) -> None:
        super().__init__(run, model, settings)
        self._holders: Mask | None = None

    def _counts(self, like: Tree) -> dict[str, int]:
        shapes = {name: tuple(like[name].shape) for name in like if name in self.model.prunable}
        total = kept_count(sum(like[name].numel() for name in shapes), self.run.rate)
        return (erk_counts if self.settings.distribution == "erk" else uniform_counts)(shapes, total)

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        scores = random(params, stream(self.run.seed, purpose="feddst-mask"))
        return {**full_mask(params), **keep_counts(scores, self._counts(params))}

    def allowed(self, server_round: int, mask: Mask) -> Mask | None:
        return full_mask(mask) if adjusts(self.settings, server_round) else None

    def note(self, contribution: Contribution) -> None:
        if adjusts(self.settings, self.downlink.expected().round):
            base = contribution.base
            self._holders = base if self._holders is None else map_trees(torch.logical_or, self._holders, base)

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        holders, self._holders = self._holders, None
        return mask if holders is None else vote(params, holders, mask, self._counts(params))
