import torch

from prunella.core.config import Run
from prunella.strategies.fed_ltp_one_shot import FedLTPOneShot
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.tickets import TicketSettings, winning_ticket
from prunella.tasks.data import load_test
from prunella.tasks.task import Task, initial, prunable

TASK = Task("cnn", (1, 8, 8), 10)


def test_the_run_starts_from_the_winning_ticket_and_not_from_its_own_weights() -> None:
    net, (params, _) = TASK.build(), initial(TASK, 0)
    model = ServerModel(net, TASK.shape, tuple(params), prunable(net), load_test("digits", None), TASK)
    run, settings = Run(rate=0.6), TicketSettings(tickets=2, iterations=5)
    weights, mask = FedLTPOneShot(run, model, settings).first_model(params, None, [])
    ticket = winning_ticket(model, run, settings)
    assert all(torch.equal(weights[n], ticket.params[n]) and torch.equal(mask[n], ticket.mask[n]) for n in params)
    assert not any(torch.equal(weights[n], params[n] * mask[n]) for n in model.prunable)
