"""FedTiny: clients choose among coarse masks, then the mask moves block by block. Huang et al., ICDCS 2023.

arXiv 2212.01977; masks and schedule are in ``pruning.fedtiny``, the choice in ``strategies.round.selection``.

1. Adaptive batch norm selection: the server prunes the initial weights in ``candidates`` ways; the clients of a sample
   tell batch norm's statistics of their images under each, then their losses with the averaged statistics, and the
   candidate with the lowest mean loss is the run's first mask.
2. Progressive pruning: every ``adjust_interval`` rounds, before ``stop_round``, clients report the largest mean squared
   gradients of weights outside the mask in one block of layers; the server grows the leading ones at zero and prunes as
   many by magnitude. Every layer keeps its number of weights.

What this costs in privacy: losses, and statistics of a model with batch norm, leave beside the update before the first
round, through no defense but one of images; a client under an ε, or whose owner has any condition, tells neither. The
reports are PruneFL's importances cut to a few coordinates outside the mask, under the same rule: none from a client
whose owner requires an update defense. The view an attack gets contains them; the choice of the mask is not attacked.

Departures: ``adjust_interval`` is scaled to short runs (the paper: 10 of 100). The weights are not trained before they
are pruned coarsely, so that without batch norm all candidates' losses are near ln(classes) and the choice near chance.
The run starts with the model's own statistics, not the chosen candidate's. Losses are measured on batches drawn from
the training examples. Where nobody scores candidates, the first one is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Annotated

import torch
from flwr.common.logger import log
from flwr.serverapp import Grid
from pydantic import Field

from prunella.core.config import Count, Rate, Run, Share
from prunella.core.trees import Mask, Tree, map_trees, same_trees
from prunella.pruning.feddst import decayed
from prunella.pruning.fedtiny import block, candidate_masks, grow_and_prune, moved, reported
from prunella.strategies.round.client_part import ClientPart
from prunella.strategies.round.replies import Contribution
from prunella.strategies.round.roster import Member, sample, selected
from prunella.strategies.round.selection import MAX_CANDIDATES, Selection
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean


@dataclass(frozen=True)
class FedTinySettings:
    """Clients choose the first mask by loss, then the largest gradients of pruned weights move it block by block."""

    candidates: Annotated[int, Field(ge=1, le=MAX_CANDIDATES)] = 5  #: coarse masks to choose from; 1: no choice
    noise: Rate = 0.5  #: how far a layer's share of the weights differs between candidates
    selection_batches: Annotated[int, Field(ge=1, le=1000)] = 8  #: on which a client scores the candidates
    adjust_interval: Count = 4  #: rounds between moves of the mask
    stop_round: Count = 100  #: from this round on the mask stays
    alpha: Share = 0.3  #: share of a layer that moves in the first round; it decays
    blocks: Count = 5  #: parts that the layers are divided into; one moves at a time


def due(settings: FedTinySettings, round: int, layers: Sequence[str]) -> tuple[str, ...]:
    """The layers whose mask moves after this round.

    >>> [due(FedTinySettings(adjust_interval=2, stop_round=6, blocks=2), r, ["a", "b"]) for r in range(1, 7)]
    [(), ('b',), (), ('a',), (), ()]
    """
    if round % settings.adjust_interval or round >= settings.stop_round:
        return ()
    return block(layers, settings.blocks, round // settings.adjust_interval - 1)


def moves(settings: FedTinySettings, round: int, mask: Mask, layers: Sequence[str]) -> dict[str, int]:
    """How many weights move in each layer that is due. Client and server count alike."""
    return moved(mask, due(settings, round, layers), decayed(settings.alpha, round, settings.stop_round))


def report(settings: FedTinySettings, round: int, squares: Tree, mask: Mask, layers: Sequence[str]) -> Tree:
    """What leaves of a client's squared gradients."""
    return reported(squares, mask, moves(settings, round, mask, layers))


def reports(settings: FedTinySettings, round: int) -> bool:
    """Whether clients report after this round."""
    return bool(due(settings, round, ["any layer"]))


CLIENT = ClientPart(sends_importance=reports, report=report, scores=lambda settings: settings.selection_batches)


class FedTiny(MaskedMean):
    """``settings`` is a ``FedTinySettings``."""

    def __init__(self, run: Run, model: ServerModel, settings: FedTinySettings) -> None:
        super().__init__(run, model, settings)
        self._votes: Tree | None = None

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        settings, run = self.settings, self.run
        plan = (settings.candidates, settings.noise)
        masks = candidate_masks(params, self.model.prunable, run.rate, plan, run.seed)
        if all(same_trees(masks[0], mask) for mask in masks):
            return masks[0]
        selection = Selection(params, masks, self.buffers, self.aggregator, self.stats, self.asking)
        asked = sample(members, selected(len(members), run.fraction, run.min_clients), run.seed, 0)
        best = selection.choose(grid, asked, run.round_seconds)
        if best is None:
            log(WARNING, "no client scored the candidates for the first mask: the first of them is taken")
        return masks[best or 0]

    @property
    def layers(self) -> list[str]:
        """The prunable tensors, from the input on."""
        return [name for name in self.model.parameters if name in self.model.prunable]

    def importance_names(self, server_round: int) -> frozenset[str]:
        return frozenset(due(self.settings, server_round, self.layers))

    def note(self, contribution: Contribution) -> None:
        """Add reports up, each weighing as its client does; what a client did not name is zero."""
        if contribution.importance is None:
            return
        votes = map_trees(lambda t: t.double() * self.voice(contribution), contribution.importance)
        self._votes = votes if self._votes is None else map_trees(torch.add, self._votes, votes)

    def revise_mask(self, server_round: int, params: Tree, mask: Mask) -> Mask:
        votes, self._votes = self._votes, None
        if votes is None:
            return mask
        return grow_and_prune(params, votes, mask, moves(self.settings, server_round, mask, self.layers))
