import pytest
import torch

from prunella.core.config import Run
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import apply_mask
from prunella.pruning.compact import living
from prunella.pruning.ltp import ticket_mask
from prunella.pruning.prunefl_filters import of_channels
from prunella.pruning.selection import density, kept_count
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.tickets import Ticket, TicketSettings, make_ticket, winning_ticket
from prunella.tasks.data import batches, load_test
from prunella.tasks.task import Task, initial, prunable

TASK = Task("cnn", (1, 8, 8), 10)
NET = TASK.build()
PARAMS, _ = initial(TASK, 0)
MODEL = ServerModel(NET, TASK.shape, tuple(PARAMS), prunable(NET), load_test("digits", None), TASK)
SMALL = TicketSettings(tickets=2, iterations=40)


@pytest.fixture(scope="module")
def ticket() -> Ticket:
    return make_ticket(MODEL, Run(rate=0.5), SMALL, 0)


def test_survivors_are_at_their_initial_values_and_the_count_is_exact(ticket: Ticket) -> None:
    fresh, _ = initial(TASK, stream(0, client=0, purpose="ticket").initial_seed())
    assert all(torch.equal(ticket.params[n], apply_mask(fresh, ticket.mask)[n]) for n in fresh)
    for name, mask in ticket.mask.items():
        assert int(mask.sum()) == (kept_count(mask.numel(), 0.5) if name in MODEL.prunable else mask.numel())


def test_mask_and_score_are_those_of_plain_sgd_on_the_public_examples(ticket: Ticket) -> None:
    net = TASK.build()
    net.load_state_dict(initial(TASK, stream(0, client=0, purpose="ticket").initial_seed())[0])
    optimiser = torch.optim.SGD(net.parameters(), lr=SMALL.learning_rate)
    public = MODEL.public
    for batch in batches(public, SMALL.batch, SMALL.iterations, rehearsal(0, client=0, purpose="ticket-batches")):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(batch.x), batch.y).backward()
        optimiser.step()
    trained = {n: p.detach() for n, p in net.named_parameters()}
    expected = ticket_mask(trained, MODEL.prunable, 0.5, "rate")
    assert all(torch.equal(ticket.mask[n], expected[n]) for n in expected)
    net.load_state_dict(apply_mask(trained, expected))
    assert ticket.score == int((net(public.x).argmax(1) == public.y).sum()) > len(public) / 2


def test_tickets_differ_by_number_and_the_winner_is_one_of_them_by_seed() -> None:
    run = Run(rate=0.5)
    made = [make_ticket(MODEL, run, SMALL, j) for j in range(2)]
    assert any(not torch.equal(made[0].mask[n], made[1].mask[n]) for n in MODEL.prunable)
    winner, again = winning_ticket(MODEL, run, SMALL), winning_ticket(MODEL, run, SMALL)
    assert all(torch.equal(winner.params[n], again.params[n]) for n in winner.params)
    assert any(all(torch.equal(winner.params[n], t.params[n]) for n in t.params) for t in made)


def test_a_ticket_of_filters_keeps_the_largest_of_every_layer_and_is_a_smaller_network() -> None:
    run, filters = Run(rate=0.5), TicketSettings(iterations=40, granularity="filter")
    whole, filtered = make_ticket(MODEL, Run(rate=0.0), SMALL, 0), make_ticket(MODEL, run, filters, 0)
    assert of_channels(filtered.mask, MODEL.groups, MODEL.prunable)
    assert 0.5 <= density(filtered.mask, MODEL.prunable) < 0.55
    shares = [int(each.sum()) / len(each) for each in living(MODEL.groups, filtered.mask)]
    assert max(shares) - min(shares) <= 1 / 16 and max(shares) < 0.8
    assert all(torch.equal(filtered.params[n], apply_mask(whole.params, filtered.mask)[n]) for n in whole.params)


def test_the_printed_rule_is_of_single_weights_only() -> None:
    with pytest.raises(ConfigError, match="leave rule=rate"):
        TicketSettings(granularity="filter", rule="as_printed")


def test_without_a_task_it_says_so() -> None:
    model = ServerModel(NET, TASK.shape, tuple(PARAMS), prunable(NET), MODEL.public)
    with pytest.raises(PrunellaError, match="no task"):
        make_ticket(model, Run(), SMALL, 0)
