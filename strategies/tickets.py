"""Winning tickets on public data, before training: Fed-LTP's server side. LTP Alg. 1, Eqs. (9) and (10).

Each of ``tickets`` networks is freshly initialised, trained ``iterations`` steps on the server's public examples
(``tasks.public``), pruned, and reset to its initial weights; its score is the number of public examples it labels
right. One is picked with probability softmax of the scores.

Readings: the score is that of the trained weights under the mask, before the reset; the paper does not say which. P_r
is the run's ``rate``. No client's data is looked at, so this costs no privacy budget. With ``granularity`` "filter" it
is whole channels whose mean |w| is ranked (``pruning.filters``), and every layer loses the same share of them.
"""

from dataclasses import dataclass

from prunella.core.config import Count, Positive, Run
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, apply_mask
from prunella.pruning.ltp import Rule, softmax_choice, ticket_mask
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import Granularity, Scope
from prunella.strategies.round.public_loss import public_examples
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.data import batches
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, evaluate, loss_and_gradient, sgd_step

FILTERS: tuple[Scope, Granularity] = ("layer", "filter")


@dataclass(frozen=True)
class TicketSettings:
    """One winning ticket from public examples for all clients."""

    tickets: Count = 3  #: networks that are trained and pruned on public examples (M)
    iterations: Count = 100  #: training steps of each (k)
    batch: Count = 32  #: public examples in a step
    learning_rate: Positive = 0.1  #: of that training
    rule: Rule = "rate"  #: rate keeps exactly the rate in every layer; as_printed is Eq. 9 of the paper
    granularity: Granularity = "weight"  #: what goes at once: a weight, or a filter with all added into its channel

    def __post_init__(self) -> None:
        if self.granularity == "filter" and self.rule != "rate":
            raise ConfigError("rule=as_printed compares single weights: with granularity=filter leave rule=rate")


@dataclass(frozen=True)
class Ticket:
    """Initial weights under the mask, the mask, and how many public examples the trained ticket labels right."""

    params: Tree
    mask: Mask
    score: int


def _task(model: ServerModel) -> Task:
    if model.task is None:
        raise PrunellaError("tickets start from fresh weights, and the server was given no task to draw them from")
    return model.task


def make_ticket(model: ServerModel, run: Run, settings: TicketSettings, number: int) -> Ticket:
    """Ticket ``number``, the same for the same seed."""
    public = public_examples(model)
    fresh, buffers = initial(_task(model), stream(run.seed, client=number, purpose="ticket").initial_seed())
    params, sgd = fresh, Sgd(settings.learning_rate)
    order = rehearsal(run.seed, client=number, purpose="ticket-batches")
    for batch in batches(public, settings.batch, settings.iterations, order):
        _, gradient, buffers = loss_and_gradient(model.module, params, buffers, batch.x, batch.y)
        params, _ = sgd_step(params, gradient, {}, sgd, None)
    if settings.granularity == "filter":
        mask = model.keep(magnitude(params), run.rate, FILTERS)
    else:
        mask = ticket_mask(params, model.prunable, run.rate, settings.rule)
    result = evaluate(model.module, apply_mask(params, mask), buffers, public.x, public.y)
    return Ticket(apply_mask(fresh, mask), mask, round(result.accuracy * len(public)))


def winning_ticket(model: ServerModel, run: Run, settings: TicketSettings) -> Ticket:
    """The one that was picked."""
    tickets = [make_ticket(model, run, settings, number) for number in range(settings.tickets)]
    scores = [ticket.score for ticket in tickets]
    return tickets[softmax_choice(scores, stream(run.seed, purpose="ticket-choice"))]
