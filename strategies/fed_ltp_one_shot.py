"""Fed-LTP with fed-one-shot pruning: every client gets the winning ticket. LTP Eq. (11), Alg. 2 lines 36-38.

The run starts from the ticket's initial weights under its mask, retention p = 1 − P_r, and the mask stays. The paper's
client trains with DP; that is a defense here and composes with any scheme. Its server ends with the round that clients
scored highest (Eq. 19): ``server.best``.
"""

from flwr.serverapp import Grid

from prunella.core.trees import Mask, Tree
from prunella.strategies.round.roster import Member
from prunella.strategies.round.strategy import MaskedMean
from prunella.strategies.tickets import winning_ticket


class FedLTPOneShot(MaskedMean):
    """``settings`` is a ``TicketSettings``."""

    def first_model(self, params: Tree, grid: Grid, members: list[Member]) -> tuple[Tree, Mask]:
        ticket = winning_ticket(self.model, self.run, self.settings)
        return ticket.params, ticket.mask
