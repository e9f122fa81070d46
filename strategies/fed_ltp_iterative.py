"""Fed-LTP with fed-iterative pruning: one model per client slot, each pruned out of the one before.

LTP Eqs. (12) to (14), Alg. 2 lines 30-35. From the winning ticket the server makes as many models as clients are
selected at a time; model i keeps p_i = (1 − P1)(1 − P2)^i, with P1 the run's ``rate`` and P2 ``further``. At its first
selection a client is given a model at random, without replacement, among those that no other client of that round has,
and keeps it for the rest of the run. Weights are averaged over the clients that hold them, and the global model has the
structure of model 1, the largest.

Readings: the models' masks are made once, from the weights the ticket starts with, so that a client's structure does
not change under it. If there are more new clients than free models, all models are shuffled anew.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from flwr.serverapp import Grid
from pydantic import Field

from prunella.core.config import Rate, Run
from prunella.core.randomness import stream
from prunella.core.trees import Mask, Tree, apply_mask
from prunella.pruning.ltp import further_masks
from prunella.pruning.scores import magnitude
from prunella.strategies.round.personal import to_bytes, to_tensor
from prunella.strategies.round.roster import Member, selected
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.strategies.tickets import FILTERS, Ticket, TicketSettings, winning_ticket
from prunella.wire.encode import decode_mask, encode_mask


@dataclass(frozen=True)
class IterativeSettings(TicketSettings):
    """Several winning tickets, each pruned out of the one before."""

    further: Rate = 0.1  #: share that each further model removes (P2)
    slots: Annotated[int, Field(ge=0)] = 0  #: number of models; 0: as many as clients are selected at a time


def deal(newcomers: list[int], taken: set[int], slots: int, generator: torch.Generator) -> dict[int, int]:
    """A slot for every newcomer: a shuffle of those not ``taken``, then of all.

    >>> dealt = deal([5, 6, 7], {1}, 4, torch.Generator().manual_seed(0))
    >>> sorted(dealt), sorted(dealt.values())
    ([5, 6, 7], [0, 2, 3])
    """
    free: list[int] = [slot for slot in torch.randperm(slots, generator=generator).tolist() if slot not in taken]
    dealt = {}
    for client in newcomers:
        free = free or torch.randperm(slots, generator=generator).tolist()
        dealt[client] = free.pop(0)
    return dealt


class FedLTPIterative(MaskedMean):
    """``settings`` is an ``IterativeSettings``."""

    def __init__(self, run: Run, model: ServerModel, settings: IterativeSettings) -> None:
        super().__init__(run, model, settings)
        self._slots: list[bytes] = []
        self._slot_of: dict[int, int] = {}

    def first_model(self, params: Tree, grid: Grid, members: list[Member]) -> tuple[Tree, Mask]:
        run, settings = self.run, self.settings
        ticket = winning_ticket(self.model, run, settings)
        count = settings.slots or selected(len(members), run.fraction, run.min_clients)
        if settings.granularity == "filter":
            masks = self._fewer_filters(ticket, count)
        else:
            plan = (run.rate, settings.further, count)
            masks = further_masks(ticket.params, ticket.mask, self.model.prunable, plan, settings.rule)
        self._slots = [encode_mask(mask) for mask in masks]
        return apply_mask(ticket.params, masks[0]), masks[0]

    def _fewer_filters(self, ticket: Ticket, count: int) -> list[Mask]:
        """The models of whole channels, of the same retentions p_i."""
        masks, rate, further = [ticket.mask], self.run.rate, self.settings.further
        for times in range(1, count + 1):
            gone = 1 - (1 - rate) * (1 - further) ** times
            masks.append(self.model.keep(magnitude(ticket.params), gone, FILTERS, masks[-1]))
        return masks[1:]

    def models(self, like: Tree) -> list[Mask]:
        """The models' masks, the largest first."""
        return [decode_mask(slot, like) for slot in self._slots]

    def adopt(self, models: list[Mask]) -> None:
        """Give clients these models: another instance made them."""
        self._slots = [encode_mask(mask) for mask in models]

    def assign(self, server_round: int, chosen: list[Member]) -> None:
        clients = [member.client for member in chosen]
        newcomers = [client for client in clients if client not in self._slot_of]
        taken = {self._slot_of[client] for client in clients if client in self._slot_of}
        generator = stream(self.run.seed, round=server_round, purpose="slots")
        for client, slot in deal(newcomers, taken, len(self._slots), generator).items():
            self._slot_of[client] = slot
            self.downlink.personal.put_coded(client, self._slots[slot])

    def remembered(self) -> Tree:
        models = {f"slot/{number}": to_tensor(data) for number, data in enumerate(self._slots)}
        return models | {f"client/{client}": torch.tensor(slot) for client, slot in self._slot_of.items()}

    def recall(self, saved: Tree) -> None:
        count = sum(name.startswith("slot/") for name in saved)
        self._slots = [to_bytes(saved[f"slot/{number}"]) for number in range(count)]
        for name in (name for name in saved if name.startswith("client/")):
            client, slot = int(name.removeprefix("client/")), int(saved[name])
            self._slot_of[client] = slot
            self.downlink.personal.put_coded(client, self._slots[slot])
