import torch

from prunella.core.config import Run
from prunella.pruning.selection import kept_count
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.synflow import SynFlow, SynFlowSettings
from prunella.tasks.task import Task, initial, prunable

TASK = Task("cnn", (1, 8, 8), 10)
NET = TASK.build()


def first(rate: float, **settings):
    params, _ = initial(TASK, 0)
    model = ServerModel(NET, TASK.shape, tuple(params), prunable(NET))
    return SynFlow(Run(rate=rate), model, SynFlowSettings(**settings)).first_mask(params, None, [])


def test_it_needs_no_data_and_keeps_the_exact_count_over_all_layers_or_within_each() -> None:
    names = sorted(prunable(NET))
    whole, within = first(0.7), first(0.7, scope="layer", steps=10)
    assert sum(int(whole[n].sum()) for n in names) == kept_count(sum(whole[n].numel() for n in names), 0.7)
    assert [int(within[n].sum()) for n in names] == [kept_count(within[n].numel(), 0.7) for n in names]
    assert any(not torch.equal(whole[n], within[n]) for n in names)
